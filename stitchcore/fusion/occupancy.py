"""How many threads of a pattern's kernel a GPU holds, before there is a kernel: registers, shared
memory, and what too few threads cost.

Registers by liveness and shared memory by lifetime, as FusionStitching 2020's latency-evaluator has
them (Zheng et al. 2020, sections 4.3 and 4.4), on a scale that compiled kernels gave.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

from stitchcore.device.occupancy import MULTIPROCESSORS, blocks_per_multiprocessor
from stitchcore.device.records import Device
from stitchcore.fusion.candidates import extent
from stitchcore.fusion.contraction import is_contraction
from stitchcore.fusion.instructions import KEPT_COST, lane_costs
from stitchcore.fusion.pattern import Pattern
from stitchcore.hlo.ir import opcodes
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.hlo.ir.shape import DTYPES

REGISTERS_BASE, REGISTERS_ROOT, REGISTERS_PHASES, MOST_REGISTERS = 30.0, 7.0, 21.0, 255
"""Registers of a GPU's thread: of any kernel, by the root of live values, of several phases. Least
squares over 935 patterns of the workloads that NVRTC 12.9 compiled for sm_90 (r = 0.65). Kernels
are known better: schedule/register_pressure.py."""

RUN_BYTES = 16
"""Of a load that a thread has under way: neighbours that it moves at once."""

REGISTER_ROW = 8192
"""Elements of a row that the lanes of a block keep in registers; a longer one is in shared memory
(schedule/limits.py: register_elements for each of 256 lanes)."""

BLOCKS_HELD = 4
"""A row that takes more shared memory than there is where a multiprocessor holds so many blocks is
not kept, but computed again (schedule/limits.py: local_bytes)."""

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


@lru_cache(maxsize=65536)
def rows_held(pattern: Pattern, largest: int, crosses: Callable[[Instruction], bool]) -> int:
    """Bytes of the rows of one task that wait for a reduction of theirs, at the most that live at
    once. Rows that fit the lanes' registers take none, rows of more than `largest` are not held."""
    sizes = {v: size for v, size in _long_rows(pattern, crosses).items() if size <= largest}
    if not sizes:
        return 0
    last = _last_uses(pattern)
    ends: dict[int, int] = {}
    live = most = 0
    for number, value in enumerate(pattern.instructions):
        if value in sizes:
            live += sizes[value]
            most = max(most, live)
            end = last.get(value, number)
            ends[end] = ends.get(end, 0) + sizes[value]
        live -= ends.pop(number, 0)
    return most


def shared_bytes(pattern: Pattern, device: Device, crosses: Callable[[Instruction], bool]) -> int:
    """Shared memory of a GPU's block: the rows that its task holds, as far as a block may have so
    much; the scheduler keeps what fits."""
    if device.kind == "cpu":
        return 0
    live = rows_held(pattern, device.group_bytes // BLOCKS_HELD, crosses)
    return min(live, device.group_bytes)


def _long_rows(pattern: Pattern, crosses: Callable[[Instruction], bool]) -> dict[Instruction, int]:
    """Bytes of one row of each value that is worth keeping and is read on both sides of a
    reduction of such rows, where the row is too long for registers."""
    costs = lane_costs(pattern.instructions)
    levels: dict[Instruction, int] = {}
    row = 0
    crossed: dict[Instruction, bool] = {}
    for value in pattern.instructions:
        record = opcodes.record(value.opcode)
        levels[value] = max((levels.get(operand, 0) for operand in value.operands), default=0)
        for operand in value.operands:
            if levels.get(operand, 0) < levels[value]:
                crossed[operand] = True
        if record.kind == "reduce" and not crosses(value) and not is_contraction(value):
            levels[value] += 1
            source = extent(value.operands[0].shape.size)
            row = max(row, source // max(extent(value.shape.size), 1))
    if row <= REGISTER_ROW:
        return {}
    return {
        value: row * DTYPES[value.shape.dtype].bytes
        for value in pattern.instructions
        if crossed.get(value)
        and opcodes.record(value.opcode).kind == "elementwise"
        and costs[value] >= KEPT_COST
        and extent(value.shape.size) >= row
    }


def occupancy(used: int, shared: int, device: Device) -> float:
    """Share of the threads of a GPU that are resident where each has `used` registers and each
    block `shared` bytes of shared memory; 0 where not one block fits."""
    if device.kind == "cpu":
        return 1.0
    blocks = blocks_per_multiprocessor(device.target, device.lanes, used, shared)
    return blocks * device.lanes / MULTIPROCESSORS[device.target].threads


def enough_threads(device: Device) -> float:
    """Share of a GPU's threads that keep its memory busy (Little's law): bandwidth times the
    latency of a load is what must be under way, and a thread has RUN_BYTES."""
    timing = device.timing
    if timing is None:
        return 0.0
    under_way = device.bytes_per_second / device.units / timing.hertz * timing.cpi.memory
    return min(under_way / RUN_BYTES / MULTIPROCESSORS[device.target].threads, 1.0)


def slowed(share: float, device: Device) -> float:
    """How much longer transfers take with a `share` of the threads that a device can hold."""
    return max(1.0, enough_threads(device) / share) if share else math.inf
