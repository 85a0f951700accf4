"""What instructions cost on a GPU: cycles per instruction by class, for each architecture.

FusionStitching 2020's latency-evaluator takes cycles per instruction (CPI) from published
microbenchmarks; these are for today's devices. Two figures a class:

`cpi`, cycles until a dependent instruction of the same warp can go on. float32 and integer: 4, from
Volta on (Jia et al. 2018, arXiv 1804.06826; Abdelkhalik et al. 2022, arXiv 2208.11174, with 4 when
dependent). Special functions 21, float64 8 (64 where there are two lanes): the latencies of
Accel-Sim's tested configurations. Shared memory 19, 23, 29, 30 (Jia; Abdelkhalik; Luo et al. 2024,
arXiv 2402.13499); a shuffle goes through the same unit and is taken to cost as much, a barrier
22 (Zhang et al. 2020, for Volta). Loads from global memory: 460 (V100), 636 (RTX 4090), 690 (GH200)
and 860 (B200) as markdewing/AI_kernels measured (its folder latency); 466 (A100) after Luo et al.;
for sm_86, of which none is known to us, the A100's.

`lanes`, results per cycle of a multiprocessor: CUDA C++ Programming Guide, "Throughput of Native
Arithmetic Instructions" (5.4.1 of version 12); shared memory and gathered loads: 32 banks, 32
lanes. Clocks are boost clocks of the vendors' data sheets.

Read where they are cited: markdewing's and Accel-Sim's figures and the Guide's table of throughput.
Those of Jia, Abdelkhalik, Luo and Zhang are cited from memory and want checking; a table that was
read (PMC10448217, table 3: V100 to H100) has 4 cycles for arithmetic, 20 for shared memory and 400
for global memory. Nothing here was measured by this project: no GPU was there. `stitch calibrate`
fits `lanes` to one.
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
        return Classes(*(factor * one for one in self.figures))

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


NAMES: tuple[str, ...] = tuple(one.name for one in fields(Classes))


@dataclass(frozen=True)
class Timing:
    """`hertz` of a multiprocessor; `cpi` and `lanes` by class, see the module's text."""

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


def _cpi(float64: float, shared: float, memory: float) -> Classes:
    return Classes(4, 4, 21, float64, shared, shared, 22, memory)


def _lanes(float32: float, float64: float) -> Classes:
    return Classes(float32, 64, 16, float64, 32, 32, 16, 32)


TIMINGS: Mapping[str, Timing] = {
    "sm_70": Timing(1.53e9, _cpi(8, 19, 460), _lanes(64, 32)),
    "sm_80": Timing(1.41e9, _cpi(8, 23, 466), _lanes(64, 32)),
    "sm_86": Timing(1.695e9, _cpi(64, 23, 466), _lanes(128, 2)),
    "sm_89": Timing(2.04e9, _cpi(64, 30, 636), _lanes(128, 2)),
    "sm_90": Timing(1.98e9, _cpi(8, 29, 690), _lanes(128, 64)),
    "sm_100": Timing(1.965e9, _cpi(8, 29, 860), _lanes(128, 64)),
}
"""By target: V100, A100, A10, L4, H100 and H200, B200."""


def timing_of(found: Mapping[str, object]) -> Timing:
    """A Timing from what `dataclasses.asdict` made of one. Raises KeyError, TypeError, ValueError
    for anything else, lanes of 0 among it."""
    sides = []
    for side in ("cpi", "lanes"):
        given = found[side]
        if not isinstance(given, Mapping):
            raise TypeError(f"{side} is no object")
        sides.append(Classes(*(float(given[name]) for name in NAMES)))
    hertz = float(str(found["hertz"]))
    if hertz <= 0 or min(sides[1].figures) <= 0:
        raise ValueError("clocks and lanes are more than 0")
    return Timing(hertz, *sides)
