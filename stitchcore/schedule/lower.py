"""Sections to loops: tasks, rows, lane loops, accumulators.

One section is lowered as

    task: bind kept axes, rows and lane block; set up accumulators; compute row-invariant values
      for row in the task's chunk:
        stage 0: lane loop; regional reductions combined; stage 1: ...
    task end: leave parts of global reductions, or their values
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from stitchcore.hlo.instruction import Instruction
from stitchcore.hlo.query import reducer_of
from stitchcore.kernel import index
from stitchcore.kernel.index import Index, Variable
from stitchcore.kernel.nodes import (
    Accumulate,
    Accumulator,
    Allocate,
    Apply,
    Buffer,
    Combine,
    Expression,
    Load,
    LoopKind,
    Role,
    Scalar,
    Scope,
    Section,
    Store,
)
from stitchcore.schedule import again, mapping, stages, views
from stitchcore.schedule.axes import Axis
from stitchcore.schedule.body import (
    Body,
    Environment,
    Residence,
    accumulation_dtype,
    combination_dtype,
    convert,
    indices,
    store,
)
from stitchcore.schedule.dominant import Scheme, order_of
from stitchcore.schedule.scheme import SectionScheme, Sink, SinkKind, domain_of
from stitchcore.schedule.surroundings import Surroundings

ROW: Axis = -1
"""Stands for the number of a row, whatever axes it is made of, in LOCAL buffers of many rows."""

CPU_LOCAL_BYTES = 256 * 1024
"""LOCAL row buffers of one task on a CPU: they should stay in the core's second-level cache."""


def lower_section(around: Surroundings, phase: int, section: SectionScheme) -> Section:
    """The loop IR of `section`."""
    return _Lowering(around, phase, section).run()


