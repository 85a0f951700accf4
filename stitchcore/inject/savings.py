"""What stitching has saved: pairs of original and stitched steps of one job, and their interval.

Random blocks of calls keep running the original all job long. Each is paired with as many stitched
calls around it, half before and half after, so that what drifts slowly (a slow first epoch, a busy
neighbour) cancels; calls beside a switch are in neither (timer.py says why). A call is a step, or
several where the job loops over steps in a graph: what passes between two calls is then in each of
them alike. If both arms are equally fast, a pair's two means are exchangeable, so their difference
is symmetric about zero whatever the distribution of steps: a median of differences and the sign
test's interval need no assumption about outliers. A pair weighs as much as the stitched steps it
stands for; the interval of a weighted median takes the ranks that as many equal pairs would have as
the weights are worth (Kish 1965, section 8.2: n = (sum w)^2 / sum w^2). Times are in nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import List, NamedTuple, Optional, Sequence, Tuple

from . import timer
from .plugin import Interval

MINIMUM_PAIRS = 6.0  # below it there is no 95 % interval (timer.interval_rank)
KEPT_PAIRS = 4096
ORIGINAL, STITCHED = 0, 1


class Pair(NamedTuple):
    """Means of a step, the stitched steps that the pair stands for, and what the switches cost."""

    original: float
    stitched: float
    weight: float
    switching: float  # excess of the four calls beside both switches over the pair's means
    pairs: int = 1  # the pairs that were merged into it: each of them switched


class Block(NamedTuple):
    """A finished block: its arm, the nanoseconds of a step of each call, and a call's steps."""

    arm: int
    times: Tuple[int, ...]
    each: float = 1.0

    @property
    def steps(self) -> float:
        return len(self.times) * self.each


@dataclass
class Record:
    """One step's pairs so far; `advance` grows it. `open` holds the intervals of the last block."""

    pairs: List[Pair] = field(default_factory=list)
    blocks: List[Block] = field(default_factory=list)  # the last three at most
    open: List[Interval] = field(default_factory=list)
    skip: int = 1  # the first pair has the first stitched steps in it: warm-up


@dataclass(frozen=True)
class Saved:
    """Totals. `low` and `high` bound `saved` at 95 %; both are None with too few pairs, and then
    nothing counts as saved."""

    steps: int
    pairs: int
    stitched: float
    saved: float
    low: Optional[float]
    high: Optional[float]
    lost: float

    @property
    def measured(self) -> bool:
        return self.low is not None


def pair_of(before: Block, canary: Block, after: Block) -> Optional[Pair]:
    """The pair of an original block between two stitched ones; None where one is too short.

    Of the n calls of the original between its first and its last, n rounded down to an even number,
    as many are compared of the stitched ones: the last n/2 before and the first n/2 after, without
    those beside a switch. Both means then lie around the same moment.
    """
    half = min(len(canary.times) - 2, 2 * (len(before.times) - 2), 2 * (len(after.times) - 2)) // 2
    if half < 1:
        return None
    originals = canary.times[1 : 1 + 2 * half]
    stitched = before.times[-1 - half : -1] + after.times[1 : 1 + half]
    original, other = sum(originals) / len(originals), sum(stitched) / len(stitched)
    switching = (canary.times[0] + canary.times[-1] - 2 * original) * canary.each
    switching += (before.times[-1] - other) * before.each + (after.times[0] - other) * after.each
    weight = (before.steps + after.steps) / 2
    return Pair(original, other, weight, switching)


def advance(record: Record, fresh: Sequence[Interval]) -> None:
    """Takes in intervals; blocks that they finish make pairs. Gaps (overwritten ones) are harmless:
    a block with a gap is only shorter."""
    for interval in fresh:
        if record.open and record.open[-1].block != interval.block:
            _close(record)
        record.open.append(interval)


