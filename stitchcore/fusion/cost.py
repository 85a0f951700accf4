"""What a pattern costs as one kernel, and what its instructions cost one by one.

A roofline with the terms that decide fusion: off-chip bytes (each input and output once, inputs
larger than the cache once more for every phase that needs them), arithmetic from the opcode
records, launches and phases. On a GPU arithmetic is the latency-evaluator's (latency.py), with what
is computed again at a broadcast as often as it is, and three terms more: the threads that registers
and shared memory leave no room for (occupancy.py), spilled registers, and the code that every
multiprocessor reads. Everything is taken at nominal extents for symbolic dimensions
(candidates.NOMINAL_EXTENT). Coefficients are the device record's.

Whether a value is found in the cache depends on the value alone and never on the kernel that reads
it: else a planner would cut kernels to the size of the cache and save nothing but by the estimate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from stitchcore.device.records import Device
from stitchcore.fusion import latency, occupancy, row_values
from stitchcore.fusion.candidates import VIEWS, byte_size, reduces_rows
from stitchcore.fusion.contraction import is_contraction
from stitchcore.fusion.extents import extent
from stitchcore.fusion.instructions import LOOKED_UP, counted, element, repetitions, turns
from stitchcore.fusion.latency import Work
from stitchcore.fusion.pattern import Estimate, Pattern
from stitchcore.fusion.reuse import Prices
from stitchcore.hlo.ir import opcodes
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.hlo.ir.shape import DTYPES

ROW_OPERATIONS = 400
"""What reducing one row costs beside its elements, in simple operations: lanes come together, and
what follows waits for them."""

INDEX_OPERATIONS = 20
"""What finding the row of one index of a scatter costs beside the row's elements, likewise: these
are few to a vector, and stores wait for loads."""

TURNED_OPERATIONS = 16
"""What an element costs that is read or written across the rows of memory, in simple operations: it
is moved alone, not in a vector. Transposes of 0.06 to 4 million elements, less what copies take."""

SQUARE_OPERATIONS = 4
"""The same where squares of elements are turned in registers (codegen/c_turned_rows.py)."""

SQUARE, SQUARE_BYTES = 16, (2, 4, 8)
"""Elements of a square's side, and bytes of one of them."""

CHOSEN = (opcodes.PAD, opcodes.CONCATENATE, opcodes.REVERSE)
"""What has elements from here or there: loops over them are no vectors."""

SCALAR_LIMIT = 1024
"""Values up to this many bytes stay in registers or L1: their traffic is not counted."""

CODE_BYTES = 16
"""Of one instruction of a GPU from Volta on."""

IN_PLACE = ("update", "scatter")
"""Kinds of values that may be made where their first operand is."""

EMPTY = Estimate(0, 0, 0, 0, 0, 1.0, 0.0)


@dataclass(frozen=True)
class Terms:
    """What one kernel's seconds are made of; they add up. `transfers`: every input and output once;
    `rereads`: large inputs again in later phases, and what stages of long rows read again;
    `arithmetic`: what of it memory does not hide; `recomputed`: what of that is only because
    stages of long rows compute values again and, of a GPU, because of where broadcasts are read; of
    a GPU also `overhead`: spilled registers and code."""

    transfers: float
    rereads: float
    arithmetic: float
    launch: float
    phases: float
    recomputed: float = 0.0
    overhead: float = 0.0


@lru_cache(maxsize=65536)
def cost(pattern: Pattern, device: Device) -> Estimate:
    """The estimate of `pattern` as one kernel on `device`."""
    traffic = _traffic(pattern, device)
    residency = _residency(pattern, traffic.phases, device)
    rereads = traffic.rereads + rows_of(pattern, device).moved
    memory = (traffic.once + rereads) * residency.slowed
    compute = _compute(pattern, device, residency.share, traffic.phases, recomputed=True)
    seconds = kernel_seconds(memory, compute, traffic.phases, device)
    if device.timing is not None:
        seconds += _overhead(pattern, traffic.phases, device)
    flops = sum(map(work, pattern.instructions))
    return Estimate(
        traffic.bytes,
        flops,
        1,
        residency.registers,
        residency.shared_bytes,
        residency.share,
        seconds,
    )


