"""Statistics of step intervals: medians, the ratio's interval, and what to do about it.

A block of stitched calls (mostly of a step each) is compared with the original block before it, so
that what slows the machine for a while slows both. A call is counted somewhere within its step, at
its beginning or its end, as the executor pleases, and not in both arms alike: what passes between
two calls of a block is a step's time wherever that is, but at a switch it may be one arm's, the
other's, both or nothing. So no interval at an end of a block counts, and no pause of the job's own.
The 95 % interval of the ratio's median is the sign test's: order statistics of the pairs, without
an assumption about their distribution. For six pairs it is [lowest, highest]; fewer have none. The
first pair is warm-up and the last block may still run, so blocks of three original and three or
four stitched calls need some 3 + 7 * 6.5 + 1 = 50 calls for a first verdict. Where stitched calls
run in two places in turn, they need 3 + 10 * 6.5 + 1 = 69 to choose one, whose pairs count in the
verdict.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from dataclasses import dataclass
from operator import attrgetter
from typing import Dict, List, Optional, Sequence, Tuple

from .plugin import Interval

MINIMUM_PAIRS = 6
ENOUGH_PAIRS = 60  # still undecided: what is not shown to be as fast goes
SLOWER = 1.02  # a step slower by more than this is rolled back, where no policy says otherwise
HOPELESS = 1.25  # four pairs beyond this and none below are proof enough
HOPELESS_PAIRS = 4
PAUSE = 3.0  # times the median original step: what takes longer is a pause
PAUSES_BY_CHANCE = 2  # so many more in stitched steps are none of their doing
PLACE_PAIRS = 4  # of steps in either of two places, to go on in the quicker one


@dataclass(frozen=True)
class Comparison:
    """The median original step in nanoseconds, the ratio stitched/original and its 95 % interval,
    which is [0, infinity] while there are too few pairs to tell."""

    pairs: int
    original: float
    ratio: float
    low: float
    high: float
    least: float  # the best pair

    @property
    def stitched(self) -> float:
        """By the ratio: a median of its own would tell of another speed-up where steps vary, for a
        pair is of one time, and the stitched blocks of a run are not."""
        return self.original * self.ratio


@functools.lru_cache(maxsize=None)
def interval_rank(count: int) -> int:
    """Which one from either end of so many values in order bounds the 95 % interval of their
    median (the sign test's): fewer lie below the median with a probability of 1/40 at most. 0:
    none does."""
    rank, ways, fewer = 0, 1, 1  # of the 2**count ways to lie below it or above
    while 40 * fewer <= 2**count:
        rank += 1
        ways = ways * (count - rank + 1) // rank
        fewer += ways
    return rank


def order_interval(values: Sequence[float]) -> Tuple[float, float]:
    """95 % interval of the median; infinite below six values."""
    ordered, rank = sorted(values), interval_rank(len(values))
    return (ordered[rank - 1], ordered[-rank]) if rank > 0 else (0.0, math.inf)


def blocks(intervals: Sequence[Interval]) -> List[Tuple[int, List[int]]]:
    """(arm, nanoseconds) of each block of intervals in the order of their recording; what lies at
    a switch is left out."""
    figures = []
    for _, block in itertools.groupby(intervals, attrgetter("block")):
        members = list(block)
        inner = [interval.nanoseconds for interval in members[:-1] if interval.position > 0]
        figures.append((members[0].arm, inner))
    return figures


def placed(intervals: Sequence[Interval], here: bool) -> List[Interval]:
    """Those of the stitched blocks that ran in the caller's thread, or of the others, where places
    take turns (native/timer.cc), with those of the original block before each."""
    pairs = ((interval, interval.block + (interval.arm == 0)) for interval in intervals)
    return [interval for interval, stitched in pairs if bool(stitched >> 1 & 1) == here]


def pause(figures: Sequence[Tuple[int, List[int]]]) -> float:
    """Above how many nanoseconds an interval of these blocks is a pause: what a job does between
    two calls now and then (an epoch's end, a checkpoint). It falls into either arm by chance, and
    into blocks of few calls as if these were slow. It takes PAUSE times the median original step,
    unless stitched steps do so more often."""
    times: Dict[int, List[int]] = {0: [], 1: []}
    for arm, block in figures:
        times[arm] += block
    if not times[0] or not times[1]:
        return math.inf
    limit = PAUSE * statistics.median(times[0])
    original, stitched = (sum(time > limit for time in times[arm]) for arm in (0, 1))
    often = stitched * len(times[0]) > (original + PAUSES_BY_CHANCE) * len(times[1])
    return math.inf if often else limit


def compare(
    intervals: Sequence[Interval], skip: int = 1, longest: Optional[float] = None
) -> Optional[Comparison]:
    """Pairs neighbouring blocks of both arms; the first `skip` stitched blocks are warm-up. What is
    longer than `longest` (by these intervals, if it is not given) is a pause."""
    figures = blocks(intervals)
    longest = pause(figures) if longest is None else longest
    counted = [(arm, [t for t in times if t <= longest]) for arm, times in figures]
    medians = [(arm, statistics.median(times)) for arm, times in counted if times]
    ratios, originals = [], []
    warm = skip
    for (arm, first), (next_arm, second) in zip(medians, medians[1:]):
        if arm != 0 or next_arm != 1:
            continue
        if warm > 0:
            warm -= 1
            continue
        ratios.append(second / first)
        originals.append(first)
    if not ratios:
        return None
    low, high = order_interval(ratios)
    return Comparison(len(ratios), statistics.median(originals), statistics.median(ratios),
                      low, high, min(ratios))  # fmt: skip


def verdict(comparison: Optional[Comparison], slower: float = SLOWER) -> Optional[bool]:
    """True: keep; False: roll back; None: not known yet. A ratio up to `slower` stays."""
    if comparison is None:
        return None
    if comparison.pairs >= HOPELESS_PAIRS and comparison.least > HOPELESS:
        return False
    if comparison.pairs < MINIMUM_PAIRS:
        return None
    if comparison.low > slower:
        return False
    if comparison.high < min(1.0, slower):
        return True
    return comparison.ratio <= slower if comparison.pairs >= ENOUGH_PAIRS else None
