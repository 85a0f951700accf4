"""What a report of savings adds to the ledger: pure arithmetic over totals, with its bounds.

A report carries totals of (session, graph), so a lost or repeated one costs nothing. What the
difference rose by since the last report is saved, what it fell by is lost: both only grow, as
counters must, and saved - lost is the difference itself, negatives included. Bounds: a
session's time is at most its container's, all sessions' at most their pod's, the ratio at most 1.25
x the measured one.
"""

from __future__ import annotations

from dataclasses import dataclass

RATIO_SLACK = 1.25
CLOCK_SECONDS = 5.0
"""How far two clocks of a cluster may be apart."""


@dataclass(frozen=True)
class Row:
    """The high-water of one (session, graph). `net`, `saved` and `lost` in device-nanoseconds:
    `saved - lost == net`, and neither of the last two ever falls. `baseline` and `stitched` are the
    last report's, in nanoseconds."""

    seq: int = -1
    steps: int = 0
    net: int = 0
    saved: int = 0
    lost: int = 0
    baseline: int = 0
    stitched: int = 0

    @property
    def charge(self) -> float:
        """The device time in which so much can be saved: steps more than twice as fast save more
        than they take, others at most as much."""
        gain = (self.baseline - self.stitched) / self.stitched if self.stitched else 0.0
        return self.saved / max(1.0, gain)


@dataclass(frozen=True)
class Report:
    """Totals as reported. `devices` is at most the pod's; `measured` False counts nothing. `bounds`
    is the interval of baseline less stitched."""

    seq: int
    steps: int
    baseline_ns: int
    stitched_ns: int
    lost_ns: int
    devices: float
    measured: bool
    bounds: tuple[int, int] | None = None


@dataclass(frozen=True)
class Claimed:
    """What other rows have claimed already, in device-nanoseconds: their charges and losses."""

    charge: float = 0.0
    lost: int = 0


@dataclass(frozen=True)
class Bounds:
    """How long the container and its pod have run, `ratio` the worker's measured original/stitched,
    `devices` the pod's; the other rows of the same session, and of the whole pod.

    A session ends with its container, so it is held against that one's time. Containers that were
    restarted before it had theirs: only the pod's time bounds them all.
    """

    container_ns: int
    pod_ns: int
    ratio: float
    devices: float
    session: Claimed = Claimed()
    pod: Claimed = Claimed()


def implausible(row: Row, report: Report, bounds: Bounds) -> str:
    """Why the report cannot be true; empty when it can."""
    clocks = int(CLOCK_SECONDS * 1e9)
    runtime = bounds.container_ns + clocks
    if report.stitched_ns > runtime or report.lost_ns > runtime:
        return "more time than the container has run"
    if report.stitched_ns == 0 and report.baseline_ns > 0:
        return "time saved in no time"
    if report.baseline_ns > report.stitched_ns * max(bounds.ratio, 1.0) * RATIO_SLACK:
        return "faster than the artifact was measured to be, by more than a quarter"
    made = _made(row, report, bounds.devices)
    if _beyond(made, bounds.session, runtime * bounds.devices):
        return "more device time than the container has had"
    if _beyond(made, bounds.pod, (bounds.pod_ns + clocks) * bounds.devices):
        return "more device time than the pod has had"
    return ""


def _beyond(row: Row, others: Claimed, most: float) -> bool:
    return row.charge + others.charge > most or row.lost + others.lost > most


def add(row: Row, report: Report, devices: float) -> Row:
    """The row afterwards; the same for an older or repeated report."""
    return row if report.seq <= row.seq else _made(row, report, devices)


def _made(row: Row, report: Report, devices: float) -> Row:
    used = min(report.devices, devices)
    difference = report.baseline_ns - report.stitched_ns if report.measured else 0
    net = round((difference - report.lost_ns) * used)
    change = net - row.net
    return Row(
        seq=report.seq,
        steps=max(row.steps, report.steps),
        net=net,
        saved=row.saved + max(change, 0),
        lost=row.lost + max(-change, 0),
        baseline=report.baseline_ns,
        stitched=report.stitched_ns,
    )
