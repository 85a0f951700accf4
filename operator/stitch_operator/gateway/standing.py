"""Where a request stands and what to do about it: the gateway's single-flight, as a pure function.

Durable truth is the store: a request there, and an answer that workers write. The broker may lose
everything at any time, so a request is enqueued again when nobody has been at it for a while.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from stitch_operator.gateway.savings import CLOCK_SECONDS
from stitchcore.errors import Reason

SILENT_SECONDS = 60.0
"""Without a worker's heartbeat for so long, its work is taken to be lost."""
OTHER_CODE_SECONDS = 600.0
"""While gateway and workers are of different code, a refusal is asked again this often."""
NO_WORKER_SECONDS = 120.0
PAUSE_SECONDS = 30.0
"""At most between two questions of who waits in line: workers may be started meanwhile."""
STARTING_SECONDS = 90.0
"""After its start a gateway does not know yet which workers there are."""


class Next(Enum):
    """What the gateway does: answer, or enqueue first."""

    READY = "ready"
    REFUSED = "refused"
    WAIT = "pending"
    ENQUEUE = "enqueue"
    NO_WORKER = "no_worker"


@dataclass(frozen=True)
class Situation:
    """All that the decision depends on. Times in epoch seconds.

    `answer` as in the store, None without one; `published`: its artifact is there. `waiting` tasks
    stand in the queue; `served`: a worker consumes it. `since` is the gateway's start.
    """

    answer: Mapping[str, Any] | None
    published: bool
    enqueued: float | None
    waiting: int
    served: bool
    code: str
    since: float
    now: float


def decide(at: Situation) -> Next:
    """What to do about a request."""
    answer = at.answer or {}
    status = answer.get("status")
    if status == "ready" and at.published:
        return Next.READY
    if status == "refused" and answer.get("code") == at.code:
        return Next.REFUSED
    if status == "refused" and _age(at.enqueued, at.now) < OTHER_CODE_SECONDS:
        if answered_since(answer, at.enqueued) or not at.served:
            return Next.REFUSED  # answered since it was asked again, by code that differs still
    if status == "pending" and _age(_time(answer), at.now) < SILENT_SECONDS:
        return Next.WAIT
    if _age(at.enqueued, at.now) < SILENT_SECONDS:
        return Next.WAIT
    if not at.served:
        return Next.WAIT if at.now - at.since < STARTING_SECONDS else Next.NO_WORKER
    if at.enqueued is not None and at.waiting > 0 and status != "ready":
        return Next.WAIT  # it stands in line
    return Next.ENQUEUE


@dataclass(frozen=True)
class Standing:
    """What a client is told of its graph (docs/contracts.md section 7)."""

    status: str
    request: str
    key: str
    stage: str = ""
    done: int = 0
    total: int = 0
    retry_after: float = 0.0
    reason: str = ""
    detail: str = ""

    @property
    def http_status(self) -> int:
        return {"ready": 200, "pending": 202, "refused": 409}[self.status]

    def document(self) -> dict[str, Any]:
        """Its JSON, with the fields of its status."""
        fields = {
            "ready": (),
            "pending": ("stage", "done", "total", "retry_after"),
            "refused": ("reason", "detail"),
        }[self.status]
        document = {name: getattr(self, name) for name in ("status", "request", "key", *fields)}
        if self.status == "refused" and self.retry_after:
            document["retry_after"] = self.retry_after
        return document


def tell(
    request: str, found: Next, answer: Mapping[str, Any] | None, queue: str, ahead: float = 0.0
) -> Standing:
    """The Standing of a request after `found` was acted on; so many tasks are `ahead` of it for
    each worker. None takes less than a second, so that who asks sooner learns nothing, and a
    thousand jobs of one burst would keep the gateway busy with asking."""
    said = answer or {}
    if found is Next.READY:
        return Standing("ready", request, str(said["key"]))
    if found is Next.REFUSED:
        reason = str(said.get("reason") or Reason.WORKER_FAILED.value)
        return Standing("refused", request, request, reason=reason, detail=str(said.get("detail")))
    if found is Next.NO_WORKER:
        return Standing(
            *("refused", request, request),
            reason=Reason.NO_WORKER_FOR_TARGET.value,
            detail=f"no worker serves {queue}",
            retry_after=NO_WORKER_SECONDS,
        )
    fresh = said.get("status") == "pending" and found is Next.WAIT
    stage = str(said.get("stage", "queued")) if fresh else "queued"
    done, total = (int(said.get(name) or 0) if fresh else 0 for name in ("done", "total"))
    pause = min(max(1.0, ahead), PAUSE_SECONDS)
    return Standing("pending", request, request, stage, done, total, retry_after=pause)


def crashed(request: str, artifact: str) -> Standing:
    """The answer to a workload that crashed after a swap to this artifact."""
    return Standing(
        *("refused", request, request),
        reason=Reason.CRASHED_BEFORE.value,
        detail=f"a job of this workload crashed after its swap to {artifact[:12]}",
    )


def answered_since(answer: Mapping[str, Any], enqueued: float | None) -> bool:
    """Whether a worker has said anything after a request was enqueued, or just before: their clocks
    differ."""
    return (_time(answer) or 0.0) + CLOCK_SECONDS >= (enqueued or 0.0)


def _time(answer: Mapping[str, Any]) -> float | None:
    time = answer.get("time")
    return float(time) if isinstance(time, int | float) else None


def _age(time: float | None, now: float) -> float:
    """Seconds since; for ever where it never happened. A clock that went back counts as now."""
    return float("inf") if time is None else max(0.0, now - time)
