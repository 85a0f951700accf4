"""The latency-evaluator of a scheduled kernel: which schedule a GPU runs quickest, by estimate.

FusionStitching 2020 (arXiv 2009.10924, section 4.3) enumerates schedules and launch dimensions and
takes the least L = N_wave * L_warp: waves of warps by occupancy, times instructions of one warp by
cycles per instruction. fusion/latency.py prices a pattern so, before there is a kernel; here the
statements of the loop IR are counted, by the same classes and prices (fusion/instructions.py,
device/timing.py). Of a phase, the longest of four:

- waves of blocks times the cycles of one task, whose instructions wait for each other; loads of one
  loop body are under way together, and those of UNROLLED iterations;
- one task's cycles: there is a wave at least;
- what the busiest multiprocessor has to issue;
- transfers: sectors of memory that lanes touch, at the bandwidth that so many lanes with so much
  under way reach (Little's law, as fusion/occupancy.py has it).

A ranking more than a prediction: it came within a fifth of what an H100 took for whole modules, and
within a factor of two for phases of few tasks (docs/gpu.md).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from stitchcore.codegen import cuda
from stitchcore.codegen.cuda_lanes import rows_together
from stitchcore.device.occupancy import blocks_per_multiprocessor, multiprocessor
from stitchcore.device.records import Device
from stitchcore.device.timing import Classes, Timing
from stitchcore.fusion import occupancy
from stitchcore.fusion.contraction import WARP_LANES
from stitchcore.fusion.cost import transfer
from stitchcore.fusion.instructions import applied, combined
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.loop_ir import index
from stitchcore.loop_ir.index import Binary, Index
from stitchcore.loop_ir.layout import bytes_of, flat_index, is_vector_access
from stitchcore.loop_ir.nodes import (
    Accumulate,
    Apply,
    Barrier,
    Buffer,
    Check,
    GatherIndex,
    If,
    Kernel,
    LaneReduce,
    Load,
    Loop,
    LoopKind,
    Phase,
    Role,
    Scope,
    Section,
    Statement,
)
from stitchcore.loop_ir.visitor import own_accesses, own_expressions, own_indices, statements
from stitchcore.schedule import register_pressure
from stitchcore.schedule.tiling import SYMBOL_SIZE

UNROLLED = 4
"""Iterations of a loop whose loads a compiler puts side by side."""

SECTOR = 32
"""Bytes that memory moves at least, on every GPU here."""

QUOTIENT_BY_CONSTANT = 4
"""Instructions of a quotient or remainder of an index: a multiplication and what corrects it."""

NOTHING = Classes()


@dataclass(frozen=True)
class PhaseSeconds:
    """Of one phase, what each of the four would take: `waves`, one `task`, `issue`, `transfers`."""

    waves: float = 0.0
    task: float = 0.0
    issue: float = 0.0
    transfers: float = 0.0

    @property
    def seconds(self) -> float:
        return max(self.waves, self.task, self.issue, self.transfers)


def seconds(
    kernel: Kernel, device: Device, bindings: Mapping[str, int] | None = None, held: int = 0
) -> float:
    """Estimated seconds of one launch on a GPU, of which a multiprocessor has `held` blocks (0: as
    many as the schedule's estimate of registers lets it). Symbols that `bindings` lack are taken
    for SYMBOL_SIZE. Infinite where not one block fits."""
    used, shared = register_pressure.registers(kernel), cuda.shared_bytes(kernel)
    held = held or blocks_per_multiprocessor(device.target, kernel.threads, used, shared)
    if not held:
        return math.inf
    taken = sum(phase.seconds for phase in phases(kernel, device, bindings, held))
    return device.launch_seconds + taken + device.phase_seconds * (len(kernel.phases) - 1)


def phases(
    kernel: Kernel, device: Device, bindings: Mapping[str, int] | None, held: int
) -> tuple[PhaseSeconds, ...]:
    """What each phase of `kernel` takes without launch and barriers; else as `seconds`."""
    timing = device.timing
    assert timing is not None, f"{device.target} has no prices of instructions"
    sizes = {**dict.fromkeys(kernel.symbols, SYMBOL_SIZE), **(bindings or {})}
    return tuple(_phase(phase, kernel, device, timing, sizes, held) for phase in kernel.phases)


def _phase(
    phase: Phase,
    kernel: Kernel,
    device: Device,
    timing: Timing,
    sizes: Mapping[str, int],
    held: int,
) -> PhaseSeconds:
    blocks = issued = latency = longest = under_way = 0.0
    moved: dict[Buffer, float] = defaultdict(float)
    for section in phase.sections:
        task = _Task(section, kernel.threads, timing, sizes)
        tasks = index.evaluate(section.tasks, sizes)
        own = index.evaluate(section.blocks(kernel.threads), sizes)
        blocks += own
        latency += own * task.cycles
        longest = max(longest, task.cycles) if tasks else longest
        issued += tasks * timing.issue(task.counts)
        for (buffer, _), count in task.moved.items():
            moved[buffer] += tasks * count
            under_way += tasks * count * task.under_way
    if not blocks:
        return PhaseSeconds()
    resident = held * device.units
    waves = math.ceil(blocks / resident)
    busiest = math.ceil(blocks / device.units) / blocks
    lanes = min(blocks, resident) * kernel.threads / device.units
    share = lanes / multiprocessor(device.target).threads
    total = sum(moved.values())
    run = under_way / total / occupancy.RUN_BYTES if total else 1.0
    transfers = sum(
        transfer(round(count), index.evaluate(bytes_of(buffer), sizes), device)
        for buffer, count in moved.items()
    )
    return PhaseSeconds(
        waves * latency / blocks / timing.hertz,
        longest / timing.hertz,
        issued * busiest / timing.hertz,
        transfers * occupancy.slowed(share * run, device),
    )


@dataclass
class _Way:
    """Through a body once: cycles of instructions, and of loads that are under way together."""

    cycles: float = 0.0
    loading: float = 0.0

    def repeated(self, times: int, together: int) -> _Way:
        return _Way(times * self.cycles, -(-times // together) * self.loading)


@dataclass(frozen=True)
class _Inside:
    """Where a statement stands: first values of variables, its loops, how often a lane comes there,
    how many lanes execute it (whole warps), the lane loop that it is in, and how many `rows` load
    together."""

    first: Mapping[str, int]
    loops: tuple[tuple[str, int], ...]
    times: float
    lanes: float
    lane: Loop | None = None
    extent: int = 1
    rows: int = 1


@dataclass
class _Task:
    """One task: `cycles` of a warp on its way, `counts` of all its lanes, bytes `moved` of each row
    of a buffer, and how many bytes a lane has `under_way`."""

    section: Section
    threads: int
    timing: Timing
    sizes: Mapping[str, int]
    cycles: float = 0.0
    counts: Classes = NOTHING
    moved: dict[tuple[Buffer, Index], float] = field(default_factory=dict)
    under_way: float = float(occupancy.RUN_BYTES)

    def __post_init__(self) -> None:
        warp = self.section.scope is Scope.WARP
        self.lanes = WARP_LANES if warp else self.threads
        self.run = self.section.elements_per_lane
        self.loaded: list[tuple[float, float]] = []
        inside = _Inside({**self.sizes, self.section.variable: 0}, (), 1.0, float(self.lanes))
        way = self.walk(self.section.body, inside)
        self.cycles = way.cycles + way.loading
        if whole := sum(weight for weight, _ in self.loaded):
            self.under_way = sum(weight * size for weight, size in self.loaded) / whole

    def walk(self, body: Sequence[Statement], inside: _Inside) -> _Way:
        way = _Way()
        first = dict(inside.first)
        inside = replace(inside, first=first)
        for statement in body:
            match statement:
                case Loop(kind=LoopKind.LANES):
                    taken = self.lane_loop(statement, inside)
                    way.cycles += taken.cycles
                    if inside.rows > 1:
                        way.loading += taken.loading
                    else:
                        way.cycles += taken.loading
                case Loop():
                    way.cycles += self.serial_loop(statement, inside)
                case If():
                    self.own(statement, inside, way)
                    taken = self.walk(statement.body, inside)
                    way.cycles += taken.cycles
                    way.loading = max(way.loading, taken.loading)
                case _:
                    self.own(statement, inside, way)
                    if isinstance(statement, GatherIndex):
                        first[statement.variable] = 0
                        way.cycles, way.loading = way.cycles + way.loading, 0.0
        return way

    def lane_loop(self, loop: Loop, inside: _Inside) -> _Way:
        extent = self.extent(loop, inside)
        trips = -(-extent // (self.lanes * self.run))
        warps = -(-extent // (WARP_LANES * self.run))
        begin = index.evaluate(loop.begin, inside.first)
        within = replace(
            inside,
            first={**inside.first, loop.variable: begin},
            lanes=float(warps * WARP_LANES * self.run),
            lane=loop,
            extent=extent,
        )
        way = self.walk(loop.body, within)
        loads = [load for s in statements(loop.body) for load in own_accesses(s) if _reads(load)]
        if loads:
            size = sum(DTYPES[load.buffer.dtype].bytes for load in loads)
            together = self.run * max(min(trips, UNROLLED), inside.rows)
            self.loaded.append((inside.times * extent * size, size * together))
        return way.repeated(trips, UNROLLED)

    def serial_loop(self, loop: Loop, inside: _Inside) -> float:
        extent = self.extent(loop, inside)
        begin = index.evaluate(loop.begin, inside.first)
        within = replace(
            inside,
            first={**inside.first, loop.variable: begin},
            loops=(*inside.loops, (loop.variable, extent)),
            times=inside.times * extent,
        )
        if (
            inside.lane is None
            and (rows := rows_together(loop, self.lanes * self.run, self.run)) > 1
        ):
            way = self.walk(loop.body, replace(within, rows=rows)).repeated(extent, rows)
        else:
            meets = any(isinstance(s, LaneReduce | Barrier) for s in statements(loop.body))
            way = self.walk(loop.body, within).repeated(extent, 1 if meets else UNROLLED)
        return way.cycles + way.loading

    def extent(self, loop: Loop, inside: _Inside) -> int:
        begin, end = (index.evaluate(bound, inside.first) for bound in (loop.begin, loop.end))
        return max(end - begin, 0)

    def own(self, statement: Statement, inside: _Inside, way: _Way) -> None:
        """What a statement takes by itself, less the statements in it."""
        counts = self.executed(statement, inside)
        for access in own_accesses(statement):
            self.touch(access.buffer, access.indices, inside)
            if _reads(access):
                way.loading = max(way.loading, self.timing.cpi.memory)
        self.counts += counts.times(inside.times * inside.lanes)
        waits = replace(counts, memory=0.0)
        run = self.run if inside.lane is not None else 1
        way.cycles += self.timing.chain(waits) + (run - 1) * sum(waits.figures)

    def executed(self, statement: Statement, inside: _Inside) -> Classes:
        """Instructions of one element."""
        counts = NOTHING
        match statement:
            case LaneReduce(_, _, scope):
                return combined(1 if scope is Scope.WARP else self.threads // WARP_LANES)
            case Barrier(scope):
                return Classes(barrier=float(scope is Scope.GROUP))
            case Accumulate(scalar, reducer, _):
                counts += applied(reducer, scalar.dtype, scalar.dtype)
            case Check():
                counts += Classes(integer=2)
        for node in own_expressions(statement):
            if isinstance(node, Apply):
                operand = node.operands[0].dtype if node.operands else node.dtype
                counts += applied(node.opcode, operand, node.dtype)
            quotients = sum(map(_quotients, own_indices(node)))
            counts += Classes(integer=float(QUOTIENT_BY_CONSTANT * quotients))
        for access in own_accesses(statement):
            counts += self.accessed(access.buffer, access.indices, inside.lane)
        return counts

    def accessed(self, buffer: Buffer, indices: Sequence[Index], lane: Loop | None) -> Classes:
        if buffer.scope is Scope.LANE:
            return NOTHING
        if buffer.role is Role.LOCAL:
            return Classes(integer=1, shared=1)
        runs = lane is not None and is_vector_access(lane, buffer, indices, self.run)
        return Classes(integer=1, memory=1).times(1 / self.run if runs else 1.0)

    def touch(self, buffer: Buffer, indices: Sequence[Index], inside: _Inside) -> None:
        """Count bytes of memory: once a row, however many loops of the task read it."""
        if buffer.role is Role.LOCAL:
            return
        place = flat_index(buffer, indices)
        named = index.names(place)
        count = math.prod(extent for name, extent in inside.loops if name in named)
        size, lane = DTYPES[buffer.dtype].bytes, inside.lane
        moved = float(SECTOR)
        if lane is not None and lane.variable in named and inside.extent:
            begin = index.evaluate(lane.begin, inside.first)
            ends = (
                index.evaluate(place, {**inside.first, lane.variable: at})
                for at in (begin, begin + inside.extent - 1)
            )
            low, high = sorted(ends)
            stride = (high - low) / max(inside.extent - 1, 1)
            moved = max(inside.extent * min(stride * size, SECTOR), SECTOR)
            place = index.substitute(place, {lane.variable: index.Variable("a lane")})
        key = buffer, index.gather(place)
        self.moved[key] = max(self.moved.get(key, 0.0), count * moved)


def _reads(access: object) -> bool:
    return isinstance(access, Load) and access.buffer.role is not Role.LOCAL


def _quotients(node: Index) -> int:
    if not isinstance(node, Binary):
        return 0
    return (node.operator in ("//", "%")) + _quotients(node.left) + _quotients(node.right)
