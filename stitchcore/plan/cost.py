"""What a pattern costs as one kernel, and what its instructions cost one by one.

A roofline with the terms that decide fusion: off-chip bytes (each input and output once, inputs
larger than the cache once more for every phase that needs them), arithmetic from the opcode
records, launches and phases, and on a GPU the threads that registers leave no room for. Everything
is taken at nominal extents for symbolic dimensions (candidates.NOMINAL_EXTENT). Coefficients are
the device record's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache

from stitchcore.device.occupancy import MULTIPROCESSORS, blocks_per_multiprocessor
from stitchcore.device.records import Device
from stitchcore.hlo import opcodes
from stitchcore.hlo.instruction import Instruction
from stitchcore.plan.candidates import VIEWS, byte_size, extent
from stitchcore.plan.pattern import Estimate, Pattern

OVERLAP = 0.95
"""Share of the shorter of memory and arithmetic time that hides behind the longer."""

CACHE_SPEEDUP = 4.0
"""How much faster than off-chip memory traffic is that fits the cache."""

SCALAR_LIMIT = 1024
"""Values up to this many bytes stay in registers or L1: their traffic is not counted."""

REGISTERS_BASE, REGISTERS_ROOT, REGISTERS_PHASES, MOST_REGISTERS = 30.0, 7.0, 21.0, 255
"""Registers of a GPU's thread: of any kernel, by the root of live values, of several phases. Least
squares over 935 patterns of the workloads that NVRTC 12.9 compiled for sm_90 (r = 0.65). Kernels
are known better: schedule/pressure.py."""

ENOUGH_THREADS = 0.25
"""Share of a GPU's threads that keep its memory busy: bandwidth times latency is some 16 KB a
multiprocessor, and a thread has two or more loads of 16 bytes under way."""

EMPTY = Estimate(0, 0, 0, 0, 0, 1.0, 0.0)


@lru_cache(maxsize=65536)
def cost(pattern: Pattern, device: Device) -> Estimate:
    """The estimate of `pattern` as one kernel on `device`."""
    phases = _phases(pattern)
    users: dict[Instruction, list[Instruction]] = {}
    for instruction in pattern.instructions:
        for operand in instruction.operands:
            users.setdefault(operand, []).append(instruction)
    moved = 0
    for value in pattern.inputs:
        readers = users.get(value, [])
        size = _read_size(value, readers)
        large = size > device.cache_bytes
        moved += size * (len({phases[reader] for reader in readers}) if large else 1)
    moved += sum(byte_size(value.shape) for value in pattern.outputs)
    flops = sum(map(work, pattern.instructions))
    count = 1 + max(phases.values(), default=0)
    registers = _registers(pattern, count, device)
    share = _occupancy(registers, device)
    seconds = _seconds(moved, flops, device, share=share) + device.launch_seconds
    seconds += (count - 1) * device.phase_seconds
    return Estimate(moved, flops, 1, registers, 0, share, seconds)


def unfused(instructions: Iterable[Instruction], device: Device) -> Estimate:
    """Each of `instructions` its own kernel. Pass what a planner places (candidates.Role.PLACED):
    views and broadcasts that nobody needs in memory are free and not among them."""
    return total(single(instruction, device) for instruction in instructions)


def apart(instructions: Iterable[Instruction], device: Device, whole: Estimate) -> float:
    """Seconds of `instructions` each its own kernel, to hold against `whole`, one kernel of them.

    Memory is as fast for the parts as for the whole: where that does not find its inputs in the
    cache, a part that would fit the cache alone does not find its own there either.
    """
    cached = whole.bytes <= device.cache_bytes
    parts = (single(instruction, device) for instruction in instructions)
    return sum(
        _seconds(part.bytes, part.flops, device, cached) + part.launches * device.launch_seconds
        for part in parts
    )


@lru_cache(maxsize=262144)
def single(instruction: Instruction, device: Device) -> Estimate:
    """One instruction as a kernel that reads its operands (broadcasts at their bases' size)."""
    if opcodes.record(instruction.opcode).kind == "constant":
        return EMPTY
    moved = byte_size(instruction.shape)
    moved += sum(_base_size(operand) for operand in dict.fromkeys(instruction.operands))
    flops = work(instruction)
    seconds = _seconds(moved, flops, device) + device.launch_seconds
    return Estimate(moved, flops, 1, 0, 0, 1.0, seconds)


def total(estimates: Iterable[Estimate]) -> Estimate:
    """The sum of kernels that run one after the other."""
    sums = [0, 0, 0]
    seconds, registers = 0.0, 0
    for estimate in estimates:
        sums[0] += estimate.bytes
        sums[1] += estimate.flops
        sums[2] += estimate.launches
        registers = max(registers, estimate.registers)
        seconds += estimate.seconds
    return Estimate(sums[0], sums[1], sums[2], registers, 0, 1.0, seconds)


def work(instruction: Instruction) -> int:
    """Simple floating-point operations of one instruction."""
    record = opcodes.record(instruction.opcode)
    over = instruction.operands[0] if record.kind == "reduce" else instruction
    return record.flops * extent(over.shape.size)


def _base_size(value: Instruction) -> int:
    """Bytes behind a value that is only a larger picture of something smaller."""
    size = byte_size(value.shape)
    while value.opcode == opcodes.BROADCAST or value.opcode in VIEWS:
        value = value.operands[0]
        size = min(size, byte_size(value.shape))
    return size


def _read_size(value: Instruction, readers: list[Instruction]) -> int:
    """Bytes of an input that its readers touch: where all are slices, only what they cut out."""
    size = byte_size(value.shape)
    if all(reader.opcode == opcodes.SLICE for reader in readers):
        return min(size, sum(byte_size(reader.shape) for reader in readers))
    return size


def _seconds(
    moved: int, flops: int, device: Device, cached: bool | None = None, share: float = 1.0
) -> float:
    """Of so many bytes and operations; with a `share` of the threads that a device can hold."""
    bandwidth = device.bytes_per_second * min(1.0, share / ENOUGH_THREADS)
    if moved <= device.cache_bytes if cached is None else cached:
        bandwidth *= CACHE_SPEEDUP
    memory, compute = moved / bandwidth, flops / device.flops_per_second
    return memory + compute - OVERLAP * min(memory, compute)


def _phases(pattern: Pattern) -> Mapping[Instruction, int]:
    """The phase in which each instruction can first run: a reduction over anything but the
    innermost dimensions ends a phase for those that read it."""
    ready: dict[Instruction, int] = {}
    first: dict[Instruction, int] = {}
    for instruction in pattern.instructions:
        phase = max((ready.get(operand, 0) for operand in instruction.operands), default=0)
        first[instruction] = phase
        ready[instruction] = phase + _crosses_tasks(instruction)
    return first


def _crosses_tasks(instruction: Instruction) -> bool:
    if opcodes.record(instruction.opcode).kind != "reduce":
        return False
    source = instruction.operands[0].shape
    if byte_size(source) <= SCALAR_LIMIT:
        return False
    first = min(instruction["dimensions"], default=source.rank)
    kept = [axis for axis in range(source.rank) if axis not in instruction["dimensions"]]
    rows = any(extent(source.dims[axis]) > 1 for axis in kept)
    return not (rows and all(axis < first for axis in kept))


def _registers(pattern: Pattern, phases: int, device: Device) -> int:
    """Live values of one lane; of a GPU the registers of a thread that these become."""
    live = _live(pattern)
    if device.kind == "cpu":
        return live
    found = REGISTERS_BASE + REGISTERS_ROOT * math.sqrt(live) + REGISTERS_PHASES * (phases > 1)
    return min(round(found), MOST_REGISTERS)


def _occupancy(registers: int, device: Device) -> float:
    """Share of the threads of a GPU that are resident where each has so many registers."""
    if device.kind == "cpu":
        return 1.0
    blocks = blocks_per_multiprocessor(device.target, device.lanes, registers, 0)
    return blocks * device.lanes / MULTIPROCESSORS[device.target].threads


def _live(pattern: Pattern) -> int:
    """Live values of one lane, by last use in program order: an upper bound."""
    last: dict[Instruction, int] = {}
    for number, instruction in enumerate(pattern.instructions):
        for operand in instruction.operands:
            last[operand] = number
    live = peak = 0
    ends: dict[int, int] = {}
    for number, instruction in enumerate(pattern.instructions):
        if instruction.shape.size == 1:
            continue
        live += 1
        peak = max(peak, live)
        end = last.get(instruction, number)
        ends[end] = ends.get(end, 0) + 1
        live -= ends.pop(number, 0)
    return peak