def terms(pattern: Pattern, device: Device) -> Terms:
    """The parts of `cost(pattern, device).seconds`: what each adds to those before it."""
    traffic = _traffic(pattern, device)
    residency = _residency(pattern, traffic.phases, device)
    rereads = traffic.rereads + rows_of(pattern, device).moved
    once, memory = (
        traffic.once * residency.slowed,
        (traffic.once + rereads) * residency.slowed,
    )
    least, recomputed = (
        _compute(pattern, device, residency.share, traffic.phases, repeats)
        for repeats in (False, True)
    )
    steps = [
        kernel_seconds(once, 0.0, 1, device),
        kernel_seconds(memory, 0.0, 1, device),
        kernel_seconds(memory, least, 1, device),
        kernel_seconds(memory, recomputed, 1, device),
        kernel_seconds(memory, recomputed, traffic.phases, device),
    ]
    return Terms(
        transfers=steps[0] - device.launch_seconds,
        rereads=steps[1] - steps[0],
        arithmetic=steps[2] - steps[1],
        launch=device.launch_seconds,
        phases=steps[4] - steps[3],
        recomputed=steps[3] - steps[2],
        overhead=0.0 if device.timing is None else _overhead(pattern, traffic.phases, device),
    )


@dataclass(frozen=True)
class _Residency:
    """What a thread and a block of a kernel hold, the share of a device's threads that are resident
    so, and how much longer transfers take for it."""

    registers: int
    shared_bytes: int
    share: float
    slowed: float


def _residency(pattern: Pattern, phases: int, device: Device) -> _Residency:
    registers = occupancy.registers(pattern, phases, device)
    shared = 0 if device.kind == "cpu" else rows_of(pattern, device).held_bytes
    share = occupancy.occupancy(registers, shared, device)
    return _Residency(registers, shared, share, occupancy.slowed(share, device))


def _compute(
    pattern: Pattern, device: Device, share: float, phases: int, recomputed: bool
) -> float:
    """Seconds of a kernel's arithmetic; without `recomputed` as if every value were computed once
    for each of its elements."""
    timing, instructions = device.timing, pattern.instructions
    again = rows_of(pattern, device).again if recomputed else Work()
    if timing is None:
        return (sum(map(work, instructions)) + again.flops) / device.flops_per_second
    executed = _executed(pattern, recomputed) + again
    path_cycles = (
        latency.critical_path(instructions, timing, crosses_tasks) + phases * timing.cpi.memory
    )
    return latency.seconds(executed, device, share, path_cycles)


@lru_cache(maxsize=65536)
def _executed(pattern: Pattern, recomputed: bool) -> Work:
    """What the lanes of a GPU execute for a kernel."""
    times = repetitions(pattern.instructions, pattern.outputs) if recomputed else {}
    counts = (
        (instruction, counted(instruction, crosses_tasks)) for instruction in pattern.instructions
    )
    parts = (classes.times(times.get(instruction, 1.0)) for instruction, classes in counts)
    return Work(0, sum(parts, latency.NOTHING))


@lru_cache(maxsize=262144)
def priced(instruction: Instruction, device: Device) -> Work:
    """The work of one instruction, each of its elements computed once."""
    return latency.work_of(instruction, work(instruction), device, crosses_tasks)


def arithmetic_seconds(instructions: Iterable[Instruction], device: Device) -> float:
    """What the instructions would add to a kernel that has nothing else to do."""
    return latency.seconds(
        sum((priced(instruction, device) for instruction in instructions), Work()), device
    )


def _overhead(pattern: Pattern, phases: int, device: Device) -> float:
    """Seconds of spilled registers and of code, which every multiprocessor reads through the L2
    cache."""
    count = sum(sum(element(instruction).figures) for instruction in pattern.instructions)
    spilled = occupancy.spilled_bytes(pattern, phases, device)
    moved = spilled + count * CODE_BYTES * device.units
    return moved / (device.bytes_per_second * device.cached_speedup)


@dataclass(frozen=True)
class _Traffic:
    """Off-chip bytes of one kernel, the seconds they take (the first time, and again in later
    phases), and the number of phases."""

    bytes: int
    once: float
    rereads: float
    phases: int


