"""What runs of a program of the zoo say together: ratios, shares, the table that people read.

Pure: `speed.py` measures. Seconds are a run's median step; runs of all arms were made in turn, so
that figures of one position met the same machine, and ratios are of such pairs.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.ranking import kendall
from stitchcore.report.markup import seconds_text
from stitchcore.verify.timing import Ratio, paired_ratio

UNTOUCHED, XLA, STITCHED, CEILING = ARMS = ("untouched", "xla", "stitched", "ceiling")
SAVED_BAR, MEMORY_BAR = 0.75, 1.05
FEW = 6
"""Pairs below which the bootstrap's interval is all that was seen."""


@dataclass(frozen=True)
class Runs:
    """Timed runs of one program: `seconds`, `processor` seconds and `peaks` (bytes), by arm."""

    seconds: Mapping[str, Sequence[float]]
    processor: Mapping[str, Sequence[float]] = field(default_factory=dict)
    peaks: Mapping[str, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """One program. `seconds` are of a step, the median of an arm's runs, of which there were
    `pairs`; an arm that could not run is in `missing`, with why. `ratio`: how many times longer the
    better of TensorFlow and XLA takes than the stitched step; `processor_ratio` the same of
    processor seconds, whichever arm is the baseline by the clock. `way`: which share of the way
    from untouched to the ceiling was gone. `peak_ratio` is of the processes' peaks of resident
    memory, stitched over untouched. `steps` were timed in the shortest run, `training` says that
    variables were updated. `within` is original / stitched seconds of blocks of one run. `saved` is
    the share of saveable bytes, `left` why whole steps ran as they were, both at the end of the
    timed runs. `promised` seconds a step are what its regions saved where the worker timed each
    alone. `note`: why nothing was measured."""

    name: str
    pairs: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    ratio: Ratio | None = None
    processor_ratio: Ratio | None = None
    way: float | None = None
    peak_ratio: float | None = None
    missing: Mapping[str, str] = field(default_factory=dict)
    steps: int = 0
    training: bool = False
    within: Ratio | None = None
    saved: float = 0.0
    left: Mapping[str, int] = field(default_factory=dict)
    operations: int = 0
    launches: int = 0
    kernels: int = 0
    compile_seconds: float = 0.0
    promised: float = 0.0
    note: str = ""
    commit: str = ""
    machine: str = ""


# ---- figures of a row ----------------------------------------------------------------------------
def row(name: str, runs: Runs, **told: Any) -> Row:
    """The row of a program's runs, with what else is `told` of it."""
    seconds = {arm: statistics.median(of) for arm, of in runs.seconds.items() if of}
    better, ours = baseline(seconds), runs.seconds[STITCHED]
    before, after = (runs.processor.get(arm, ()) for arm in (better, STITCHED))
    return Row(
        name,
        len(ours),
        seconds,
        paired_ratio(runs.seconds[better], ours),
        paired_ratio(before, after) if after and len(before) == len(after) else None,
        _way(runs.seconds),
        _peak_ratio(runs.peaks),
        **told,
    )


def baseline(seconds: Mapping[str, float]) -> str:
    """The quicker one of TensorFlow and XLA."""
    return UNTOUCHED if seconds[UNTOUCHED] <= seconds.get(XLA, math.inf) else XLA


def _way(seconds: Mapping[str, Sequence[float]]) -> float | None:
    """None without a ceiling that lies below the untouched step in each pair of runs: then noise
    would be divided by noise."""
    plain, ours, least = (seconds.get(arm, ()) for arm in (UNTOUCHED, STITCHED, CEILING))
    if not least or paired_ratio(plain, least).low <= 1.0:
        return None
    before, after, ceiling = map(statistics.median, (plain, ours, least))
    return (before - after) / (before - ceiling)


def _peak_ratio(peaks: Mapping[str, Sequence[int]]) -> float | None:
    if not peaks.get(STITCHED) or not peaks.get(UNTOUCHED):
        return None
    before = statistics.median(peaks[UNTOUCHED])
    return statistics.median(peaks[STITCHED]) / before if before else None


def undecided(found: Ratio) -> bool:
    """Whether the interval has 1 in it."""
    return found.low <= 1.0 <= found.high


def break_even(row: Row) -> float | None:
    """Steps until compiling is won back from the untouched step; None where it never is."""
    before, after = row.seconds.get(UNTOUCHED), row.seconds.get(STITCHED)
    if before is None or after is None or after >= before:
        return None
    return row.compile_seconds / (before - after)


def promise(row: Row) -> float | None:
    """How many times longer the untouched step would take than the stitched one, were a step's
    operations as quick in it as alone. None where nothing was timed, or more than a whole step."""
    plain = row.seconds.get(UNTOUCHED)
    if plain is None or not 0.0 < row.promised < plain:
        return None
    return plain / (plain - row.promised)


def kept_promises(rows: Sequence[Row]) -> str:
    """How what regions save alone goes with what a step saves, over all rows that have both."""
    found = [
        (predicted, plain / ours)
        for row in rows
        if (predicted := promise(row)) is not None
        and (plain := row.seconds.get(UNTOUCHED)) is not None
        and (ours := row.seconds.get(STITCHED)) is not None
    ]
    if len(found) < 2:
        return ""
    predicted, measured = zip(*found, strict=True)
    short = statistics.median(after / before for before, after in found)
    return (
        f"- Promised by regions timed alone, and measured in the step, of {len(found)} programs: "
        f"Kendall's tau {kendall(predicted, measured):.2f}; measured over promised, median "
        f"{short:.2f}."
    )


def ordered(rows: Sequence[Row]) -> list[Row]:
    """From the greatest ratio to the least; what was not measured comes last, by name."""

    def place(row: Row) -> tuple[float, str]:
        return (-row.ratio.value if row.ratio else math.inf, row.name)

    return sorted(rows, key=place)


def geometric_mean(rows: Sequence[Row]) -> float | None:
    found = [row.ratio.value for row in rows if row.ratio is not None]
    return statistics.geometric_mean(found) if found else None


# ---- the table -----------------------------------------------------------------------------------
HEAD = (
    "program", "untouched ms", "XLA ms", "stitched ms", "against the better [95 %]",
    "its processor time", "within a run [95 %]", "promised", "saved of saveable bytes",
    "operations → launches (kernels)", "peak memory", "compiled in", "steps until won back",
    "ceiling ms", "way to the ceiling", "remarks",
)  # fmt: skip
READING = """\
Ratios above 1 mean that stitched is faster; **bold**: wholly below 1; ≈: the interval has 1 in it.
*Against the better*: the quicker one of TensorFlow and XLA (`*`) over stitched, whole processes.
*Its processor time*: the same of processor seconds a step, which other processes disturb less and
in which threads that wait in vain count. *Within a run*: original over stitched, blocks in turn in
one process with half of its steps original. *Promised*: untouched over stitched, were regions as
quick in the step as where the worker timed each alone. *Ceiling*: the step with all
memory-intensive operations free, launches that compute nothing in their place (`docs/speed.md`);
*way*: from untouched to there. *Peak memory*: of the process, stitched over untouched. *Steps until
won back*: compile seconds over what an untouched step takes longer."""


def text(rows: Sequence[Row], how: str) -> str:
    """The table, the best first, what the rows say together, and `how` it was measured."""
    shown = ordered(rows)
    lines = [f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|"]
    lines += [f"| {' | '.join(_cells(row))} |" for row in shown if row.pairs]
    notes = [f"- {row.name}: not measured: {row.note}" for row in shown if not row.pairs]
    return "\n".join([*lines, "", *together(rows), *notes, "", READING, how]) + "\n"


def _cells(row: Row) -> list[str]:
    found = row.ratio
    assert found is not None
    told = f"**{found}**" if found.high < 1.0 else f"{found}{' ≈' if undecided(found) else ''}"
    won = break_even(row)
    peak, promised = row.peak_ratio, promise(row)
    return [
        row.name,
        _milliseconds(row, UNTOUCHED),
        _milliseconds(row, XLA) + (" *" if baseline(row.seconds) == XLA else ""),
        _milliseconds(row, STITCHED),
        told,
        str(row.processor_ratio or "-"),
        str(row.within or "-"),
        "-" if promised is None else f"{promised:.2f}",
        f"{row.saved:.0%}",
        f"{row.operations} → {row.launches} ({row.kernels})",
        "-" if peak is None else f"{peak:.3f}",
        seconds_text(row.compile_seconds),
        "never" if won is None else f"{won:,.0f}",
        _milliseconds(row, CEILING),
        "-" if row.way is None else f"{row.way:.0%}",
        _remarks(row),
    ]


def _milliseconds(row: Row, arm: str) -> str:
    seconds = row.seconds.get(arm)
    return "-" if seconds is None else f"{seconds * 1e3:.2f}"


def _remarks(row: Row) -> str:
    left = [f"{reason} in {count} of {row.pairs} runs" for reason, count in row.left.items()]
    missing = [f"no {arm}: {why}" for arm, why in row.missing.items()]
    kind = [] if row.training else ["inference"]
    return "; ".join([*kind, f"{row.steps} steps", *left, *missing])


def together(rows: Sequence[Row]) -> list[str]:
    """Of all rows, and of those that train: the mean, and the counts that bars are set for."""
    measured = [row for row in rows if row.pairs]
    parts = {"All": measured, "Training": [row for row in measured if row.training]}
    told = [_together(name, part) for name, part in parts.items() if part]
    return [*told, *filter(None, [limit(measured), kept_promises(measured)])]


def limit(rows: Sequence[Row]) -> str:
    """How far the ceilings are from the better of TensorFlow and XLA, and from TensorFlow, over all
    rows that train and have one: what a geometric mean of theirs can be without products of
    matrices of our own."""
    arms = [row.seconds for row in rows if row.training and row.seconds.get(CEILING)]
    if not arms:
        return ""
    better = statistics.geometric_mean(s[baseline(s)] / s[CEILING] for s in arms)
    plain = statistics.geometric_mean(s[UNTOUCHED] / s[CEILING] for s in arms)
    ours = statistics.geometric_mean(s[UNTOUCHED] / s[STITCHED] for s in arms)
    return (
        f"- Ceilings of {len(arms)} programs that train, geometric means of medians: {better:.3f} "
        f"against the better, {plain:.3f} against untouched; stitched against untouched {ours:.3f}."
    )


def _together(name: str, rows: Sequence[Row]) -> str:
    ratios = [row.ratio for row in rows if row.ratio is not None]
    ways = [row.way for row in rows if row.way is not None]
    peaks = [(peak, row.name) for row in rows if (peak := row.peak_ratio) is not None]
    saved = sum(row.saved >= SAVED_BAR for row in rows)
    high = sum(peak > MEMORY_BAR for peak, _ in peaks)
    median = f"{statistics.median(ways):.0%} of {len(ways)}" if ways else "unknown"
    worst = "unknown" if not peaks else f"{max(peaks)[0]:.3f} ({max(peaks)[1]})"
    below = sum(found.high < 1.0 for found in ratios)
    above = sum(found.low > 1.0 for found in ratios)
    return (
        f"- {name}, {len(rows)} programs: geometric mean {geometric_mean(rows):.3f}; intervals "
        f"wholly above 1: {above}, with 1 in them: {len(ratios) - above - below}, wholly below: "
        f"{below}; {SAVED_BAR:.0%} of saveable bytes or more saved in {saved}; median way to the "
        f"ceiling {median}; worst peak memory {worst}, above {MEMORY_BAR} in {high}."
    )


def how(rows: Sequence[Row], processors: int) -> str:
    """How the rows were measured, for the table's foot."""
    measured = [row for row in rows if row.pairs]
    pairs = sorted({row.pairs for row in measured})
    said = "-".join(str(count) for count in dict.fromkeys((pairs[0], pairs[-1]))) if pairs else "0"
    commits = Counter(row.commit for row in measured)
    of = ", ".join(f"{commit} ({count})" for commit, count in commits.items())
    few = pairs[0] if pairs and pairs[0] < FEW else 0
    extremes = (
        f" (of {few} pairs: from the least to the greatest ratio, which holds the median in "
        f"{1 - 2.0 ** (1 - few):.0%} of cases)"
    )
    return (
        f"Fresh processes in turn (untouched, XLA, stitched, ceiling, and again), {said} of each, "
        f"all on the same {processors} processors, their threads left to Linux; a run's figure is "
        "the median of the later half of its steps, an interval the bootstrap's over pairs of "
        f"runs{extremes if few else ''}. Rows by commit: {of or 'none'}."
    )
