"""The status of a job, from its pods and from what the gateway says of them. Pure.

The same facts give the same status, whoever asks and however often, so a reconciler that was killed
anywhere goes on as if it had not been. What is not known (the gateway is away) stays as it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from stitch_operator.reconciler import conditions
from stitch_operator.reconciler.conditions import Facts
from stitch_operator.reconciler.pods import Pod
from stitch_operator.reconciler.records import (
    MOST_REFUSALS,
    PENDING,
    GraphStatus,
    Phase,
    RefusalCount,
    Replicas,
    Speedup,
    Status,
    Step,
)
from stitch_operator.reports import MOST_GRAPHS, Graph, Workload
from stitchcore.inject.speedup import speedup_text
from stitchcore.report.markup import saved_text, seconds_text

CONTACT_SECONDS = 300.0
MISSED = "missed_admission"
NO_CONTACT = "no_contact"
DRY_RUN = "dry_run"
ORDER: tuple[Phase, ...] = (
    *("Optimized", "Measuring", "Compiling", "Observing", "Pending", "RolledBack", "Unchanged"),
    *("Refused", "NoContact", "Skipped"),
)
"""A job's phase is the first of these that a graph of a pod of it has: what is under way counts
before what has come to nothing, and what ran stitched before both."""
OF_PODS = ("Pending", "Skipped")
"""Phases that the gateway has no part in."""
RATIO_DIGITS, SECOND_DIGITS = 3, 1
UNCHANGED = Speedup(ratio=1.0, low=1.0, high=1.0, summary=speedup_text(1.0, 1.0, 1.0))
Stand = tuple[Phase, str]
"""A phase and its reason."""


@dataclass(frozen=True)
class Replica:
    """A pod that asked, and what the gateway says of it; None where it knows nothing."""

    pod: Pod
    row: Workload | None = None


@dataclass(frozen=True)
class Known:
    """All that a status depends on. `gone` are rows of pods that are no more. `read` is when the
    gateway was last heard, None for not yet; `before` the status as it stands."""

    replicas: Sequence[Replica]
    gone: Sequence[Workload] = ()
    read: float | None = None
    before: Status | None = None


def status(known: Known, now: float) -> Status:
    """The status that a job should have. Epoch seconds."""
    before = known.before or PENDING
    counted = considered(known.replicas)
    after = _with_sums(before, known)
    if not counted:
        return after
    stands = [stand(replica, known.read) for replica in counted]
    after = replace(after, replicas=_replicas(counted, before, known.read))
    phase, reason = best(stands)
    if known.read is None and phase == "Observing" and before.phase not in OF_PODS:
        phase, reason = before.phase, before.reason
    if known.read is not None:
        speedup, graphs, refusals = _speedup(counted), _graphs(counted), _refusals(counted)
        after = replace(
            after, speedup=speedup, step=_step(counted), graphs=graphs, refusals=refusals
        )
    after = replace(after, phase=phase, reason=reason)
    pods = [replica.pod for replica in counted]
    facts = Facts(phase, reason, pods, _states(counted), MISSED, _told(after))
    holding = conditions.held(facts, known.read is not None)
    return replace(after, conditions=conditions.after(before.conditions, holding, now))


def considered(replicas: Sequence[Replica]) -> list[Replica]:
    """The pods that are there, or, once all have ended, those that did."""
    active = [replica for replica in replicas if replica.pod.active]
    chosen = active or replicas
    return sorted(chosen, key=lambda replica: (replica.pod.name, replica.pod.uid))


def due(replica: Replica) -> float | None:
    """When time alone may change what is said of a pod."""
    pod = replica.pod
    waits = pod.injected and replica.row is None and pod.active and pod.started is not None
    return (pod.started or 0.0) + CONTACT_SECONDS if waits else None


def best(stands: Iterable[Stand]) -> Stand:
    """The first by ORDER; of equals the first reason, so that it does not change by itself."""
    return min(
        stands,
        key=lambda candidate: (ORDER.index(candidate[0]), candidate[1]),
        default=("Pending", ""),
    )


# One pod


def stand(replica: Replica, read: float | None) -> Stand:
    """Where a pod stands."""
    pod, row = replica.pod, replica.row
    if not pod.injected:
        return "Skipped", pod.skipped or (DRY_RUN if pod.would else MISSED)
    if row is None:
        return _silent(pod, read)
    if not row.graphs:
        return ("Observing", "") if pod.active else ("Unchanged", "nothing_handed_in")
    return best(graph_stand(graph, pod) for graph in row.graphs)


def _silent(pod: Pod, read: float | None) -> Stand:
    if pod.started is None:
        return "Pending", pod.stuck
    if read is None:
        return "Observing", ""
    heard = min(read, pod.finished or read)
    if heard - pod.started >= CONTACT_SECONDS:
        return "NoContact", NO_CONTACT
    return ("Observing", "") if pod.active else ("Unchanged", "ended_before_contact")


def graph_stand(graph: Graph, pod: Pod) -> Stand:
    """Where a graph of a pod stands."""
    if graph.swap in ("rolled-back", "crashed"):
        crashed = "crashed_before" if graph.swap == "crashed" else ""
        return "RolledBack", graph.reason or crashed
    if graph.phase == "refused":
        return "Refused", graph.reason
    if graph.swap:
        if graph.low is not None and graph.low > 1.0:
            return "Optimized", ""
        if pod.active:
            return "Measuring", ""
        return "Unchanged", "unmeasured" if graph.ratio is None else "no_difference"
    if graph.phase == "ready":
        if pod.mode == "observe":
            return "Observing", "mode_observe"
        return ("Measuring", "") if pod.active else ("Unchanged", "ended_before_swap")
    return ("Compiling", "") if pod.active else ("Unchanged", "ended_before_artifact")


# All pods


def _replicas(counted: Sequence[Replica], before: Status, read: float | None) -> Replicas:
    injected = sum(bool(replica.pod.injected) for replica in counted)
    missed = sum(not replica.pod.reviewed for replica in counted)
    swapped = sum(
        any(graph.swap in ("begun", "ok") for graph in _of(replica)) for replica in counted
    )
    if read is None:
        swapped = min(before.replicas.swapped, injected)
    total = len(counted)
    return Replicas(
        total=total,
        injected=injected,
        swapped=swapped,
        missed=missed,
        summary=f"{swapped}/{total}",
    )


def _of(replica: Replica) -> list[Graph]:
    return replica.row.graphs if replica.row is not None else []


def speedup_of(replica: Replica) -> Speedup | None:
    """Of the graph with most stitched steps: that is the training step. A pod that went back runs
    as it did; None for one that has not been measured."""
    most = running_step(replica)
    if most is None:
        return UNCHANGED
    if most.ratio is None or most.low is None or most.high is None:
        return None
    summary = speedup_text(most.ratio, most.low, most.high)
    return Speedup(ratio=most.ratio, low=most.low, high=most.high, summary=summary)


def running_step(replica: Replica) -> Graph | None:
    """The graph of a pod with most stitched steps, of those that run stitched."""
    running = [graph for graph in _of(replica) if graph.swap in ("begun", "ok")]
    return max(running, key=lambda graph: (graph.steps, graph.graph), default=None)


def _step(counted: Sequence[Replica]) -> Step | None:
    """Of the slowest replica that has been measured, else of one that runs stitched."""
    running = [graph for replica in counted if (graph := running_step(replica)) is not None]
    if not running:
        return None
    slowest = min(running, key=lambda one: (one.ratio is None, one.ratio or 0.0, one.graph))
    time = left = kernels = saved = ""
    if slowest.seconds_before is not None and slowest.seconds_after is not None:
        time = f"{seconds_text(slowest.seconds_before)} → {seconds_text(slowest.seconds_after)}"
    if (made := slowest.made) is not None and made.kernels_before:
        kernels = f"{made.kernels_before} → {made.kernels_after}"
        saved = saved_text(made.bytes_saved, made.bytes_saveable)
        most = sorted(made.left.items(), key=lambda item: (-item[1], item[0]))[:MOST_REFUSALS]
        left = ", ".join(f"{count} x {reason}" for reason, count in most)
    return Step(graph=slowest.graph, time=time, kernels=kernels, bytes_saved=saved, left=left)


def _told(status: Status) -> str:
    """The speed-up and what it is of, in a line; "" where it is not known."""
    if status.speedup is None or status.step is None:
        return ""
    step = status.step
    parts = [f"step {step.time}" if step.time else "", f"speed-up {status.speedup.summary}",
             f"kernels {step.kernels}" if step.kernels else "",
             f"bytes saved per step {step.bytes_saved}" if step.bytes_saved else "",
             f"left to TensorFlow: {step.left}" if step.left else ""]  # fmt: skip
    return ", ".join(filter(None, parts))


def _speedup(counted: Sequence[Replica]) -> Speedup | None:
    """The slowest replica's; None as long as one that has swapped is not measured, or none has."""
    took_part = [replica for replica in counted if any(graph.swap for graph in _of(replica))]
    speedups = [speedup_of(replica) for replica in took_part]
    known = [speedup for speedup in speedups if speedup is not None]
    if not known or len(known) < len(speedups):
        return None
    slowest = min(known, key=lambda speedup: (speedup.ratio, speedup.low, speedup.high))
    return Speedup(
        ratio=round(slowest.ratio, RATIO_DIGITS),
        low=round(slowest.low, RATIO_DIGITS),
        high=round(slowest.high, RATIO_DIGITS),
        summary=slowest.summary,
    )