def _traffic(pattern: Pattern, device: Device) -> _Traffic:
    phases = _phases(pattern, device)
    users: dict[Instruction, list[Instruction]] = {}
    for instruction in pattern.instructions:
        for operand in instruction.operands:
            users.setdefault(operand, []).append(instruction)
    moved, once, rereads = 0, 0.0, 0.0
    for value in pattern.inputs:
        readers = users.get(value, [])
        size, whole = read_size(value, readers), byte_size(value.shape)
        times = len({phases[reader] for reader in readers}) if whole > device.cache_bytes else 1
        moved += size * times
        once += transfer(size, whole, device)
        rereads += transfer(size, whole, device) * (times - 1)
    for value in pattern.outputs:
        size, whole = _written(value, pattern, users), byte_size(value.shape)
        moved += size
        once += transfer(size, whole, device)
    return _Traffic(moved, once, rereads, 1 + max(phases.values(), default=0))


@dataclass(frozen=True)
class RowCosts:
    """What rows cost beside their elements: `held_bytes` of a task on chip and not in registers,
    seconds of transfers between stages, and what is computed `again`."""

    held_bytes: int
    moved: float
    again: Work


@lru_cache(maxsize=65536)
def rows_of(pattern: Pattern, device: Device) -> RowCosts:
    """What the rows of `pattern` cost as one kernel, which the scheduler makes so."""
    groups = row_values.of_pattern(pattern, _phases(pattern, device), crosses_tasks)
    if not groups:
        return RowCosts(0, 0.0, Work())
    held, moved, again = 0, 0.0, Work()
    prices = prices_of(pattern, device)
    for rows in groups:
        placement = row_values.place(rows, row_values.room(device), prices)
        for one in placement.demoted:
            again += sum([priced(part, device) for part in one.recomputed] * one.later, Work())
        held = max(held, row_values.held_bytes(rows, placement))
        moved += placement.moved
    return RowCosts(held, moved, again)


@lru_cache(maxsize=65536)
def prices_of(pattern: Pattern, device: Device) -> Prices:
    """What decides how the kernel of `pattern` has a value again."""
    traffic = _traffic(pattern, device)
    cpu = device.kind == "cpu"
    return Prices(
        arithmetic=partial(_computed_again, device=device),
        transfer=partial(transfer, device=device),
        together=partial(_overlapped, device=device),
        phase=device.phase_seconds,
        memory=traffic.once + traffic.rereads,
        compute=arithmetic_seconds(pattern.instructions, device),
        groups=device.units * (1 if cpu else row_values.GROUPS_HELD),
        near_row=row_values.CORE_ROW if cpu else row_values.REGISTER_ROW,
    )


def _computed_again(instructions: Iterable[Instruction], device: Device) -> float:
    """Seconds of arithmetic, and of what is chosen element by element: each is read alone."""
    computed = [*instructions]
    chosen = sum(extent(value.shape.size) for value in computed if value.opcode in CHOSEN)
    alone = Work(TURNED_OPERATIONS * chosen, LOOKED_UP.times(chosen))
    return arithmetic_seconds(computed, device) + latency.seconds(alone, device)


def transfer(touched: int, whole: int, device: Device) -> float:
    """Seconds to read or write `touched` bytes of a value of `whole` bytes."""
    speedup = device.cached_speedup if whole <= device.cache_bytes else 1.0
    return touched / (device.bytes_per_second * speedup)


def kernel_seconds(memory: float, compute: float, phases: int, device: Device) -> float:
    """One kernel of `phases` phases whose transfers alone take all units `memory` seconds, and its
    arithmetic alone `compute`.

    What one unit does within `inline_seconds` it does alone, and there no phase waits for another
    unit.
    """
    alone = _overlapped(memory / device.unit_share, compute * device.units, device)
    if alone <= device.inline_seconds:
        return device.launch_seconds + alone
    waiting = device.launch_seconds + (phases - 1) * device.phase_seconds
    return _overlapped(memory, compute, device) + waiting


def _overlapped(memory: float, compute: float, device: Device) -> float:
    return memory + compute - device.overlap * min(memory, compute)


