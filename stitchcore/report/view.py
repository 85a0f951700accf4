"""What the page says, as one frozen value: a pure function of a Report, and of a Job.

Reports come from stores where others may have written: numbers out of range, edges to nowhere and
proofs of any shape are left out here, so that drawing never fails and nothing is made up.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stitchcore.inject.speedup import speedup_text
from stitchcore.report.job import Job, Measured
from stitchcore.report.markup import bytes_text, seconds_text
from stitchcore.report.reasons import meaning, mend
from stitchcore.report.schema import NO_KERNEL, Report, ReportKernel, ReportNode, ReportRegion

COSTLIEST = 3
"""Operations that are named of each reason."""
NAMED = 4
"""Opcodes that name a kernel's contents."""
SHAPING = frozenset(
    {"constant", "const", "broadcast", "broadcastto", "reshape", "identity", "noop", "iota"}
    | {"copy", "bitcast", "get-tuple-element", "tuple", "readvariableop", "shape", "pack"}
)
"""Opcodes, in small letters, that say little of what a kernel does."""
Interval = tuple[float, float, float]
"""Low, middle, high."""


@dataclass(frozen=True)
class Headline:
    """What was gained: a figure, what it is of, and how it is known."""

    value: str
    of: str
    how: str
    gained: bool | None


@dataclass(frozen=True)
class Point:
    """Predicted and measured seconds of a kernel or a region; `kernel` is its number, or none."""

    name: str
    predicted: float
    measured: float
    kernel: int = NO_KERNEL


@dataclass(frozen=True)
class ReasonRow:
    """A reason of the closed list, what it means, what can be done, and what it kept as it was:
    `operations` are those that move most bytes."""

    reason: str
    meaning: str
    mend: str
    count: int
    bytes: int
    operations: tuple[str, ...]


@dataclass(frozen=True)
class Page:
    """All of the page. `kernel_of[i]` is the kernel of node i, NO_KERNEL for one that is none;
    `contents` says in words what each kernel is made of."""

    report: Report
    headline: Headline
    inputs: tuple[tuple[int, ...], ...]
    kernel_of: tuple[int, ...]
    kernels: tuple[ReportKernel, ...]
    contents: tuple[str, ...]
    points: tuple[Point, ...]
    points_of: str
    reasons: tuple[ReasonRow, ...]
    job: Job | None = None
    measured: Measured | None = None


def view(report: Report, job: Job | None = None, measured: Measured | None = None) -> Page:
    """The page of `report`, with what `job` measured of all its steps, or of this one."""
    count = len(report.nodes)
    inputs = tuple(
        tuple(dict.fromkeys(u for u in node.inputs if 0 <= u < count and u != v))
        for v, node in enumerate(report.nodes)
    )
    known = range(len(report.kernels))
    points, of = _points(report)
    return Page(
        report,
        _title(report, job, measured),
        inputs,
        tuple(node.kernel if node.kernel in known else NO_KERNEL for node in report.nodes),
        report.kernels,
        _contents(report),
        points,
        of,
        reasons(report),
        job,
        measured,
    )


def number(value: Any) -> float | None:
    """A finite number that is not negative, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        finite = float(value)
    except OverflowError:
        return None
    return finite if math.isfinite(finite) and finite >= 0 else None


def interval(value: Any) -> Interval | None:
    """[low, middle, high] of a proof; None for anything else."""
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 3:
        return None
    numbers = [number(end) for end in value]
    low, middle, high = numbers
    if low is None or middle is None or high is None or not low <= middle <= high:
        return None
    return low, middle, high


def measured(region: ReportRegion, who: str) -> float | None:
    """Seconds that a contestant of a region's proof took."""
    seconds = region.proof.get("seconds")
    value = number(seconds.get(who)) if isinstance(seconds, Mapping) else None
    return value or None


def change(ratio: float) -> str:
    """After over before, as a change in percent."""
    return f"{ratio - 1:+.0%}".replace("-0%", "+0%").replace("-", "−").replace("%", " %")


# ---- the headline ------------------------------------------------------------------------------
def _title(report: Report, job: Job | None, measured: Measured | None) -> Headline:
    if job is not None:
        return _of_job(job)
    if measured is None:
        return _headline(report)
    if measured.speedup is None:
        why = measured.verdict[:1].upper() + measured.verdict[1:]
        return Headline("–", "no speed-up was measured", why, None)
    middle, low, high = measured.speedup
    before, after = seconds_text(measured.seconds_before), seconds_text(measured.seconds_after)
    gained = True if low > 1 else False if high < 1 else None
    helped = {True: "It helps", False: "It is slower", None: "Not shown to help"}[gained]
    how = f"{helped}: a step took {before} and takes {after}; both took turns in the job itself."
    of = f"speed-up of the whole step [{low:.3f}, {high:.3f}]"
    return Headline(speedup_text(middle), of, how, gained)


