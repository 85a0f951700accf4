"""Lane loops as CUDA C++: iterations distributed to threads in runs, what lanes keep in registers.

    for (int i = begin + st_lane * RUN; i < end; i += LANES * RUN)    with runs moved at once

A loop that touches buffers of the lanes' own is unrolled whole, so that each of their elements has
a register: its number is known to the compiler. Where a lane has several iterations with a serial
loop in them it takes some of them through that loop together: those of a matrix product's row share
what they load of the left factor, and their sums do not wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stitchcore.codegen import vector_access
from stitchcore.codegen.c_lane_tiles import cut, needs_tiles, spread, unrolled
from stitchcore.codegen.source import MEMORY_TYPES, Renderer, index_text, register_type
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.loop_ir import index
from stitchcore.loop_ir.index import Index
from stitchcore.loop_ir.layout import size_of
from stitchcore.loop_ir.nodes import (
    THREADS,
    Buffer,
    Load,
    Loop,
    LoopKind,
    Role,
    Scope,
    Statement,
    Store,
)
from stitchcore.loop_ir.visitor import accesses, loads

WARP = 32

TOGETHER = (4, 3, 2)
"""Iterations that a lane may take through a serial loop together: as many sums in registers."""

UNDER_WAY, MOST_PASSES = 32, 16
"""Words, and rows, that a lane loads before it needs the first, where it goes through rows."""

UNROLLED = 8
"""Terms of a long sum of products whose factors NVRTC is to load together. Left to itself it did so
with all 64, in 254 registers."""


class LaneLoops(Renderer):
    """A dialect's lane loops, loads and stores, for tasks of blocks of a kernel's `threads`."""

    def __init__(self) -> None:
        super().__init__()
        self.threads = THREADS
        self.scope, self.elements_per_lane = Scope.GROUP, 1
        self.guarded: tuple[Index, Index] | None = None
        self.constant: frozenset[Buffer] = frozenset()
        self.own_at = ""
        self.loaded: dict[vector_access.Place, str] = {}
        self.stored_later: dict[vector_access.Place, str] = {}

    def stride(self) -> int:
        """Iterations that all lanes of a task take at once."""
        return (WARP if self.scope is Scope.WARP else self.threads) * self.elements_per_lane

    def own_elements(self, buffer: Buffer) -> int:
        """Elements of a LANE buffer that one lane has."""
        return _runs(buffer, self.stride()) * self.elements_per_lane

    def steps(self, own: Sequence[Buffer]) -> int:
        """Runs that a lane has of the longest of its `own` buffers."""
        return max(_runs(buffer, self.stride()) for buffer in own)

    def lane_loop(self, loop: Loop) -> None:
        begin, end = (index.simplify(bound, self.ranges) for bound in (loop.begin, loop.end))
        self.strided_loop(replace(loop, begin=begin, end=end))

    def strided_loop(self, loop: Loop) -> None:
        if (together := self.together(loop)) > 1:
            self.lane_tiles(loop, together)
            return
        begin, end = index_text(loop.begin, 1), index_text(loop.end)
        several = self.elements_per_lane > 1
        first = f"{begin} + st_lane" + f" * {self.elements_per_lane}" * several
        own, guarded = _own(loop), (loop.begin, loop.end) == self.guarded
        if own:
            steps = self.steps(own)
            self.emit(f"ST_UNROLL({steps})")
            self.open(f"for (int st_step = 0; st_step < {steps}; st_step++)")
            step = f" + st_step * {self.stride()}" if steps > 1 else ""
            self.emit(f"const {self.index_type} {loop.variable} = {first}{step};")
            if not guarded:
                self.open(f"if ({loop.variable} < {end})")
        else:
            self.open(self.loop_head(loop.variable, first, end, str(self.stride())))
        self.bound(loop.variable, loop.begin, loop.end)
        self.in_lanes = True
        if several:
            self.own_at = f"st_step * {self.elements_per_lane} + st_at"
            self.vector_by_vector(loop, end, bool(own))
        else:
            self.own_at = "st_step"
            self.body(loop.body)
        self.in_lanes = False
        if own and not guarded:
            self.close()
        self.close()

    def together(self, loop: Loop) -> int:
        """Iterations of `loop` that a lane takes together: what divides its own."""
        extent = index.add(loop.end, index.multiply(loop.begin, -1))
        if self.elements_per_lane > 1 or not isinstance(extent, int) or not needs_tiles(loop):
            return 1
        each, rest = divmod(extent, self.stride())
        return next((n for n in TOGETHER if each and not rest and each % n == 0), 1)

    def lane_tiles(self, loop: Loop, together: int) -> None:
        """`loop` piece by piece, each for `together` iterations of a lane (c_lane_tiles.py)."""
        first, step = f"{index_text(loop.begin, 1)} + st_lane", self.stride() * together
        own = _own(loop)
        if own:
            steps = max(map(self.own_elements, own)) // together
            self.emit(f"ST_UNROLL({steps})")
            self.open(f"for (int st_step = 0; st_step < {steps}; st_step++)")
            self.emit(f"const {self.index_type} st_tile = {first} + st_step * {step};")
        else:
            self.open(self.loop_head("st_tile", first, index_text(loop.end), str(step)))
        self.bound(loop.variable, loop.begin, loop.end)
        outer = dict(self.names)
        for scalar in sorted(spread(loop.body), key=lambda scalar: scalar.name):
            self.emit(f"{register_type(scalar.dtype)} {scalar.name}_tile[{together}];")
            self.names[scalar] = f"{scalar.name}_tile[st_at]"
        self.own_at = f"st_step * {together} + st_at"
        self.pieces(loop, loop.body, together)
        self.names = outer
        self.close()

    def serial_loop(self, loop: Loop) -> None:
        if self.in_lanes and not unrolled(loop):
            self.unroll_products(loop)
        lanes = [] if self.in_lanes else _lane_loops_of_own(loop)
        if not lanes:
            super().serial_loop(loop)
            return
        bounds = {(one.begin, one.end) for one in lanes}
        [(begin, end), *others] = bounds
        alike = not others and isinstance(begin, int) and isinstance(end, int)
        if alike and all(self.steps(_own(one)) == 1 for one in lanes):
            each = f" * {self.elements_per_lane}" * (self.elements_per_lane > 1)
            self.open(f"if ({index_text(begin, 1)} + st_lane{each} < {index_text(end)})")
            self.guarded = begin, end
        if (together := rows_together(loop, self.stride(), self.elements_per_lane)) > 1:
            self.emit(f"ST_UNROLL({together})")
        super().serial_loop(loop)
        if self.guarded is not None:
            self.guarded = None
            self.close()

    def unroll_products(self, loop: Loop) -> None:
        innermost = not any(isinstance(statement, Loop) for statement in loop.body)
        if innermost and len(list(loads(loop.body))) > 1:
            self.emit(f"ST_UNROLL({UNROLLED})")

    def pieces(self, loop: Loop, body: Sequence[Statement], together: int) -> None:
        for part in cut(body).parts:
            if isinstance(part, Loop):
                self.unroll_products(part)
                head = (self.index(bound) for bound in (part.begin, part.end))
                self.open(self.loop_head(part.variable, *head))
                self.bound(part.variable, part.begin, part.end)
                self.pieces(loop, part.body, together)
                self.close()
                continue
            self.emit(f"ST_UNROLL({together})")
            self.open(f"for (int st_at = 0; st_at < {together}; st_at++)")
            place = f"st_tile + st_at * {self.stride()}"
            self.emit(f"const {self.index_type} {loop.variable} = {place};")
            self.in_lanes = True
            self.body(part)
            self.in_lanes = False
            self.close()

    def vector_by_vector(self, loop: Loop, end: str, unrolled: bool) -> None:
        """A run's iterations between the loads and stores of all of it; the last may be shorter."""
        self.emit(f"const {self.index_type} st_first = {loop.variable};")
        extent = index.add(loop.end, index.multiply(loop.begin, -1))
        even = index.is_multiple(extent, self.elements_per_lane)
        if not even:
            self.open(f"if (st_first + {self.elements_per_lane} <= {end})")
        self.whole_vector(loop)
        if not even:
            self.depth -= 1
            self.open("} else")
            self.iterations(loop, self.elements_per_lane if unrolled else 1)
            self.open(f"if ({loop.variable} < {end})")
            self.body(loop.body)
            for _ in range(3):
                self.close()

    def iterations(self, loop: Loop, unrolled: int) -> None:
        self.emit(f"ST_UNROLL({unrolled})")
        self.open(f"for (int st_at = 0; st_at < {self.elements_per_lane}; st_at++)")
        self.emit(f"const {self.index_type} {loop.variable} = st_first + st_at;")

    def whole_vector(self, loop: Loop) -> None:
        wide = vector_access.of(loop, self.elements_per_lane)
        named: dict[vector_access.Place, str] = {}
        for number, (buffer, indices) in enumerate(wide.loads):
            name, kind = f"st_in{number}", self.vector_type(buffer)
            read = "st_read_only" if buffer in self.constant else "*"
            self.emit(
                f"const {kind} {name} = {read}((const {kind} *)&{self.element(buffer, indices)});"
            )
            named[buffer, indices] = name
        for number, (buffer, _) in enumerate(wide.stores):
            self.emit(f"{self.vector_type(buffer)} st_out{number};")
        self.iterations(loop, self.elements_per_lane)
        self.loaded = named
        self.stored_later = {place: f"st_out{number}" for number, place in enumerate(wide.stores)}
        self.body(loop.body)
        self.loaded, self.stored_later = {}, {}
        self.close()
        for number, (buffer, indices) in enumerate(wide.stores):
            kind = self.vector_type(buffer)
            self.emit(f"*({kind} *)&{self.element(buffer, indices)} = st_out{number};")

    def vector_type(self, buffer: Buffer) -> str:
        return f"st_run<{MEMORY_TYPES[buffer.dtype]}, {self.elements_per_lane}>"

    def load(self, node: Load) -> str:
        """One that the run has loaded already is taken from there."""
        name = self.loaded.get((node.buffer, node.indices))
        if node.buffer.scope is Scope.LANE:
            return self.value(f"{node.buffer.name}[{self.own_at}]", node.dtype)
        if name is not None:
            return self.value(f"{name}.at[st_at]", node.dtype)
        if node.buffer in self.constant:
            return self.value(f"__ldg(&{self.element(node.buffer, node.indices)})", node.dtype)
        return super().load(node)

    def store(self, statement: Store) -> None:
        name = self.stored_later.get((statement.buffer, statement.indices))
        if statement.buffer.scope is Scope.LANE:
            self.emit(f"{statement.buffer.name}[{self.own_at}] = {self.stored(statement)};")
        elif name is not None:
            self.emit(f"{name}.at[st_at] = {self.stored(statement)};")
        elif self.in_lanes:
            super().store(statement)
        else:
            self.open("if (st_lane == 0)")
            super().store(statement)
            self.close()


