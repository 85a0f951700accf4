"""What an adapter says of its kind: where pod templates are, how many pods, how a word is stamped.

Stamping writes annotations into pod templates when a workload is created, and nothing else, ever:
templates are immutable afterwards, and Kueue compares their containers. What the user wrote into a
template himself stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from stitch_operator import names
from stitch_operator.webhook.patch import Operation, Step, add, entries

Workload = Mapping[str, Any]
Annotations = Mapping[str, str]


@dataclass(frozen=True)
class Template:
    """A pod template: the steps to it within the workload, and the pods it is for."""

    steps: tuple[Step, ...]
    replicas: int


class Adapter(Protocol):
    """One kind of workload. `resource` is its plural name, as rules and paths have it; `version` is
    the one it is watched in."""

    @property
    def group(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def resource(self) -> str: ...
    @property
    def version(self) -> str: ...

    def templates(self, workload: Workload) -> list[Template]:
        """Pod templates that the workload holds itself."""
        ...

    def stamp(self, workload: Workload, annotations: Annotations) -> list[Operation]:
        """Operations that give its pods these annotations."""
        ...


def stamped(
    workload: Workload, templates: Sequence[Template], annotations: Annotations
) -> list[Operation]:
    """`annotations` in every template; what a template says itself wins."""
    made: list[Operation] = []
    for template in templates:
        held = at(workload, template.steps)
        metadata = held.get("metadata")
        own = (metadata or {}).get("annotations") or {}
        labels = (metadata or {}).get("labels") or {}
        missing: dict[str, str | None] = {
            name: value
            for name, value in annotations.items()
            if name not in own and not (name == names.OPTIMIZE and name in labels)
        }
        if not missing:
            continue
        if metadata is None:
            made.append(add({"annotations": missing}, *template.steps, "metadata"))
        else:
            made += entries(own, missing, *template.steps, "metadata", "annotations")
    return made


def at(document: Mapping[str, Any], steps: Sequence[Step]) -> Any:
    """What stands at `steps`; {} where nothing does."""
    found: Any = document
    for step in steps:
        try:
            found = found[step]
        except (KeyError, IndexError, TypeError):
            return {}
    return found or {}


def count(value: Any, default: int = 1) -> int:
    """A number of replicas, as the API server shows it."""
    return default if value is None else int(value)
