"""The price of having a value again: passed on through memory, or computed a second time.

One price for stages of a row (row_values.py), and for phases and sections of a kernel
(schedule/sections.py, schedule/section_reuse.py). Which is quicker depends on what the kernel
lacks: arithmetic is hidden where memory binds, and transfers where arithmetic does, so both ways
are priced as what they add to the kernel's roofline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from stitchcore.hlo.ir.instruction import Instruction

WORTH = 0.8
"""Part of the time of computing again that passing on through memory may take: estimates are no
better than that, and scratch is memory that the job had for other things. Of CPU kernels of the
workloads those between this and 0.9 took 1.08 of the time (the median of 33) when they passed on.
"""


@dataclass(frozen=True)
class Way:
    """Seconds that having a value again takes, of memory and of arithmetic alone; they overlap.
    Nothing overlaps with `waiting`."""

    memory: float = 0.0
    compute: float = 0.0
    waiting: float = 0.0


@dataclass(frozen=True)
class Prices:
    """Seconds on a device: of `arithmetic`, once for each element; of a `transfer` of so many bytes
    that are part of so many; of one more phase; and `together`, of a kernel whose transfers and
    arithmetic alone take so long. These are `memory` and `compute` of the kernel priced. `groups`
    are tasks under way at once; rows of at most `near_row` elements are read again from registers
    or a core's cache."""

    arithmetic: Callable[[Iterable[Instruction]], float]
    transfer: Callable[[int, int], float]
    together: Callable[[float, float], float]
    phase: float
    memory: float
    compute: float
    groups: int
    near_row: int

    def added(self, way: Way) -> float:
        """Seconds by which the kernel takes longer."""
        before = self.together(self.memory, self.compute)
        after = self.together(self.memory + way.memory, self.compute + way.compute)
        return after - before + way.waiting

    def after(self, way: Way) -> Prices:
        """Prices in the kernel that goes this way."""
        return replace(self, memory=self.memory + way.memory, compute=self.compute + way.compute)


@dataclass(frozen=True)
class Choice:
    """A value that several phases or sections want: seconds that either way adds."""

    memory_seconds: float
    again_seconds: float

    @property
    def passes(self) -> bool:
        """Whether it is passed on through memory, which takes memory: a tie is not worth that."""
        return self.memory_seconds < WORTH * self.again_seconds

    def text(self, who: str) -> str:
        """What was chosen, for a person; `who` wants the value."""
        chosen = "stored to scratch" if self.passes else "computed again"
        return (
            f"{chosen} ({who}: scratch adds {self.memory_seconds * 1e6:.2f} µs, computing again "
            f"{self.again_seconds * 1e6:.2f} µs)"
        )


STORED = Choice(0.0, float("inf"))
"""Of what is not priced."""


def choose(prices: Prices, through_memory: Way, again: Way) -> Choice:
    """The quicker of two ways in the kernel priced; computing again where they are alike."""
    return Choice(prices.added(through_memory), prices.added(again))