def _graphs(counted: Sequence[Replica]) -> list[GraphStatus]:
    """Each graph once: as it stands in the pod where it has come furthest, and its least ratio."""
    stands: dict[str, list[Stand]] = {}
    by_digest: dict[str, list[Graph]] = {}
    for replica in counted:
        for graph in _of(replica):
            stands.setdefault(graph.graph, []).append(graph_stand(graph, replica.pod))
            by_digest.setdefault(graph.graph, []).append(graph)
    statuses = []
    for digest, graphs in by_digest.items():
        phase, reason = best(stands[digest])
        ratios = [graph.ratio for graph in graphs if graph.ratio is not None]
        statuses.append(
            GraphStatus(
                graph=digest,
                phase=phase,
                reason=reason,
                artifact=max(graph.key for graph in graphs),
                speedup=round(min(ratios), RATIO_DIGITS) if ratios else None,
            )
        )
    return sorted(statuses, key=lambda entry: (ORDER.index(entry.phase), entry.graph))[:MOST_GRAPHS]


def _refusals(counted: Sequence[Replica]) -> list[RefusalCount]:
    reasons = Counter(
        graph.reason
        for replica in counted
        for graph in _of(replica)
        if graph_stand(graph, replica.pod)[0] in ("Refused", "RolledBack") and graph.reason
    )
    ordered = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    return [RefusalCount(reason=name, count=count) for name, count in ordered[:MOST_REFUSALS]]


