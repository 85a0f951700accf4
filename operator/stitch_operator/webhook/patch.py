"""JSON Patch (RFC 6902) operations, built by hand: fields that we do not know are never touched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Operation = dict[str, Any]
Step = str | int


def pointer(*steps: Step) -> str:
    """A JSON pointer (RFC 6901)."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps)


def add(value: Any, *steps: Step) -> Operation:
    return {"op": "add", "path": pointer(*steps), "value": value}


def replace(value: Any, *steps: Step) -> Operation:
    return {"op": "replace", "path": pointer(*steps), "value": value}


def remove(*steps: Step) -> Operation:
    return {"op": "remove", "path": pointer(*steps)}


def extend(present: list[Any] | None, values: list[Any], *steps: Step) -> list[Operation]:
    """Adds `values` at the end of the list at `steps`; `present` is what is there."""
    if not values:
        return []
    if not present:
        return [add(values, *steps)]
    return [add(value, *steps, "-") for value in values]


def entries(
    present: Mapping[str, Any] | None, wanted: Mapping[str, str | None], *steps: Step
) -> list[Operation]:
    """Makes the map at `steps` hold `wanted`; a None is removed. What is so already stays."""
    missing = {name: value for name, value in wanted.items() if value is not None}
    if not present:
        return [add(missing, *steps)] if missing else []
    made = []
    for name, value in wanted.items():
        if value is None and name in present:
            made.append(remove(*steps, name))
        elif value is not None and present.get(name) != value:
            made.append(add(value, *steps, name))
    return made