def unfused(instructions: Iterable[Instruction], device: Device) -> Estimate:
    """Each of `instructions` its own kernel. Pass what a planner places (candidates.Role.PLACED):
    views and broadcasts that nobody needs in memory are free and not among them."""
    return total(single(instruction, device) for instruction in instructions)


@lru_cache(maxsize=262144)
def single(instruction: Instruction, device: Device) -> Estimate:
    """One instruction as a kernel that reads its operands (broadcasts at their bases' size)."""
    if opcodes.record(instruction.opcode).kind == "constant":
        return EMPTY
    pieces = transfers(instruction)
    memory = sum(transfer(touched, whole, device) for touched, whole in pieces)
    compute = _alone(instruction, device)
    seconds = kernel_seconds(memory, compute, 1, device)
    return Estimate(traffic(instruction), work(instruction), 1, 0, 0, 1.0, seconds)


def _alone(instruction: Instruction, device: Device) -> float:
    path_cycles = 0.0
    if device.timing is not None:
        chain_cycles = latency.critical_path([instruction], device.timing, crosses_tasks)
        path_cycles = chain_cycles + device.timing.cpi.memory
    executed = sum((priced(part, device) for part in _computed_with(instruction)), Work())
    return latency.seconds(executed, device, 1.0, path_cycles)


def _computed_with(instruction: Instruction) -> list[Instruction]:
    """`instruction` and what any kernel computes for it: of a matrix product written out the single
    products and the views that its factors are."""
    parts = [instruction]
    if is_contraction(instruction):
        parts += (product := instruction.operands[0],)
        for factor in product.operands:
            while opcodes.record(factor.opcode).kind == "movement" and len(factor.operands) == 1:
                parts.append(factor)
                factor = factor.operands[0]
    return parts


def traffic(instruction: Instruction) -> int:
    """Bytes that `instruction` alone reads and writes."""
    return sum(touched for touched, _ in transfers(instruction))


def transfers(instruction: Instruction) -> list[tuple[int, int]]:
    """What `instruction` alone reads and writes: bytes, and those of the value they are part of.

    A lookup reads as much of its table as it returns; an update in place reads and writes what it
    replaces or adds to, no more.
    """
    written = byte_size(instruction.shape)
    operands = instruction.operands
    sizes = [byte_size(operand.shape) for operand in operands]
    match instruction.opcode:
        case opcodes.GATHER | opcodes.DYNAMIC_SLICE:
            return [(written, written), (written, sizes[0]), *((size, size) for size in sizes[1:])]
        case opcodes.DYNAMIC_UPDATE_SLICE:
            return [(2 * sizes[1], sizes[0])]
        case opcodes.REDUCE if is_contraction(instruction):
            operands = instruction.operands[0].operands
        case opcodes.SCATTER if len(operands) == 3:
            fresh = written if operands[0].opcode == opcodes.BROADCAST else 0
            return [(sizes[1], sizes[1]), (3 * sizes[2], sizes[0]), (fresh, written)]
    bases = [_base_size(operand) for operand in dict.fromkeys(operands)]
    return [(size, size) for size in (written, *bases)]


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
    flops = opcodes.record(instruction.opcode).flops
    kind = opcodes.record(instruction.opcode).kind
    if kind == "scatter":
        updates, indices = instruction.operands[2].shape.size, instruction.operands[1].shape.size
        return flops * extent(updates) + INDEX_OPERATIONS * extent(indices)
    if kind != "reduce":
        return (flops + _turned_operations(instruction)) * extent(instruction.shape.size)
    by_lanes = crosses_tasks(instruction) or is_contraction(instruction)
    rows = 0 if by_lanes else extent(instruction.shape.size)
    return flops * extent(instruction.operands[0].shape.size) + ROW_OPERATIONS * rows


def _turned_operations(instruction: Instruction) -> int:
    """What an element of a transpose costs beside a copy's."""
    if not turns(instruction):
        return 0
    sides = [next(e for e in reversed(value.shape.dims) if e != 1) for value in
             (instruction, instruction.operands[0])]  # fmt: skip
    whole = all(extent(side) >= SQUARE for side in sides)
    squares = whole and DTYPES[instruction.shape.dtype].bytes in SQUARE_BYTES
    return SQUARE_OPERATIONS if squares else TURNED_OPERATIONS