class _Lowering:
    def __init__(self, around: Surroundings, phase: int, section: SectionScheme) -> None:
        self.around = around
        self.phase = phase
        self.section = section
        self.axes = around.axes
        self.geometry = around.geometry(section)
        self.rows = frozenset(section.rows or ()) | {*self.geometry.kept, *self.geometry.rows}
        self.again = again.find(
            [sink.root for sink in section.sinks],
            around.axes,
            lambda value: around.residence(value, phase) is not None,
            lambda value: value in around.scheme.stored,
            self.operands,
        )
        self.body = Body(around.axes, around.names, self.residence, around.parts.get)
        self.environment: dict[Axis, Index] = {}
        self.orders: dict[frozenset[Axis], tuple[Axis, ...]] = {}
        self.block: tuple[Index, Index] = (0, 0)
        self.first_row: Index = 0
        self.scalars: dict[Sink, Scalar] = {}
        self.vectors: dict[Sink, Residence] = {}
        self.kept: dict[Instruction, tuple[Residence, tuple[Axis, ...]]] = {}

    # ---- what lies where -----------------------------------------------------------------------
    def residence(self, value: Instruction) -> Residence | None:
        return None if value in self.again else self.around.residence(value, self.phase)

    def is_regional(self, value: Instruction) -> bool:
        dominants = self.around.dominants
        return (
            dominants.schemes.get(value) is Scheme.REGIONAL
            and dominants.states[value].phase == self.phase
            and self.residence(value) is None
        )

    def operands(self, value: Instruction) -> Sequence[Instruction]:
        return value.operands[1:] if value in self.around.parts else value.operands

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
        layouts = self.around.dominants.layouts
        for value in self.around.dominants.schemes:
            if self.is_regional(value) and wanted <= frozenset(self.axes.domain(value)):
                return tuple(a for a in order_of(self.axes, layouts, value) if a in wanted)
        for sink in self.section.sinks:
            if wanted <= domain_of(sink, self.axes) and sink.kind is SinkKind.STORE:
                return tuple(a for a in self.axes.of(sink.value) if a in wanted)
        return tuple(sorted(wanted))

    def plan(self) -> stages.Stages:
        device = self.around.device
        context = stages.Context(
            self.axes,
            lambda value: self.residence(value) is not None,
            self.is_regional,
            self.operands,
            self.inner,
            lambda sink: domain_of(sink, self.axes),
            CPU_LOCAL_BYTES if device.kind == "cpu" else device.group_bytes,
            self.geometry.lane_block is None and self.geometry.rows_per_task not in (0, 1),
            self.splits,
        )
        return stages.plan(self.section.sinks, context)

    @property
    def splits(self) -> bool:
        """An elementwise section of static rows: its lane loop may be cut into stages."""
        section, geometry = self.section, self.geometry
        elementwise = section.rows is None and section.loops is None and not section.combines
        if not elementwise or geometry.lane is None or not geometry.rows:
            return False
        return geometry.lane_block is None and isinstance(self.axes.extents[geometry.lane], int)

    # ---- the section ---------------------------------------------------------------------------
    def run(self) -> Section:
        plan = self.plan()
        if self.splits and len(plan.nests) > 1:
            self.geometry = mapping.of_few_rows(self.axes.extents, self.geometry)
        variable = self.around.names.new("task")
        chunk = self.bind_task(Variable(variable))
        self.accumulators()
        self.invariant_values(plan.invariant)
        if self.splits and len(plan.nests) > 1:
            self.stage_by_stage(plan, chunk)
        else:
            with self.row_loop(chunk):
                self.combine_parts(plan.wanted)
                for nests in plan.nests:
                    for nest in nests:
                        self.nest(nest, plan.read_back)
        for sink in self.section.sinks:
            if sink.kind in (SinkKind.PARTIAL, SinkKind.FINAL):
                self.leave(sink, chunk)
        return Section(variable, self.geometry.tasks, tuple(self.body.blocks[0].statements))

    def stage_by_stage(self, plan: stages.Stages, chunk: Index) -> None:
        """Each stage over all rows of the task; LOCAL buffers are taken over when read last."""
        free: list[Residence] = []
        for number, nests in enumerate(plan.nests):
            ended = [v for v in self.kept if plan.last.get(v, number) < number]
            free += [self.kept.pop(value)[0] for value in ended]
            for nest in nests:
                with self.row_loop(chunk):
                    self.nest(nest, plan.read_back, free)

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

    @contextmanager
    def row_loop(self, chunk: Index) -> Iterator[None]:
        rows, count = self.geometry.rows, self.geometry.rows_per_task
        if not rows:
            yield
        elif count == 1:
            views.bind_row(self.axes, rows, chunk, self.environment)
            yield
        else:
            total = index.from_dim(mapping.product(self.axes.extents[a] for a in rows))
            begin: Index = 0
            end = total
            if self.geometry.chunks != 1:
                begin = index.multiply(chunk, count)
                end = index.minimum(index.add(begin, count), total)
            self.first_row = begin
            with self.body.loop("row", begin, end, LoopKind.SERIAL) as row:
                views.bind_row(self.axes, rows, row, self.environment)
                self.environment[ROW] = row
                yield

    @contextmanager
    def lanes(self, inner: Sequence[Axis]) -> Iterator[Environment]:
        """Serial loops over all but the last of `inner`, a lane loop over that."""
        environment = dict(self.environment)
        with ExitStack() as stack:
            for axis in inner:
                last = axis == inner[-1]
                begin: Index = 0
                end = index.from_dim(self.axes.extents[axis])
                if axis == self.geometry.lane:
                    begin, end = self.block
                kind = LoopKind.LANES if last else LoopKind.SERIAL
                loop = self.body.loop("lane" if last else "outer", begin, end, kind)
                environment[axis] = stack.enter_context(loop)
            yield environment

    # ---- one nest ------------------------------------------------------------------------------
    def nest(
        self,
        nest: stages.Nest,
        read_back: frozenset[Instruction],
        free: list[Residence] | None = None,
    ) -> None:
        sums: list[tuple[Instruction, Scalar, str]] = []
        for value in nest.reduces:
            scalar, reducer = self.accumulator(value)
            self.body.add(Accumulator(scalar, reducer))
            sums.append((value, scalar, reducer))
        with self.lanes(nest.inner) as environment:
            self.body.local = {
                value: self.exactly(value, residence, environment)
                for value, (residence, inner) in self.kept.items()
                if inner == nest.inner
            }
            for value, scalar, reducer in sums:
                operand = self.body.value(value.operands[0], environment)
                self.body.add(Accumulate(scalar, reducer, convert(operand, scalar.dtype)))
            for value in nest.saved:
                place = self.saved_buffer(value.shape.dtype, nest.inner, free)
                self.kept[value] = (place, nest.inner)
                found = self.body.value(value, environment)
                self.body.add(store(place, environment, found))
            for sink in nest.sinks:
                self.sink(sink, environment)
        self.body.local = {}
        for value, scalar, reducer in sums:
            if nest.inner:
                self.body.add(Combine(scalar, reducer, Scope.GROUP))
            self.body.define(
                value, self.environment, self.body.finish(value, scalar, self.environment)
            )
        for sink in nest.sinks:
            if sink.kind is SinkKind.STORE and sink.value in read_back:
                self.kept[sink.value] = (self.around.residences[sink.value], nest.inner)

    def exactly(
        self, value: Instruction, residence: Residence, environment: Environment
    ) -> Residence:
        own = self.body.axes_of(value)
        exact = tuple(environment[axis] for axis in own)
        return replace(residence, exact=exact, at=indices(residence, environment))

    def accumulator(self, value: Instruction) -> tuple[Scalar, str]:
        reducer = reducer_of(value)
        assert reducer is not None
        dtype = accumulation_dtype(value.shape.dtype)
        return Scalar(self.around.names.new("a"), dtype), reducer

    def saved_buffer(
        self, dtype: str, inner: tuple[Axis, ...], free: list[Residence] | None
    ) -> Residence:
        """A row buffer; one for all rows of the task where stages run over all of them."""
        if free is None or self.geometry.rows_per_task == 1:
            return self.local_buffer(dtype, inner)
        for place in free:
            if place.buffer.dtype == dtype and place.order == (ROW, *inner):
                free.remove(place)
                return place
        return self.local_buffer(dtype, (ROW, *inner))

    def local_buffer(self, dtype: str, order: tuple[Axis, ...]) -> Residence:
        """A LOCAL buffer over `order` (the lane block only, where lanes are cut)."""
        dims: list[Index] = []
        origin: list[tuple[Axis, Index]] = []
        for axis in order:
            if axis == self.geometry.lane and self.geometry.lane_block is not None:
                dims.append(self.geometry.lane_block)
                origin.append((axis, self.block[0]))
            elif axis == ROW:
                dims.append(self.geometry.rows_per_task)
                origin.append((axis, self.first_row))
            else:
                dims.append(index.from_dim(self.axes.extents[axis]))
        name = self.around.names.new("local")
        buffer = Buffer(name, dtype, tuple(dims), Scope.GROUP, Role.LOCAL)
        self.body.blocks[0].statements.append(Allocate(buffer))
        return Residence(buffer, order, tuple(origin))

    def sink(self, sink: Sink, environment: Environment) -> None:
        if sink.kind is SinkKind.STORE:
            value = self.body.value(sink.value, environment)
            self.body.add(store(self.around.residences[sink.value], environment, value))
        elif sink.kind is SinkKind.PIECE:
            target, source = views.piece_environments(
                self.axes, sink.value, sink.number, environment
            )
            value = self.body.value(sink.root, source)
            self.body.add(store(self.around.residences[sink.value], target, value))
        else:
            self.accumulate(sink, environment)

    # ---- global reductions ---------------------------------------------------------------------
    def combine_parts(self, wanted: Sequence[Instruction]) -> None:
        """Parts of vectors are added up part by part into a LOCAL buffer, lanes innermost."""
        for value in wanted:
            if value not in self.around.parts:
                continue
            inner = self.inner(self.axes.of(value))
            if not inner or not self.is_static(inner):
                continue
            buffer, order = self.around.parts[value]
            place = self.local_buffer(combination_dtype(value), inner)
            self.clear(place, value)
            parts = self.body.loop("step", 0, buffer.dims[0], LoopKind.SERIAL)
            with parts as part, self.lanes(inner) as environment:
                at = (part, *(environment[axis] for axis in order))
                found = convert(Load(buffer, at), place.buffer.dtype)
                self.update(place, environment, value, found)
            self.body.combined[value] = place

    def is_static(self, inner: Sequence[Axis]) -> bool:
        block = self.geometry.lane_block
        extents = self.axes.extents
        return all(
            isinstance(extents[a], int) or (a == self.geometry.lane and block is not None)
            for a in inner
        )

    def clear(self, place: Residence, value: Instruction) -> None:
        """Fill a LOCAL buffer with the neutral element of `value`'s reducer."""
        reducer = reducer_of(value)
        assert reducer is not None
        with self.lanes(place.order) as environment:
            neutral = Scalar(self.around.names.new("a"), place.buffer.dtype)
            self.body.add(Accumulator(neutral, reducer))
            self.body.add(store(place, environment, neutral))

    def update(
        self, place: Residence, environment: Environment, reduce: Instruction, value: Expression
    ) -> None:
        """buffer[i] = reducer(buffer[i], value)."""
        reducer = reducer_of(reduce)
        assert reducer is not None
        at = indices(place, environment)
        updated = Apply(reducer, (Load(place.buffer, at), value), place.buffer.dtype)
        self.body.add(Store(place.buffer, at, updated))

    def accumulators(self) -> None:
        for sink in self.section.sinks:
            if sink.kind not in (SinkKind.PARTIAL, SinkKind.FINAL):
                continue
            scalar, reducer = self.accumulator(sink.value)
            self.scalars[sink] = scalar
            inner = self.inner(self.axes.of(sink.value))
            if not inner:
                self.body.add(Accumulator(scalar, reducer))
                continue
            place = self.local_buffer(scalar.dtype, inner)
            self.vectors[sink] = place
            self.clear(place, sink.value)

    def accumulate(self, sink: Sink, environment: Environment) -> None:
        scalar = self.scalars[sink]
        value = convert(self.body.value(sink.root, environment), scalar.dtype)
        reducer = reducer_of(sink.value)
        assert reducer is not None
        place = self.vectors.get(sink)
        if place is None:
            self.body.add(Accumulate(scalar, reducer, value))
        else:
            self.update(place, environment, sink.value, value)

    def leave(self, sink: Sink, chunk: Index) -> None:
        """Store this task's part, or the finished value, of a global reduction."""
        scalar = self.scalars[sink]
        reducer = reducer_of(sink.value)
        assert reducer is not None
        place = self.vectors.get(sink)
        if place is None:
            if self.inner(domain_of(sink, self.axes)):
                self.body.add(Combine(scalar, reducer, Scope.GROUP))
            self.leave_element(sink, scalar, self.environment, chunk)
            return
        with self.lanes(place.order) as environment:
            element = self.body.let(self.body.load(place, environment))
            self.leave_element(sink, element, environment, chunk)

    def leave_element(
        self, sink: Sink, element: Scalar, environment: Environment, chunk: Index
    ) -> None:
        if sink.kind is SinkKind.FINAL:
            value = self.body.finish(sink.value, element, environment)
            self.body.add(store(self.around.residences[sink.value], environment, value))
            return
        buffer, order = self.around.parts[sink.value]
        loops = self.section.loops
        part = chunk
        if loops is not None and loops.lane_reduced and self.geometry.lane_block is not None:
            part = index.add(index.multiply(chunk, self.geometry.lane_blocks), self.part)
        at = (part, *(environment[axis] for axis in order))
        self.body.add(Store(buffer, at, element))

    def invariant_values(self, values: Sequence[Instruction]) -> None:
        """Values that are the same in every row, computed once a task into LOCAL buffers."""
        for value in values:
            place = self.local_buffer(value.shape.dtype, self.inner(self.axes.of(value)))
            with self.lanes(place.order) as environment:
                found = self.body.value(value, environment)
                self.body.add(store(place, environment, found))
            self.kept[value] = (place, place.order)