def rows_together(loop: Loop, stride: int, run: int) -> int:
    """Passes of serial loop `loop` of which a lane has the loads under way together, where all
    lanes take `stride` iterations at once, each a `run`; 1 where lanes wait for each other."""
    size = 0
    for lanes in _lane_loops_of_own(loop):
        outside = {load for load in loads(lanes.body) if load.buffer.role is not Role.LOCAL}
        steps = max(_runs(buffer, stride) for buffer in _own(lanes))
        size += steps * run * sum(DTYPES[load.dtype].bytes for load in outside)
    return min(max(4 * UNDER_WAY // size, 2), MOST_PASSES) if size else 1


def _runs(buffer: Buffer, stride: int) -> int:
    """Runs of a LANE buffer that one lane has."""
    size = size_of(buffer)
    assert isinstance(size, int), f"{buffer.name} is LOCAL"
    return -(-size // stride)


def _lane_loops_of_own(loop: Loop) -> list[Loop]:
    """The body of a serial loop whose lanes never wait for each other, as they touch, of what is
    not memory, their own alone; none where it has anything else."""
    lanes = [one for one in loop.body if isinstance(one, Loop) and one.kind is LoopKind.LANES]
    return lanes if len(lanes) == len(loop.body) and all(map(_own, lanes)) else []


def _own(loop: Loop) -> list[Buffer]:
    """Buffers of the lanes' own that a lane loop touches."""
    touched = (access.buffer for access in accesses(loop.body))
    return [buffer for buffer in touched if buffer.scope is Scope.LANE]