def _close(record: Record) -> None:
    each = sum(interval.steps for interval in record.open) / len(record.open)
    block = Block(record.open[0].arm, tuple(interval.nanoseconds for interval in record.open), each)
    record.open = []
    record.blocks = [*record.blocks[-2:], block]
    arms = [interval.arm for interval in record.blocks]
    pair = pair_of(*record.blocks) if arms == [STITCHED, ORIGINAL, STITCHED] else None
    if pair is None:
        return
    if record.skip > 0:
        record.skip -= 1
        return
    record.pairs.append(pair)
    if len(record.pairs) > KEPT_PAIRS:
        odd = record.pairs[len(record.pairs) // 2 * 2 :]
        merged = [_merged(*two) for two in zip(record.pairs[::2], record.pairs[1::2])]
        record.pairs = merged + odd


def _merged(first: Pair, second: Pair) -> Pair:
    weight, pairs = first.weight + second.weight, first.pairs + second.pairs

    def mean(a: float, b: float) -> float:
        return (a * first.weight + b * second.weight) / weight

    return Pair(
        mean(first.original, second.original),
        mean(first.stitched, second.stitched),
        weight,
        (first.switching * first.pairs + second.switching * second.pairs) / pairs,
        pairs,
    )


def worth(weights: Sequence[float]) -> float:
    """How many pairs of equal weight these are worth."""
    total = sum(weights)
    return total * total / sum(w * w for w in weights) if total > 0 else 0.0


def quantile(values: Sequence[Tuple[float, float]], share: float) -> float:
    """The smallest of sorted (value, weight) at which `share` of all weight is reached."""
    limit, reached = share * sum(weight for _, weight in values), 0.0
    for value, weight in values:
        reached += weight
        if reached >= limit * (1 - 1e-12):
            return value
    return values[-1][0]


def median(values: Sequence[Tuple[float, float]]) -> float:
    """Weighted median of (value, weight): the mean of the lower and the upper one."""
    ordered = sorted(values)
    mirrored = [(-value, weight) for value, weight in reversed(ordered)]
    return (quantile(ordered, 0.5) - quantile(mirrored, 0.5)) / 2


def interval(values: Sequence[Tuple[float, float]]) -> Optional[Tuple[float, float]]:
    """95 % interval of the weighted median; None below MINIMUM_PAIRS' worth."""
    count = int(worth([weight for _, weight in values]) + 1e-9)
    if count < MINIMUM_PAIRS:
        return None
    rank = timer.interval_rank(count)
    ordered = sorted(values)
    mirrored = [(-value, weight) for value, weight in reversed(ordered)]
    share = (rank - 0.5) / count  # the middle of the rank: whole numbers of equal weights hit it
    return quantile(ordered, share), -quantile(mirrored, share)


def total(record: Record, steps: int) -> Saved:
    """Totals over `steps` stitched steps."""
    if not record.pairs:
        return Saved(steps, 0, 0.0, 0.0, None, None, 0.0)
    differences = [(pair.original - pair.stitched, pair.weight) for pair in record.pairs]
    step = median([(pair.stitched, pair.weight) for pair in record.pairs])
    switching = median([(pair.switching, float(pair.pairs)) for pair in record.pairs])
    pairs = sum(pair.pairs for pair in record.pairs)
    lost = max(0.0, switching) * pairs
    limits = interval(differences)
    if limits is None:
        return Saved(steps, pairs, steps * step, 0.0, None, None, lost)
    low, high = steps * limits[0], steps * limits[1]
    saved = steps * median(differences)
    return Saved(steps, pairs, steps * step, saved, low, high, lost)


def summed(parts: Sequence[Saved]) -> Saved:
    """Of several callers of one graph. One that is unmeasured adds steps and saves nothing."""
    measured = [part for part in parts if part.low is not None and part.high is not None]
    return Saved(
        sum(part.steps for part in parts),
        sum(part.pairs for part in parts),
        sum(part.stitched for part in parts),
        sum(part.saved for part in measured),
        sum(part.low or 0.0 for part in measured) if measured else None,
        sum(part.high or 0.0 for part in measured) if measured else None,
        sum(part.lost for part in parts),
    )


def block_length(stitched_calls: int, least: int, most: int) -> int:
    """Calls of the next stitched blocks: a tenth of those so far, so that the pairs stay worth some
    twenty equal ones (a geometric row), up to what the control share asks for."""
    return max(least, min(most, stitched_calls // 10))
