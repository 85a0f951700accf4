"""The loops of one section under construction: tasks, rows, lanes, and LOCAL buffers over them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from stitchcore.fusion.mechanisms import Mechanism
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.loop_ir import index
from stitchcore.loop_ir.index import Index
from stitchcore.loop_ir.nodes import Allocate, Buffer, LoopKind, Role, Scope
from stitchcore.schedule import pack_rows, rematerialize, tiling, views
from stitchcore.schedule.axes import Axis
from stitchcore.schedule.context import SectionContext
from stitchcore.schedule.dominants import Scheme, order_of
from stitchcore.schedule.pack_rows import PACKED
from stitchcore.schedule.sections import SectionScheme, SinkKind, domain_of
from stitchcore.schedule.values import Body, Environment, Residence

ROW: Axis = -1
"""Stands for the number of a row, whatever axes it is made of, in LOCAL buffers of many rows."""


class SectionBuilder:
    """What lies where, and the loops that are open. `may_pack`: rows may share a lane loop."""

    def __init__(
        self, context: SectionContext, phase: int, section: SectionScheme, may_pack: bool
    ) -> None:
        self.context = context
        self.phase = phase
        self.may_pack = may_pack
        self.packed = False
        self.section = section
        self.axes = context.axes
        self.geometry = context.geometry(section)
        self.rows = frozenset(section.rows or ()) | {*self.geometry.kept, *self.geometry.rows}
        self.rematerialized: frozenset[Instruction] = frozenset()
        if Mechanism.RECOMPUTE in context.mechanisms:
            self.rematerialized = rematerialize.choose(
                [sink.root for sink in section.sinks],
                context.axes,
                lambda value: context.residence(value, phase) is not None,
                lambda value: (
                    value in context.scheme.stored and value not in context.scheme.choices
                ),
                self.operands,
            )
        self.body = Body(
            context.axes, context.names, self.residence, context.parts.get, context.errors
        )
        self.environment: dict[Axis, Index] = {}
        self.orders: dict[frozenset[Axis], tuple[Axis, ...]] = {}
        self.block: tuple[Index, Index] = (0, 0)
        self.first_row: Index = 0
        self.row_block: tuple[Index, Index] | None = None
        self.cached: dict[Instruction, tuple[Residence, tuple[Axis, ...]]] = {}

    def residence(self, value: Instruction) -> Residence | None:
        return None if value in self.rematerialized else self.context.residence(value, self.phase)

    def in_memory(self, value: Instruction) -> bool:
        return self.residence(value) is not None

    def is_regional(self, value: Instruction) -> bool:
        dominants = self.context.dominants
        return (
            dominants.schemes.get(value) is Scheme.REGIONAL
            and dominants.states[value].phase == self.phase
            and self.residence(value) is None
        )

    def operands(self, value: Instruction) -> Sequence[Instruction]:
        return value.operands[1:] if value in self.context.parts else value.operands

    def inner(self, domain: Iterable[Axis]) -> tuple[Axis, ...]:
        """The axes of a domain that are looped inside a row, in loop order."""
        wanted = frozenset(domain) - self.rows
        order = self.orders.get(wanted)
        if order is None:
            order = tuple(a for a in self.section.order if a in wanted)
            if len(order) < len(wanted):
                order = self._order_elsewhere(wanted)
            self.orders[wanted] = order
        return order

    def _order_elsewhere(self, wanted: frozenset[Axis]) -> tuple[Axis, ...]:
        layouts = self.context.dominants.layouts
        for value in self.context.dominants.schemes:
            if self.is_regional(value) and wanted <= frozenset(self.axes.domain(value)):
                return tuple(a for a in order_of(self.axes, layouts, value) if a in wanted)
        for sink in self.section.sinks:
            if wanted <= domain_of(sink, self.axes) and sink.kind is SinkKind.STORE:
                return tuple(a for a in self.axes.of(sink.value) if a in wanted)
        return tuple(sorted(wanted))

    @property
    def splits(self) -> bool:
        """An elementwise section of static rows: its lane loop may be cut into stages."""
        section, geometry = self.section, self.geometry
        elementwise = section.rows is None and section.loops is None and not section.combines
        if not elementwise or geometry.lane is None or not geometry.rows or geometry.interchanged:
            return False
        if not self.context.limits.stage_depth:
            return False
        return geometry.lane_block is None and isinstance(self.axes.extents[geometry.lane], int)

    def bind_task(self, task: Index) -> Index:
        """Bind kept axes and the lane block; the number of the row chunk."""
        geometry = self.geometry
        rest = task
        block: Index = 0
        if geometry.lane_block is not None:
            block = index.modulo(rest, geometry.lane_blocks)
            rest = index.floor_divide(rest, geometry.lane_blocks)
        if geometry.lane is not None:
            extent = index.from_dim(self.axes.extents[geometry.lane])
            self.block = (0, extent)
            if geometry.lane_block is not None:
                begin = index.multiply(block, geometry.lane_block)
                end = index.minimum(index.add(begin, geometry.lane_block), extent)
                self.block = (begin, end)
        self.part = block
        chunk: Index = 0
        if geometry.chunks != 1:
            chunk = rest if not geometry.kept else index.modulo(rest, geometry.chunks)
            rest = 0 if not geometry.kept else index.floor_divide(rest, geometry.chunks)
        if geometry.kept:
            views.bind_row(self.axes, geometry.kept, rest, self.environment)
        return chunk

    def row_range(self, chunk: Index) -> tuple[Index, Index]:
        """Rows of the task, of which there are several, or of its block of rows."""
        if self.row_block is not None:
            return self.row_block
        total = index.from_dim(tiling.product(self.axes.extents[a] for a in self.geometry.rows))
        if self.geometry.chunks == 1:
            return 0, total
        begin = index.multiply(chunk, self.geometry.rows_per_task)
        return begin, index.minimum(index.add(begin, self.geometry.rows_per_task), total)

    @contextmanager
    def row_loop(self, chunk: Index) -> Iterator[None]:
        rows, count = self.geometry.rows, self.geometry.rows_per_task
        if not rows:
            yield
        elif count == 1:
            views.bind_row(self.axes, rows, chunk, self.environment)
            yield
        else:
            begin, end = self.row_range(chunk)
            self.first_row = begin
            kind = LoopKind.SERIAL
            if self.geometry.interchanged and self.geometry.lane is None:
                kind = LoopKind.LANES
            with self.body.loop("row", begin, end, kind) as row:
                views.bind_row(self.axes, rows, row, self.environment)
                self.environment[ROW] = row
                yield

    @contextmanager
    def row_blocks(self, chunk: Index, size: int) -> Iterator[None]:
        """A serial loop over blocks of at most `size` rows of the task."""
        begin, end = self.row_range(chunk)
        count = index.add(end, index.multiply(begin, -1))
        with self.body.loop("block", 0, index.ceil_divide(count, size), LoopKind.SERIAL) as block:
            first = index.add(begin, index.multiply(block, size))
            self.row_block = first, index.minimum(index.add(first, size), end)
            yield
        self.row_block = None

    @contextmanager
    def lanes(self, inner: Sequence[Axis]) -> Iterator[Environment]:
        """Serial loops over all but the last of `inner`, a lane loop over that; where loops are
        interchanged over the lane axis, if any."""
        lane = inner[-1] if inner else None
        if self.geometry.interchanged:
            lane = self.geometry.lane
        environment = dict(self.environment)
        with ExitStack() as stack:
            for axis in inner:
                begin: Index = 0
                end = index.from_dim(self.axes.extents[axis])
                if axis == self.geometry.lane:
                    begin, end = self.block
                kind = LoopKind.LANES if axis == lane else LoopKind.SERIAL
                loop = self.body.loop("lane" if axis == lane else "outer", begin, end, kind)
                environment[axis] = stack.enter_context(loop)
            yield environment

    @contextmanager
    def packed_lanes(self, chunk: Index) -> Iterator[Environment]:
        """One lane loop over all elements of the task's rows."""
        lane, rows = self.geometry.lane, self.geometry.rows
        assert lane is not None
        extent = index.from_dim(self.axes.extents[lane])
        begin, end = self.row_range(chunk)
        count = index.multiply(index.add(end, index.multiply(begin, -1)), extent)
        environment = dict(self.environment)
        with self.body.loop(pack_rows.STEM, 0, count, LoopKind.LANES) as place:
            row = index.add(begin, index.floor_divide(place, extent))
            views.bind_row(self.axes, rows, row, environment)
            environment |= {ROW: row, PACKED: place, lane: index.modulo(place, extent)}
            yield environment

    def local_buffer(self, dtype: str, order: tuple[Axis, ...]) -> Residence:
        """A LOCAL buffer over `order` (the lane block only, where lanes are cut)."""
        dims: list[Index] = []
        origin: list[tuple[Axis, Index]] = []
        for axis in order:
            if axis == self.geometry.lane and self.geometry.lane_block is not None:
                dims.append(self.geometry.lane_block)
                origin.append((axis, self.block[0]))
            elif axis == PACKED:
                assert self.geometry.lane is not None
                extent = index.from_dim(self.axes.extents[self.geometry.lane])
                dims.append(index.multiply(self.geometry.rows_per_task, extent))
            elif axis == ROW:
                dims.append(self.geometry.rows_together)
                origin.append((axis, self.first_row))
            else:
                dims.append(index.from_dim(self.axes.extents[axis]))
        name = self.context.names.new("local")
        buffer = Buffer(name, dtype, tuple(dims), self.geometry.scope, Role.LOCAL)
        self.body.blocks[0].statements.append(Allocate(buffer))
        return Residence(buffer, order, tuple(origin))

    def is_static(self, inner: Sequence[Axis]) -> bool:
        block = self.geometry.lane_block
        extents = self.axes.extents
        return all(
            isinstance(extents[a], int) or (a == self.geometry.lane and block is not None)
            for a in inner
        )

    def saved_buffer(self, dtype: str, inner: tuple[Axis, ...], free: list[Residence]) -> Residence:
        """A row buffer, if possible one of those that are `free`; for all rows of the task where
        stages run over all of them."""
        order = inner
        if self.geometry.rows_together > 1:
            order = (PACKED,) if self.packed else (ROW, *inner)
        for place in free:
            if place.buffer.dtype == dtype and place.order == order:
                free.remove(place)
                return place
        return self.local_buffer(dtype, order)

    def scratch_buffer(self, value: Instruction) -> Residence:
        """Room for all rows of `value` in the kernel's scratch memory: each task has its own."""
        order = self.context.dominants.layouts[value]
        dims = tuple(index.from_dim(self.axes.extents[axis]) for axis in order)
        name = self.context.names.new("rows")
        return Residence(Buffer(name, value.shape.dtype, dims, Scope.DEVICE, Role.SCRATCH), order)
