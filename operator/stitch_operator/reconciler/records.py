"""StitchedJob as it is written: the CRD's schema is generated from these records.

Nothing in a status is a secret or a user's own word: digests, closed reasons, figures.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from stitch_operator.reports import MOST_GRAPHS

Phase = Literal[
    "Pending",
    "Skipped",
    "Observing",
    "Compiling",
    "Measuring",
    "Optimized",
    "Unchanged",
    "RolledBack",
    "Refused",
    "NoContact",
]
Type = Literal[
    "Injected",
    "Skipped",
    "Compiling",
    "Swapped",
    "Optimized",
    "RolledBack",
    "Refused",
    "NoContact",
]
TYPES: tuple[Type, ...] = (
    *("Injected", "Skipped", "Compiling", "Swapped", "Optimized"),
    *("RolledBack", "Refused", "NoContact"),
)
"""Of conditions, and of the Events that say when one came to hold: a closed list."""
WARNINGS = frozenset({"Skipped", "RolledBack", "Refused", "NoContact"})
MOST_REFUSALS = 16
NAME_LENGTH = 220
"""Events of a StitchedJob are named after it, and a name has 253 characters at most."""


class Record(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A part of the object; defaults are left out."""


class WorkloadReference(Record, frozen=True, kw_only=True):
    """The workload that a StitchedJob tells of."""

    api_version: str
    kind: str
    name: str
    uid: str


class Spec(Record, frozen=True, kw_only=True):
    """Written once, when the object is made."""

    workload: WorkloadReference


class Speedup(Record, frozen=True, kw_only=True):
    """Original over stitched step time of the slowest replica, with its 95 % interval; `summary`
    is both, for a column."""

    ratio: float
    low: float
    high: float
    summary: str = ""


class Step(Record, frozen=True, kw_only=True):
    """The step that the speed-up is of, in the words of `stitch run`: figures before and after."""

    graph: Annotated[str, Meta(description="its canonical digest")]
    time: Annotated[str, Meta(description="of a step, as the job measured it")] = ""
    kernels: Annotated[
        str, Meta(description="launches of memory-intensive operations in a step")
    ] = ""
    bytes_saved: Annotated[str, Meta(description="of memory traffic in a step")] = ""
    left: Annotated[str, Meta(description="to TensorFlow: how many operations, and why")] = ""


class Replicas(Record, frozen=True, kw_only=True):
    """Pods. `summary` is swapped/total, for a column."""

    total: int = 0
    injected: int = 0
    swapped: int = 0
    missed: Annotated[int, Meta(description="asked, and were created without the webhook")] = 0
    summary: str = ""


class GraphStatus(Record, frozen=True, kw_only=True):
    """One graph of the job, by its canonical digest; `artifact` is what it was swapped to."""

    graph: str
    phase: Phase
    reason: str = ""
    artifact: str = ""
    speedup: float | None = None


class RefusalCount(Record, frozen=True, kw_only=True):
    """So many graphs of pods were left as they are for this reason."""

    reason: str
    count: int


class Condition(Record, frozen=True, kw_only=True):
    """`transitions` counts how often it came to hold: so many Events were posted."""

    type: Type
    status: Literal["True", "False"]
    reason: str = ""
    message: str = ""
    last_transition_time: str
    transitions: int = 0


class Status(Record, frozen=True, kw_only=True):
    """`status` of a StitchedJob. Sums only grow; seconds of devices, over all pods."""

    phase: Phase
    gpu_hours_saved: Annotated[float, Meta(description="gpuSecondsSaved, for a column")]
    reason: str = ""
    speedup: Speedup | None = None
    step: Step | None = None
    gpu_seconds_saved: float = 0.0
    gpu_seconds_lost: float = 0.0
    cpu_core_seconds_saved: float = 0.0
    cpu_core_seconds_lost: float = 0.0
    replicas: Replicas = Replicas()
    graphs: Annotated[list[GraphStatus], Meta(max_length=MOST_GRAPHS)] = []
    refusals: Annotated[list[RefusalCount], Meta(max_length=MOST_REFUSALS)] = []
    conditions: list[Condition] = []


class StitchedJob(Record, frozen=True, kw_only=True):
    """The object without its metadata."""

    spec: Spec
    status: Status | None = None


def name_of(workload: WorkloadReference) -> str:
    """kind-name-uid8, as long as a name may be."""
    start, end = f"{workload.kind.lower()}-{workload.name}", f"-{workload.uid[:8]}"
    return start[: NAME_LENGTH - len(end)].rstrip("-.") + end


PENDING = Status(phase="Pending", gpu_hours_saved=0.0)
"""Of a workload without pods."""
