"""Kinds of other projects that the chart has objects of, as those projects define them."""

from __future__ import annotations

import functools
import json
from typing import Any

import yaml

from tests.cluster import build, parts

RELEASES = (parts.PROMETHEUS_OPERATOR, parts.KEDA, parts.CERT_MANAGER)


def _fetched() -> None:
    for part in parts.PARTS:
        if part.release in RELEASES:
            build.fetch(part)


@functools.cache
def definitions() -> tuple[dict[str, Any], ...]:
    """Their CustomResourceDefinitions, fetched where they are not there yet."""
    _fetched()
    files = [file for release in RELEASES for file in sorted(release.kept.glob("*.yaml"))]
    return tuple(yaml.safe_load(file.read_text(encoding="utf-8")) for file in files)


@functools.cache
def keda_triggers() -> dict[str, dict[str, Any]]:
    """What KEDA's own schema knows of a trigger's metadata: parameters by name, by trigger."""
    _fetched()
    document = json.loads((parts.KEDA.kept / "scalers-schema.json").read_text(encoding="utf-8"))
    return {
        one["type"]: {parameter["name"]: parameter for parameter in one["parameters"]}
        for one in document["scalers"]
    }
