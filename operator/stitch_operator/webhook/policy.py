"""StitchPolicy: what an administrator allows, and whether and how far a pod asked for it.

One policy applies: of those that select the pod the one of the highest priority, then the first by
name. A pod's own word is stronger than its workload's (which is stamped into the template), that
one stronger than the namespace's; a mode can only be lowered on the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from stitch_operator import names
from stitch_operator.webhook.reasons import Reason, Skip

MODES = ("off", "dryRun", "observe", "optimize")
Mode = Literal["off", "dryRun", "observe", "optimize"]
CHOICES = {"true": True, "false": False}


class Requirement(msgspec.Struct, frozen=True):
    """One line of a label selector."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: list[str] = []

    def holds(self, labels: Mapping[str, str]) -> bool:
        if self.operator in ("Exists", "DoesNotExist"):
            return (self.key in labels) == (self.operator == "Exists")
        inside = self.key in labels and labels[self.key] in self.values
        return inside == (self.operator == "In")


class Selector(msgspec.Struct, frozen=True, rename="camel"):
    """A label selector; an empty one selects everything."""

    match_labels: dict[str, str] = {}
    match_expressions: list[Requirement] = []

    def selects(self, labels: Mapping[str, str]) -> bool:
        equal = all(labels.get(key) == value for key, value in self.match_labels.items())
        return equal and all(one.holds(labels) for one in self.match_expressions)


class PolicySpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`spec` of a StitchPolicy. The CRD's schema is generated from this record."""

    priority: Annotated[
        int,
        Meta(ge=-1_000_000, le=1_000_000, description="the highest applies; then the first name"),
    ] = 0
    namespace_selector: Annotated[
        Selector, Meta(description="labels of the pod's namespace; empty selects all")
    ] = Selector()
    pod_selector: Annotated[Selector, Meta(description="labels of the pod; empty selects all")] = (
        Selector()
    )
    max_mode: Annotated[
        Mode,
        Meta(description="off; dryRun: says what it would inject; observe: never swaps; optimize"),
    ] = "optimize"
    targets: Annotated[
        list[Literal["cpu", "gpu"]], Meta(description="kinds of device that pods may have")
    ] = msgspec.field(default_factory=lambda: ["cpu", "gpu"])
    baseline_steps: (
        Annotated[
            int, Meta(description="original steps before a swap; 50 if unset", ge=1, le=1_000_000)
        ]
        | None
    ) = None
    canary_share: (
        Annotated[
            float, Meta(description="share of steps that keep running the original", ge=0, le=0.5)
        ]
        | None
    ) = None
    guard_ratio: (
        Annotated[
            float,
            Meta(
                description="a step that takes more of the original's time is rolled back; "
                "1.02 if unset, below 1 asks for a gain",
                ge=0.5,
                le=1.2,
            ),
        ]
        | None
    ) = None
    allow_unmeasured: Annotated[
        bool, Meta(description="a step that cannot be timed first may be swapped, claiming nothing")
    ] = False


class Policy(msgspec.Struct, frozen=True):
    """A StitchPolicy by its name."""

    name: str
    spec: PolicySpec


DEFAULT = Policy("", PolicySpec())
"""Applies where no policy does."""


class Namespace(msgspec.Struct, frozen=True):
    """What of a namespace is read."""

    name: str
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}


def decode(document: Mapping[str, Any]) -> Policy:
    """A StitchPolicy as the API server shows it. Raises ValueError for one that is none."""
    spec = msgspec.convert(document.get("spec") or {}, PolicySpec)
    return Policy(str(document["metadata"]["name"]), spec)


def applying(policies: Iterable[Policy], namespace: Namespace, pod: Mapping[str, Any]) -> Policy:
    """The one policy of a pod."""
    labels = texts(pod, "labels")
    selecting = [
        one
        for one in policies
        if one.spec.namespace_selector.selects(namespace.labels)
        and one.spec.pod_selector.selects(labels)
    ]
    return min(selecting, key=lambda one: (-one.spec.priority, one.name), default=DEFAULT)


def texts(document: Mapping[str, Any], field: str) -> dict[str, str]:
    """`metadata.labels` or `metadata.annotations` of an object."""
    return dict((document.get("metadata") or {}).get(field) or {})


def asked(pod: Mapping[str, Any], namespace: Namespace) -> bool:
    """Whether the pod asked to be optimized. Raises Skip for a value that means nothing."""
    levels: list[list[Mapping[str, str]]] = [
        [texts(pod, "annotations"), texts(pod, "labels")],
        [namespace.annotations, namespace.labels],
    ]
    for level in levels:
        said = [_choice(values[names.OPTIMIZE]) for values in level if names.OPTIMIZE in values]
        if said:
            return all(said)
    return False


def _choice(value: str) -> bool:
    if value not in CHOICES:
        raise Skip(Reason.BAD_ANNOTATION, f"{names.OPTIMIZE}: {value[:40]}")
    return CHOICES[value]


def mode(policy: Policy, pod: Mapping[str, Any], namespace: Namespace) -> str:
    """The lowest of what the policy allows and what annotations ask. Raises Skip."""
    lowest = MODES.index(policy.spec.max_mode)
    for values in (texts(pod, "annotations"), namespace.annotations):
        value = values.get(names.MODE)
        if value is None:
            continue
        if value not in MODES:
            raise Skip(Reason.BAD_ANNOTATION, f"{names.MODE}: {value[:40]}")
        lowest = min(lowest, MODES.index(value))
    return MODES[lowest]
