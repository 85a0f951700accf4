"""Lane loops as CUDA C++: iterations distributed to threads in runs, what lanes keep in registers.

    for (int i = begin + st_lane * RUN; i < end; i += LANES * RUN)    with runs moved at once

A loop that touches buffers of the lanes' own is unrolled whole, so that each of their elements has
a register: its number is known to the compiler.
"""

from __future__ import annotations

from dataclasses import replace

from stitchcore.codegen import vector_access
from stitchcore.codegen.source import MEMORY_TYPES, Renderer, index_text
from stitchcore.loop_ir import index
from stitchcore.loop_ir.layout import size_of
from stitchcore.loop_ir.nodes import THREADS, Buffer, Load, Loop, Scope, Store
from stitchcore.loop_ir.visitor import accesses

WARP = 32


class LaneLoops(Renderer):
    """A dialect's lane loops, loads and stores, for tasks of blocks of a kernel's `threads`."""

    def __init__(self) -> None:
        super().__init__()
        self.threads = THREADS
        self.scope, self.elements_per_lane = Scope.GROUP, 1
        self.own_at = ""
        self.loaded: dict[vector_access.Place, str] = {}
        self.stored_later: dict[vector_access.Place, str] = {}

    def stride(self) -> int:
        """Iterations that all lanes of a task take at once."""
        return (WARP if self.scope is Scope.WARP else self.threads) * self.elements_per_lane

    def own_elements(self, buffer: Buffer) -> int:
        """Elements of a LANE buffer that one lane has."""
        size = size_of(buffer)
        assert isinstance(size, int), f"{buffer.name} is LOCAL"
        return -(-size // self.stride()) * self.elements_per_lane

    def lane_loop(self, loop: Loop) -> None:
        begin, end = (index.simplify(bound, self.ranges) for bound in (loop.begin, loop.end))
        self.strided_loop(replace(loop, begin=begin, end=end))

    def strided_loop(self, loop: Loop) -> None:
        begin, end = index_text(loop.begin, 1), index_text(loop.end)
        several = self.elements_per_lane > 1
        first = f"{begin} + st_lane" + f" * {self.elements_per_lane}" * several
        own = _own(loop)
        if own:
            steps = max(map(self.own_elements, own)) // self.elements_per_lane
            self.emit(f"ST_UNROLL({steps})")
            self.open(f"for (int st_step = 0; st_step < {steps}; st_step++)")
            step = f" + st_step * {self.stride()}" if steps > 1 else ""
            self.emit(f"const {self.index_type} {loop.variable} = {first}{step};")
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
        if own:
            self.close()
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
            self.emit(f"const {kind} {name} = *(const {kind} *)&{self.element(buffer, indices)};")
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
        return super().load(node) if name is None else self.value(f"{name}.at[st_at]", node.dtype)

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


def _own(loop: Loop) -> list[Buffer]:
    """Buffers of the lanes' own that a lane loop touches."""
    touched = (access.buffer for access in accesses(loop.body))
    return [buffer for buffer in touched if buffer.scope is Scope.LANE]
