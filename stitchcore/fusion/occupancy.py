"""How many threads of a pattern's kernel a GPU holds, before there is a kernel, and what too few
threads cost. Registers are by liveness, as FusionStitching 2020's latency-evaluator has them (Zheng
et al. 2020, section 4.3), on a scale that compiled kernels gave; shared memory is row_values.py's.
"""

from __future__ import annotations

import math
from functools import lru_cache

from stitchcore.device.occupancy import blocks_per_multiprocessor, multiprocessor
from stitchcore.device.records import Device
from stitchcore.fusion.extents import extent
from stitchcore.fusion.pattern import Pattern
from stitchcore.hlo.ir.instruction import Instruction

REGISTERS_BASE, REGISTERS_ROOT, REGISTERS_PHASES, MOST_REGISTERS = 30.0, 7.0, 21.0, 255
"""Registers of a GPU's thread: of any kernel, by the root of live values, of several phases. Least
squares over 935 patterns of the workloads that NVRTC 12.9 compiled for sm_90 (r = 0.65). Kernels
are known better: schedule/register_pressure.py."""

RUN_BYTES = 16
"""Of a load that a thread has under way: neighbours that it moves at once."""

SPILLED_BYTES = 8
"""What a spilled register moves for an element: it is stored and loaded."""


@lru_cache(maxsize=65536)
def live(pattern: Pattern) -> int:
    """Live values of one lane, by last use in program order: an upper bound."""
    last = _last_uses(pattern)
    alive = peak = 0
    ends: dict[int, int] = {}
    for number, instruction in enumerate(pattern.instructions):
        if instruction.shape.size == 1:
            continue
        alive += 1
        peak = max(peak, alive)
        end = last.get(instruction, number)
        ends[end] = ends.get(end, 0) + 1
        alive -= ends.pop(number, 0)
    return peak


def _last_uses(pattern: Pattern) -> dict[Instruction, int]:
    last: dict[Instruction, int] = {}
    for number, instruction in enumerate(pattern.instructions):
        for operand in instruction.operands:
            last[operand] = number
    return last


def wanted_registers(pattern: Pattern, phases: int) -> float:
    """Registers that a thread of a GPU would have if there were enough."""
    root = REGISTERS_ROOT * math.sqrt(live(pattern))
    return REGISTERS_BASE + root + REGISTERS_PHASES * (phases > 1)


def registers(pattern: Pattern, phases: int, device: Device) -> int:
    """Live values of one lane; of a GPU the registers of a thread that these become."""
    if device.kind == "cpu":
        return live(pattern)
    return min(round(wanted_registers(pattern, phases)), MOST_REGISTERS)


def spilled_bytes(pattern: Pattern, phases: int, device: Device) -> int:
    """Bytes that registers beyond what a thread has move through the caches, in all."""
    if device.kind == "cpu":
        return 0
    words = round(wanted_registers(pattern, phases)) - MOST_REGISTERS
    if words <= 0:
        return 0
    return (
        words
        * SPILLED_BYTES
        * max(extent(instruction.shape.size) for instruction in pattern.instructions)
    )


def occupancy(used: int, shared: int, device: Device) -> float:
    """Share of the threads of a GPU that are resident where each has `used` registers and each
    block `shared` bytes of shared memory; 0 where not one block fits."""
    if device.kind == "cpu":
        return 1.0
    blocks = blocks_per_multiprocessor(device.target, device.lanes, used, shared)
    return blocks * device.lanes / multiprocessor(device.target).threads


def enough_threads(device: Device) -> float:
    """Share of a GPU's threads that keep its memory busy (Little's law): bandwidth times the
    latency of a load is what must be under way, and a thread has RUN_BYTES."""
    timing = device.timing
    if timing is None:
        return 0.0
    under_way = device.bytes_per_second / device.units / timing.hertz * timing.cpi.memory
    return min(under_way / RUN_BYTES / multiprocessor(device.target).threads, 1.0)


def slowed(share: float, device: Device) -> float:
    """How much longer transfers take with a `share` of the threads that a device can hold."""
    return max(1.0, enough_threads(device) / share) if share else math.inf
