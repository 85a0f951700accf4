"""Kinds of other projects that the chart has objects of, as those projects define them."""

from __future__ import annotations

import functools
from typing import Any

import yaml

from tests.cluster import build, parts

RELEASES = (parts.PROMETHEUS_OPERATOR, parts.KEDA, parts.CERT_MANAGER)


@functools.cache
def definitions() -> tuple[dict[str, Any], ...]:
    """Their CustomResourceDefinitions, fetched where they are not there yet."""
    for part in parts.PARTS:
        if part.release in RELEASES and not part.built.is_file():
            build.fetch(part)
    files = [file for release in RELEASES for file in sorted(release.kept.glob("*.yaml"))]
    return tuple(yaml.safe_load(file.read_text(encoding="utf-8")) for file in files)
