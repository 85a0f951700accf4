"""What a pattern costs as one kernel, and what its instructions cost one by one.

A roofline with the terms that decide fusion: off-chip bytes (each input and output once, inputs
larger than the cache once more for every phase that needs them), arithmetic from the opcode
records, launches and phases. Everything is taken at nominal extents for symbolic dimensions
(candidates.NOMINAL_EXTENT). Coefficients are the device record's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

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
    seconds = _seconds(moved, flops, device) + device.launch_seconds
    seconds += (count - 1) * device.phase_seconds
    return Estimate(moved, flops, 1, _registers(pattern), 0, 1.0, seconds)


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
    moved = traffic(instruction)
    flops = work(instruction)
    seconds = _seconds(moved, flops, device) + device.launch_seconds
    return Estimate(moved, flops, 1, 0, 0, 1.0, seconds)


def traffic(instruction: Instruction) -> int:
    """Bytes that `instruction` alone reads and writes. A lookup reads as much of its table as it
    returns; an update in place reads and writes what it replaces or adds to, no more."""
    written = byte_size(instruction.shape)
    operands = instruction.operands
    match instruction.opcode:
        case opcodes.GATHER | opcodes.DYNAMIC_SLICE:
            return 2 * written + sum(byte_size(operand.shape) for operand in operands[1:])
        case opcodes.DYNAMIC_UPDATE_SLICE:
            return 2 * byte_size(operands[1].shape)
        case opcodes.SCATTER if len(operands) == 3:
            indices, updates = (byte_size(operand.shape) for operand in operands[1:])
            fresh = written if operands[0].opcode == opcodes.BROADCAST else 0
            return indices + 3 * updates + fresh
    return written + sum(_base_size(operand) for operand in dict.fromkeys(operands))


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
    """Bytes of an input that its readers touch: where all are slices or look up, only what they
    take."""
    size = byte_size(value.shape)
    if all(_takes_part(reader, value) for reader in readers):
        return min(size, sum(byte_size(reader.shape) for reader in readers))
    return size


def _takes_part(reader: Instruction, value: Instruction) -> bool:
    if opcodes.record(reader.opcode).kind == "lookup":
        return value not in reader.operands[1:]
    return reader.opcode == opcodes.SLICE


def _seconds(moved: int, flops: int, device: Device, cached: bool | None = None) -> float:
    bandwidth = device.bytes_per_second
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


def _registers(pattern: Pattern) -> int:
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