def _of_job(job: Job) -> Headline:
    unit = "core-seconds" if job.device == "cpu" else f"{job.device.upper()} seconds"
    costs = f"{job.saved:,.1f} saved, {job.lost:,.1f} lost, {job.spent:,.1f} spent on building"
    if job.low is None or job.high is None:
        how = f"{costs}. Too few steps were timed for an interval: savings count as zero."
    else:
        low, high = job.low - job.spent, job.high - job.spent
        how = f"{costs}. 95 % interval of the net: {low:,.1f} to {high:,.1f}."
    swapped = any(graph.swap == "ok" for graph in job.graphs)
    gained = job.net > 0 if swapped or job.saved or job.lost else None
    return Headline(f"{job.net:+,.1f}".replace("-", "−"), f"{unit} saved, net", how, gained)


def _headline(report: Report) -> Headline:
    """Measured where anything was; else the estimate, and that it is one."""
    timed = [
        (ratio, seconds)
        for region in report.regions
        if region.stitched
        and (ratio := interval(region.proof.get("ratio"))) is not None
        and (seconds := measured(region, "framework")) is not None
    ]
    stitched = sum(region.stitched for region in report.regions)
    if timed:
        whole = sum(seconds for _, seconds in timed)
        low, middle, high = (
            sum(ratio[end] * seconds for ratio, seconds in timed) / whole for end in range(3)
        )
        how = (
            f"Measured on the worker, {len(timed)} of {stitched} stitched regions, weighted by "
            "TensorFlow's time: time before over time after, with 95 % bounds. What a step gains "
            "as a whole is less, and the job measures it itself."
        )
        least, most = (1 / ratio if ratio else math.inf for ratio in (high, low))
        of = f"speed-up of the timed regions [{least:.3f}, {most:.3f}]"
        value = speedup_text(1 / middle if middle else math.inf)
        gained = True if high < 1 else False if low > 1 else None
        return Headline(value, of, how, gained)
    return _estimated(report)


def _estimated(report: Report) -> Headline:
    before, after = number(report.seconds_before), number(report.seconds_after)
    if not before or not after or not report.kernels:
        why = "Nothing was stitched: the reasons are below."
        return Headline("0", "kernels", why, None)
    timed = [kernel.measured_ns for kernel in report.kernels]
    how = "An estimate of the cost model, of one call; nothing was timed."
    if all(timed):
        how = (
            "An estimate of the cost model; what was there before was not timed. The kernels, "
            f"timed one by one: {sum(timed) / 1e6:.3g} ms, of {after * 1e3:.3g} ms estimated."
        )
    of = "speed-up of its memory-intensive part, estimated"
    return Headline(speedup_text(before / after), of, how, after < before)


def _contents(report: Report) -> tuple[str, ...]:
    """The opcodes that each kernel has most of, by number; those that only shape values last."""
    opcodes_of: list[Counter[str]] = [Counter() for _ in report.kernels]
    for node in report.nodes:
        if 0 <= node.kernel < len(opcodes_of):
            opcodes_of[node.kernel][node.op] += 1

    def words(counts: Counter[str]) -> str:
        order = sorted(counts, key=lambda op: (op.lower() in SHAPING, -counts[op], op))
        more = " …" if len(order) > NAMED else ""
        return ", ".join(order[:NAMED]) + more

    return tuple(words(counts) for counts in opcodes_of)


# ---- predicted and measured --------------------------------------------------------------------
def _points(report: Report) -> tuple[tuple[Point, ...], str]:
    """Kernels where they were timed, else regions."""
    kernels = tuple(
        Point(kernel.name, kernel.estimate_ns * 1e-9, kernel.measured_ns * 1e-9, position)
        for position, kernel in enumerate(report.kernels)
        if 0 < kernel.estimate_ns < 10**18 and 0 < kernel.measured_ns < 10**18
    )
    if kernels:
        return kernels, "kernel"
    regions: dict[str, Point] = {}
    for region in report.regions:
        predicted, measured_seconds = number(region.seconds_after), measured(region, "stitched")
        if region.stitched and predicted and measured_seconds:
            first = region.first_kernel if 0 <= region.first_kernel < len(report.kernels) else -1
            regions.setdefault(region.key, Point(region.name, predicted, measured_seconds, first))
    return tuple(regions.values()), "region"


# ---- why not -----------------------------------------------------------------------------------
def reasons(report: Report, costliest: int = COSTLIEST) -> tuple[ReasonRow, ...]:
    """What was left as it was, by reason, the most bytes first."""
    left: dict[str, list[ReportNode]] = defaultdict(list)
    for node in report.nodes:
        if node.reason:
            left[node.reason].append(node)
    counts = {reason: max(0, count) for reason, count in report.refusals.items()}
    counts |= {reason: len(nodes) for reason, nodes in left.items()}
    moved = {reason: sum(max(0, node.bytes) for node in left[reason]) for reason in counts}
    order = sorted(counts, key=lambda reason: (-moved[reason], -counts[reason], reason))
    return tuple(
        ReasonRow(
            *(reason, meaning(reason), mend(reason), counts[reason], moved[reason]),
            tuple(map(_left, sorted(left[reason], key=lambda node: -node.bytes)[:costliest])),
        )
        for reason in order
    )


def _left(node: ReportNode) -> str:
    moved = f", {bytes_text(node.bytes)}" if node.bytes > 0 else ""
    return f"{node.written or node.name} ({node.op}{moved})"
