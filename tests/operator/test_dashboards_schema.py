"""Dashboards against the types that Grafana publishes (grafana-foundation-sdk, one version a
Grafana): a field that Grafana does not have, or a word that its lists do not, fails here."""

from __future__ import annotations

import copy
import json
import typing
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip(
    "grafana_foundation_sdk", reason="grafana-foundation-sdk is missing: pip install -e '.[test]'"
)

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Dashboard

from stitch_operator.dashboards.panels import SCHEMA_VERSION
from tests.operator.test_dashboards import ALL, ROOT

FOLDER = ROOT / "helm" / "stitch" / "files" / "dashboards"
FILES = sorted(FOLDER.glob("*.json"))
register_default_plugins()


def unknown(document: Any) -> list[str]:
    """What is lost when Grafana's types read the document and write it again, and values that are
    not of their lists."""
    read = Dashboard.from_json(copy.deepcopy(document))
    written = json.loads(JSONEncoder().encode(read))
    return [*lost(document, written, ""), *foreign(read, "")]


def lost(before: Any, after: Any, where: str) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for name, value in before.items():
            if name not in after:
                yield f"{where}.{name}"
            else:
                yield from lost(value, after[name], f"{where}.{name}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from lost(one, other, f"{where}[{number}]")
    elif before != after:
        yield f"{where}: {before!r} became {after!r}"


def foreign(read: Any, where: str) -> Iterator[str]:
    """Values of closed lists that are not in them. Types are told by the classes' annotations."""
    if isinstance(read, list):
        for number, one in enumerate(read):
            yield from foreign(one, f"{where}[{number}]")
    if not type(read).__module__.startswith("grafana_foundation_sdk") or isinstance(read, Enum):
        return
    for name, kind in typing.get_type_hints(type(read)).items():
        value = getattr(read, name, None)
        lists = [one for one in (kind, *typing.get_args(kind))
                 if isinstance(one, type) and issubclass(one, Enum)]  # fmt: skip
        if lists and value is not None and not isinstance(value, Enum):
            if all(value not in [each.value for each in one] for one in lists):
                yield f"{where}.{name}: {value!r}"
        yield from foreign(value, f"{where}.{name}")


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.stem))
def test_grafana_knows_every_field_of_a_dashboard(file: Path) -> None:
    assert unknown(json.loads(file.read_text())) == []


def test_there_is_a_file_of_each() -> None:
    assert {file.stem for file in FILES} == {one.name for one in ALL}
    assert all(json.loads(file.read_text())["schemaVersion"] == SCHEMA_VERSION for file in FILES)


def test_units_are_grafanas() -> None:
    known = {value for name, value in vars(units).items() if isinstance(value, str) and
             not name.startswith("_")}  # fmt: skip
    for one in ALL:
        for panel in one.panels:
            assert panel.unit.value in known, panel.title


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        ((), "refesh", "1m"),
        (("panels", 1), "descriptions", "text"),
        (("panels", 1, "options"), "reduceOption", {}),
        (("panels", 1, "options"), "colorMode", "rainbow"),
        (("panels", 1, "fieldConfig", "defaults"), "units", "h"),
        (("panels", 1, "targets", 0), "expression", "up"),
        (("templating", "list", 0), "typ", "datasource"),
    ],
)
def test_a_wrong_field_or_word_is_found(place: tuple[Any, ...], name: str, value: Any) -> None:
    document = json.loads((FOLDER / "savings.json").read_text())
    at: Any = document
    for step in place:
        at = at[step]
    at[name] = value
    assert any(name in one or str(value) in one for one in unknown(document))
