"""What the gateway tells the reconciler of each pod: one record, encoded there and decoded here.

Phases of graphs are as clients last heard them, figures as the ledger counts them. Written once, so
that the two sides cannot come to mean different things; fields of a later version are ignored.
"""

from __future__ import annotations

from typing import Literal

import msgspec

MOST_GRAPHS = 16
"""Of a pod, that are told one by one; what they saved is in the pod's sums."""
Phase = Literal["pending", "ready", "refused"]
Swap = Literal["", "begun", "ok", "rolled-back", "crashed"]


class Made(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an artifact makes of a step: launches of memory-intensive operations before and after,
    bytes that are saved of those that could be, operations left to TensorFlow by reason."""

    kernels_before: int = 0
    kernels_after: int = 0
    bytes_saved: int = 0
    bytes_saveable: int = 0
    left: dict[str, int] = {}


class Graph(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One graph of a pod, by its canonical digest. `key` is the artifact's once it is ready;
    `reason` why it was refused or rolled back. `ratio` is original over stitched step time as
    the job measured it, with its 95 % interval, `seconds_before` and `seconds_after` the means of
    the same steps; None until there is one. `made` is of the artifact, once it is ready."""

    graph: str
    phase: Phase = "pending"
    key: str = ""
    reason: str = ""
    swap: Swap = ""
    steps: int = 0
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    seconds_before: float | None = None
    seconds_after: float | None = None
    made: Made | None = None


class Workload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One pod (`pod` is its uid) of a workload. `owner` is the workload's name without its run,
    `controller` the uid of what made the pod. `began` and `contact` are the first and the last
    word of it (epoch seconds, the last to a minute); `stepped`: a step of it was timed. `saved` and
    `lost` in seconds of `gpu`, a product, or of cores where that is "cpu"."""

    namespace: str
    owner: str
    pod: str
    controller: str = ""
    gpu: str = "cpu"
    devices: float = 0.0
    sessions: int = 0
    began: float
    contact: float
    stepped: bool = False
    saved: float = 0.0
    lost: float = 0.0
    graphs: list[Graph] = []


class Workloads(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of GET /v1/workloads. `next` is `since` of the next call; `more`: there is a next page
    now. `time` is the gateway's clock."""

    workloads: list[Workload]
    next: str
    more: bool
    time: float
