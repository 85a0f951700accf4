"""What instructions cost on a GPU: cycles per instruction by class, and how many run at once.

FusionStitching's latency-evaluator (Zheng et al. 2020, section 4.3) takes cycles per instruction
(CPI) from published microbenchmarks; gpus.py has those of each architecture, and says whose.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Classes:
    """One figure for each class of instructions: counts of one lane, cycles, or lanes a cycle.

    `special` are the multi-function unit's (reciprocal, square root, exponential, logarithm,
    conversions and rounding), `memory` loads and stores of single elements of global memory: runs
    of neighbours are the bandwidth's matter.
    """

    float32: float = 0.0
    integer: float = 0.0
    special: float = 0.0
    float64: float = 0.0
    shuffle: float = 0.0
    shared: float = 0.0
    barrier: float = 0.0
    memory: float = 0.0

    def __add__(self, other: Classes) -> Classes:
        return Classes(
            self.float32 + other.float32,
            self.integer + other.integer,
            self.special + other.special,
            self.float64 + other.float64,
            self.shuffle + other.shuffle,
            self.shared + other.shared,
            self.barrier + other.barrier,
            self.memory + other.memory,
        )

    def times(self, factor: float) -> Classes:
        """Every figure `factor` times."""
        return Classes(*(factor * figure for figure in self.figures))

    @property
    def figures(self) -> tuple[float, ...]:
        """In the order of the fields."""
        return (
            self.float32,
            self.integer,
            self.special,
            self.float64,
            self.shuffle,
            self.shared,
            self.barrier,
            self.memory,
        )


NAMES: tuple[str, ...] = tuple(field_.name for field_ in fields(Classes))


@dataclass(frozen=True)
class Timing:
    """`hertz` of a multiprocessor; by class `cpi`, cycles until a dependent instruction of the same
    warp can go on, and `lanes`, results of a multiprocessor in a cycle."""

    hertz: float
    cpi: Classes
    lanes: Classes

    def issue(self, counts: Classes) -> float:
        """Cycles for which lanes' instructions keep one multiprocessor busy, if it has warps
        enough: units of different classes work side by side, and DISPATCHED lanes begin a cycle."""
        pairs = zip(counts.figures, self.lanes.figures, strict=True)
        return max(sum(counts.figures) / DISPATCHED, *(count / lanes for count, lanes in pairs))

    def chain(self, counts: Classes) -> float:
        """Cycles of one warp whose instructions all wait for each other."""
        cpi = self.cpi
        return (
            counts.float32 * cpi.float32
            + counts.integer * cpi.integer
            + counts.special * cpi.special
            + counts.float64 * cpi.float64
            + counts.shuffle * cpi.shuffle
            + counts.shared * cpi.shared
            + counts.barrier * cpi.barrier
            + counts.memory * cpi.memory
        )


DISPATCHED = 128
"""Lanes whose instructions a multiprocessor starts in a cycle, from Volta on: four schedulers, each
with one instruction of one warp."""


def timing_of(record: Mapping[str, object]) -> Timing:
    """A Timing from what `dataclasses.asdict` made of one. Raises KeyError, TypeError, ValueError
    for anything else, lanes of 0 among it."""
    sides = []
    for side in ("cpi", "lanes"):
        figures = record[side]
        if not isinstance(figures, Mapping):
            raise TypeError(f"{side} is no object")
        sides.append(Classes(*(float(figures[name]) for name in NAMES)))
    hertz = float(str(record["hertz"]))
    if hertz <= 0 or min(sides[1].figures) <= 0:
        raise ValueError("clocks and lanes are more than 0")
    return Timing(hertz, *sides)
