"""Environment variables of a container: ours are added, the user's stay.

PYTHONPATH alone is merged, in its place in the list, because a `$(VARIABLE)` in it refers to what
stands before it. Where its present value cannot be known the container is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stitch_operator.webhook.patch import Operation, Step, add, extend, replace
from stitch_operator.webhook.policy import MODES
from stitch_operator.webhook.reasons import Reason, Skip

PYTHONPATH = "PYTHONPATH"
STITCH_MODE = "STITCH_MODE"


@dataclass(frozen=True)
class Variables:
    """What a container is given: `values` in this order, and `front` ahead of PYTHONPATH.
    `paths` is what the user says stands in PYTHONPATH unseen, None where he says nothing."""

    front: str
    paths: str | None
    values: Mapping[str, str]


def operations(container: Mapping[str, Any], wanted: Variables, *steps: Step) -> list[Operation]:
    """Operations on the container at `steps`. Raises Skip."""
    present = container.get("env") or []
    _check_mode(present, wanted.values.get(STITCH_MODE, MODES[-1]))
    found = [at for at, entry in enumerate(present) if entry.get("name") == PYTHONPATH]
    added = []
    made: list[Operation] = []
    if found:
        at = found[-1]  # of entries of one name the last counts
        value = merged(present[at], wanted)
        if value != present[at].get("value"):
            operation = replace if "value" in present[at] else add
            made.append(operation(value, *steps, "env", at, "value"))
    else:
        if wanted.paths is None and _may_bring_path(container):
            raise Skip(Reason.PYTHONPATH_UNKNOWN, str(container.get("name", "")))
        added.append({"name": PYTHONPATH, "value": _joined(wanted.front, wanted.paths or "")})
    there = {entry.get("name") for entry in present}
    for name, value in wanted.values.items():
        if name not in there:
            added.append({"name": name, "value": value})
    return [*made, *extend(present, added, *steps, "env")]


def merged(entry: Mapping[str, Any], wanted: Variables) -> str:
    """The value of PYTHONPATH with ours in front. Raises Skip where it cannot be known."""
    if entry.get("valueFrom") is not None:
        raise Skip(Reason.PYTHONPATH_FROM_SOURCE)
    value = str(entry.get("value") or "")
    if value.split(":")[0] == wanted.front:
        return value
    return _joined(wanted.front, wanted.paths or "", value)


def _joined(*parts: str) -> str:
    """An empty part would put the working folder on the path."""
    return ":".join(part for part in parts if part)


def _may_bring_path(container: Mapping[str, Any]) -> bool:
    sources = container.get("envFrom") or []
    return any(PYTHONPATH.startswith(source.get("prefix") or "") for source in sources)


def _check_mode(present: list[Mapping[str, Any]], allowed: str) -> None:
    """The user may set a lower mode, never one above what he is allowed."""
    for entry in present:
        if entry.get("name") != STITCH_MODE:
            continue
        value = entry.get("value")
        if value not in MODES or MODES.index(value) > MODES.index(allowed):
            raise Skip(Reason.MODE_ABOVE_POLICY, str(value)[:40])
