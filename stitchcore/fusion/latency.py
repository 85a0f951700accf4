"""The latency-evaluator: waves of warps times what one warp takes, for a GPU's arithmetic.

FusionStitching 2020 (arXiv 2009.10924, section 4.3): L = N_wave * L_warp, N_wave = N_warp /
Occupancy (warps resident on the whole device), L_warp = N_instruction * CPI with a CPI for each
class of instruction. Three things bound the cycles of a kernel here:

- the paper's product, over all values: warps of a value over resident warps, times the cycles of
  its instructions when each waits for the one before (lanes over resident threads is the same);
- what the multiprocessors can issue: CPI from published latencies says nothing of throughput, and
  with many warps resident that is what binds (the wave is not shorter than its instructions);
- one warp's critical path through the pattern, as a kernel has one wave at least, with one load
  from global memory that nothing hides for each phase.

How occupancy bounds the loads under way, and so the bandwidth, is occupancy.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stitchcore.device.occupancy import multiprocessor
from stitchcore.device.records import Device
from stitchcore.device.timing import Classes, Timing
from stitchcore.fusion.contraction import WARP_LANES, is_contraction, term_cycles
from stitchcore.fusion.extents import extent
from stitchcore.fusion.instructions import WARP_ROW, combining, counted, element
from stitchcore.hlo.ir import opcodes
from stitchcore.hlo.ir.instruction import Instruction

MOST_SERIAL = 512
"""Elements that one lane adds up of a reduction in parts, at most (schedule/limits.py)."""


NOTHING = Classes()


@dataclass(frozen=True, slots=True)
class Work:
    """Arithmetic that adds up over the instructions of a kernel. `flops` are simple operations,
    which is all that a CPU's record prices; `counts` are what the lanes of a GPU execute."""

    flops: int = 0
    counts: Classes = NOTHING

    def __add__(self, other: Work) -> Work:
        counts = self.counts
        if other.counts is not NOTHING:
            counts = other.counts if counts is NOTHING else counts + other.counts
        return Work(self.flops + other.flops, counts)


def work_of(
    instruction: Instruction, flops: int, device: Device, crosses: Callable[[Instruction], bool]
) -> Work:
    """The work of one instruction, each of its elements computed once."""
    if device.timing is None:
        return Work(flops)
    return Work(flops, counted(instruction, crosses))


def seconds(work: Work, device: Device, share: float = 1.0, path_cycles: float = 0.0) -> float:
    """What `work` takes all units of `device`. Of a GPU with a `share` of the threads it can hold;
    `path_cycles` are those of one warp's critical path: there is a wave at least."""
    timing = device.timing
    if timing is None:
        return work.flops / device.flops_per_second
    resident = multiprocessor(device.target).threads * device.units * share
    if not resident:
        return float("inf")
    waves = timing.chain(work.counts) / resident
    return max(timing.issue(work.counts) / device.units, waves, path_cycles) / timing.hertz


def critical_path(
    instructions: Sequence[Instruction], timing: Timing, crosses: Callable[[Instruction], bool]
) -> float:
    """Cycles of the dependent instructions on the longest path through `instructions`, which are in
    topological order: those of one element, of a reduction also what one lane adds up."""
    ends: dict[Instruction, float] = {}
    for value in instructions:
        before = max((ends.get(operand, 0.0) for operand in value.operands), default=0.0)
        ends[value] = before + _cycles(value, timing, crosses)
    return max(ends.values(), default=0.0)


def _cycles(value: Instruction, timing: Timing, crosses: Callable[[Instruction], bool]) -> float:
    per_element = timing.chain(element(value))
    if opcodes.record(value.opcode).kind != "reduce":
        return per_element
    row = extent(value.operands[0].shape.size) // max(extent(value.shape.size), 1)
    if is_contraction(value):
        return term_cycles(timing) * row
    if crosses(value):
        return per_element * min(row, MOST_SERIAL)
    lanes = WARP_LANES if row <= WARP_ROW else 8 * WARP_LANES
    return per_element * -(-row // lanes) + timing.chain(combining(row)) / lanes