def _states(counted: Sequence[Replica]) -> list[Stand]:
    """Of all graphs, and of what is swapped now."""
    states: list[Stand] = [
        graph_stand(graph, replica.pod) for replica in counted for graph in _of(replica)
    ]
    if any(graph.swap in ("begun", "ok") for replica in counted for graph in _of(replica)):
        states.append(("Optimized", "swapped"))
    return states


def _with_sums(before: Status, known: Known) -> Status:
    """Over all pods there were. A sum never falls: what is not told any more was counted."""
    rows = [replica.row for replica in known.replicas if replica.row is not None]
    sums = {"gpu_saved": 0.0, "gpu_lost": 0.0, "cpu_saved": 0.0, "cpu_lost": 0.0}
    for row in (*rows, *known.gone):
        device = "cpu" if row.gpu == "cpu" else "gpu"
        sums[f"{device}_saved"] += row.saved
        sums[f"{device}_lost"] += row.lost
    rounded = {name: round(value, SECOND_DIGITS) for name, value in sums.items()}
    saved = max(before.gpu_seconds_saved, rounded["gpu_saved"])
    return replace(
        before,
        gpu_seconds_saved=saved,
        gpu_seconds_lost=max(before.gpu_seconds_lost, rounded["gpu_lost"]),
        gpu_hours_saved=round(saved / 3600.0, 4),
        cpu_core_seconds_saved=max(before.cpu_core_seconds_saved, rounded["cpu_saved"]),
        cpu_core_seconds_lost=max(before.cpu_core_seconds_lost, rounded["cpu_lost"]),
    )