def _base_size(value: Instruction) -> int:
    """Bytes behind a value that is only a larger picture of something smaller."""
    size = byte_size(value.shape)
    while value.opcode == opcodes.BROADCAST or value.opcode in VIEWS:
        value = value.operands[0]
        size = min(size, byte_size(value.shape))
    return size


def read_size(value: Instruction, readers: Sequence[Instruction]) -> int:
    """Bytes of an input that its readers touch: where all are slices or look up, only what they
    take."""
    size = byte_size(value.shape)
    if all(_takes_part(reader, value) for reader in readers):
        return min(size, sum(taken_size(reader) for reader in readers))
    return size


def written_size(value: Instruction) -> int:
    """Bytes that are stored of `value`: of an update in place only its window, of a scatter only
    rows that it names, which are read too."""
    match opcodes.record(value.opcode).kind:
        case "update":
            return byte_size(value.operands[1].shape)
        case "scatter":
            return min(2 * byte_size(value.operands[2].shape), byte_size(value.shape))
    return byte_size(value.shape)


def _written(
    value: Instruction, pattern: Pattern, users: Mapping[Instruction, Sequence[Instruction]]
) -> int:
    """Bytes that a kernel stores of its output: all of an update that cannot be in place, since its
    first operand is made in the kernel or read elsewhere."""
    if opcodes.record(value.opcode).kind in IN_PLACE:
        old = value.operands[0]
        if old not in pattern.inputs or read_size(old, users[old]) == byte_size(old.shape):
            return byte_size(value.shape)
    return written_size(value)


def taken_size(reader: Instruction) -> int:
    """Bytes that a reader takes of something it does not read whole: an update none."""
    return 0 if opcodes.record(reader.opcode).kind in IN_PLACE else byte_size(reader.shape)


def _takes_part(reader: Instruction, value: Instruction) -> bool:
    if opcodes.record(reader.opcode).kind in ("lookup", *IN_PLACE):
        return value not in reader.operands[1:]
    return reader.opcode == opcodes.SLICE


def _phases(pattern: Pattern, device: Device) -> Mapping[Instruction, int]:
    """The phase in which each instruction can first run: a reduction over anything but the
    innermost dimensions ends a phase for those that read it; on a GPU, where tasks are small, so
    does what a matrix product reads of other rows than its own."""
    ready: dict[Instruction, int] = {}
    first: dict[Instruction, int] = {}
    waiting = frozenset[Instruction]() if device.timing is None else _of_other_rows(pattern)
    for instruction in pattern.instructions:
        phase = max((ready.get(operand, 0) for operand in instruction.operands), default=0)
        first[instruction] = phase + (instruction in waiting)
        ready[instruction] = first[instruction] + crosses_tasks(instruction)
    return first


def _of_other_rows(pattern: Pattern) -> frozenset[Instruction]:
    """Factors of which a task reads what others compute in the kernel: right ones, and left ones
    that are turned on their way."""
    inside, found = frozenset(pattern.instructions), set[Instruction]()
    for value in filter(is_contraction, pattern.instructions):
        for number, factor in enumerate(value.operands[0].operands):
            source, others = factor.operands[0], number == 1
            while source in inside and opcodes.record(source.opcode).kind == "movement":
                others |= source.opcode == opcodes.TRANSPOSE
                source = source.operands[0]
            if others and source in inside and opcodes.record(source.opcode).kind != "constant":
                found.add(factor)
    return frozenset(found)


def crosses_tasks(instruction: Instruction) -> bool:
    """Whether what reads this reduction in the same kernel must wait for all tasks: it sums over
    more than the innermost dimensions of something that is not small, and is no matrix product."""
    if opcodes.record(instruction.opcode).kind in ("scatter", "scan"):
        return True
    if opcodes.record(instruction.opcode).kind != "reduce" or is_contraction(instruction):
        return False
    return byte_size(instruction.operands[0].shape) > SCALAR_LIMIT and not reduces_rows(instruction)
