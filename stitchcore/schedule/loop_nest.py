"""Sections to loops: tasks, rows, lane loops, accumulators.

One section is lowered as

    task: bind kept axes, rows and lane block; set up accumulators; compute row-invariant values
      for row in the task's chunk:
        stage 0: lane loop; regional reductions combined; stage 1: ...
      or, of short rows, for block of rows in the chunk:
        for row in the block: stage 0, its reductions left in LOCAL buffers; for row: stage 1; ...
    task end: leave parts of global reductions, or their values
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace

from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.hlo.ir.query import reducer_of
from stitchcore.loop_ir import index
from stitchcore.loop_ir import nodes as ir
from stitchcore.loop_ir.index import Index, Variable
from stitchcore.schedule import (
    pack_rows,
    row_stages,
    scans,
    scatters,
    tiling,
    updates,
    views,
)
from stitchcore.schedule.constants import convert
from stitchcore.schedule.context import SectionContext
from stitchcore.schedule.dominants import is_update
from stitchcore.schedule.section_builder import ROW, SectionBuilder
from stitchcore.schedule.sections import SectionScheme, Sink, SinkKind, domain_of
from stitchcore.schedule.values import (
    Environment,
    Residence,
    accumulation_dtype,
    combination_dtype,
    indices,
    store,
)


def lower_section(context: SectionContext, phase: int, section: SectionScheme) -> ir.Section:
    """The loop IR of `section`."""
    if section.sinks[0].kind is SinkKind.SCATTER:
        return scatters.lower(context, phase, section.sinks[0])
    if section.sinks[0].kind is SinkKind.SCAN:
        return scans.lower(context, phase, section)
    lowering = _Lowering(context, phase, section, may_pack=True)
    lowered = lowering.run()
    if lowering.packed and not pack_rows.is_dense(lowered):
        lowered = _Lowering(context, phase, section, may_pack=False).run()
    return replace(lowered, copy_unless_aliased=_copied_pair(context, section))


def _copied_pair(
    context: SectionContext, section: SectionScheme
) -> tuple[ir.Buffer, ir.Buffer] | None:
    """What a section copies from and to, if it does nothing else."""
    sink = section.sinks[0]
    if sink.kind is not SinkKind.AROUND:
        return None
    source, target = context.residences.get(sink.root), context.residences[sink.value].buffer
    outside = (
        source is not None and source.buffer.role is ir.Role.INPUT and target.role is ir.Role.OUTPUT
    )
    return (source.buffer, target) if source is not None and outside else None


class _Lowering(SectionBuilder):
    def __init__(
        self, context: SectionContext, phase: int, section: SectionScheme, may_pack: bool
    ) -> None:
        super().__init__(context, phase, section, may_pack)
        self.scalars: dict[Sink, ir.Scalar] = {}
        self.vectors: dict[Sink, Residence] = {}
        self.turned: dict[Sink, Residence] = {}

    # ---- what lies where -----------------------------------------------------------------------

    def plan(self) -> row_stages.Stages:
        bounds = self.context.limits
        groups = bounds.warps if self.geometry.scope is ir.Scope.WARP else 1
        rows = self.geometry.rows_together
        context = row_stages.Context(
            self.axes,
            self.in_memory,
            self.is_regional,
            self.operands,
            self.inner,
            lambda sink: domain_of(sink, self.axes),
            bounds.local_bytes // groups // rows,
            self.geometry.lane_block is None and self.geometry.rows_per_task not in (0, 1),
            bounds.stage_depth if self.splits else 0,
            self.rows,
            self.context.prices,
        )
        plan = row_stages.plan(self.section.sinks, context)
        self.context.choices.extend((one.value, str(one)) for one in plan.demotions)
        return plan

    # ---- the section ---------------------------------------------------------------------------
    def run(self) -> ir.Section:
        plan = self.plan()
        few = self.geometry
        if self.splits:
            few = tiling.of_few_rows(self.axes.extents, few, self.context.limits)
        pays = self.splits and pack_rows.pays(plan, self.section.sinks, few, self.axes.extents)
        self.packed = self.may_pack and pays and self.context.limits.packs
        by_stages = self.splits and (len(plan.nests) > 1 or self.packed)
        if by_stages:
            self.geometry = few
        combines = any(map(self.is_combined, plan.wanted))
        if combines and self.section.rows is not None:
            self.geometry = replace(self.geometry, interchanged=False)
        if combines or (len(plan.nests) == 1 and not (self.geometry.interchanged or by_stages)):
            self.geometry = replace(self.geometry, rows_together=1)
        variable = self.context.names.new("task")
        chunk = self.bind_task(Variable(variable))
        self.accumulators()
        self.invariant_values(plan.invariant)
        if by_stages:
            self.stage_by_stage(plan, chunk)
        elif self.is_flat(plan):
            for nest in plan.nests[0]:
                self.nest(nest, plan, 0, self.packed_lanes(chunk), [])
        elif self.geometry.rows_together > 1:
            with self.row_blocks(chunk, self.geometry.rows_together):
                self.stage_by_stage(plan, chunk)
        else:
            with self.row_loop(chunk):
                self.combine_parts(plan.wanted)
                free: list[Residence] = []
                for number, nests in enumerate(plan.nests):
                    free += self.ended(plan, number)
                    for nest in nests:
                        self.nest(nest, plan, number, self.lanes(nest.inner), free)
        for sink in self.section.sinks:
            if sink.kind is SinkKind.PARTIAL:
                self.leave(sink, chunk)
        self.finish([sink for sink in self.section.sinks if sink.kind is SinkKind.FINAL])
        return ir.Section(
            variable,
            self.geometry.tasks,
            tuple(self.body.blocks[0].statements),
            self.geometry.scope,
        )

    def is_flat(self, plan: row_stages.Stages) -> bool:
        section = self.section
        elementwise = section.rows is None and section.loops is None and not section.combines
        below = self.context.limits.flat_below
        return elementwise and pack_rows.flattens(plan, self.geometry, self.axes.extents, below)

    def stage_by_stage(self, plan: row_stages.Stages, chunk: Index) -> None:
        """Each stage over all rows of the task; LOCAL buffers are taken over when read last."""
        free: list[Residence] = []
        for number, nests in enumerate(plan.nests):
            free += self.ended(plan, number)
            if self.packed:
                for nest in nests:
                    self.packed_nest(nest, plan, number, chunk, free)
                continue
            across = self.context.turned(self.section) if self.row_block is not None else ()
            here = [sink for nest in nests for sink in nest.sinks if sink in across]
            for sink in here:
                inner = self.inner(domain_of(sink, self.axes))
                self.first_row = self.row_range(chunk)[0]
                self.turned[sink] = self.local_buffer(sink.value.shape.dtype, (ROW, *inner))
            with self.row_loop(chunk):
                for nest in nests:
                    self.nest(nest, plan, number, self.lanes(nest.inner), free)
            for sink in here:
                self.turn(sink, chunk)

    def turn(self, sink: Sink, chunk: Index) -> None:
        """What a block of rows left in a LOCAL buffer, line by line to where it belongs."""
        place, (begin, end) = self.turned[sink], self.row_range(chunk)
        count = index.add(end, index.multiply(begin, -1))
        with ExitStack() as stack:
            environment = dict(self.environment)
            for axis in place.order[1:]:
                extent = index.from_dim(self.axes.extents[axis])
                loop = self.body.loop("outer", 0, extent, ir.LoopKind.SERIAL)
                environment[axis] = stack.enter_context(loop)
            lane = stack.enter_context(self.body.loop("lane", 0, count, ir.LoopKind.LANES))
            environment[ROW] = index.add(begin, lane)
            views.bind_row(self.axes, self.geometry.rows, environment[ROW], environment)
            element = self.body.let(self.body.load(place, environment))
            self.body.add(store(self.context.residences[sink.value], environment, element))

    def ended(self, plan: row_stages.Stages, stage: int) -> list[Residence]:
        """Buffers of values that were read last before `stage`."""
        values = [v for v in self.cached if plan.last.get(v, stage) < stage]
        return [self.cached.pop(value)[0] for value in values]

    def read_last(
        self, plan: row_stages.Stages, stage: int, nest: row_stages.Nest, environment: Environment
    ) -> list[Residence]:
        """Buffers that the lanes of `nest` are the last to read: what each needs of them it has in
        scalars from here on."""
        values = [
            value
            for value, (_, inner) in self.cached.items()
            if plan.last.get(value) == stage and inner == nest.inner
        ]
        for value in values:
            self.body.value(value, environment)
        return [self.cached.pop(value)[0] for value in values]

    def packed_nest(
        self,
        nest: row_stages.Nest,
        plan: row_stages.Stages,
        stage: int,
        chunk: Index,
        free: list[Residence],
    ) -> None:
        """A nest over packed rows, after what varies along rows or lanes only is spread."""
        lane = self.geometry.lane
        assert lane is not None
        extent = index.from_dim(self.axes.extents[lane])
        whole = frozenset((*self.geometry.rows, lane))
        roots = [*nest.saved, *(sink.root for sink in nest.sinks)]
        moves = tiling.no_vector(self.axes.extents[lane])
        spread = pack_rows.partial(
            roots, self.axes, whole, self.in_memory, self.cached, self.operands, moves
        )

        def packed(environment: Environment) -> tuple[Index]:
            row = index.add(environment[ROW], index.multiply(self.first_row, -1))
            return (index.add(index.multiply(row, extent), environment[lane]),)

        for value in spread:
            place = self.saved_buffer(value.shape.dtype, nest.inner, free)
            with self.row_loop(chunk), self.lanes(nest.inner) as environment:
                element = self.body.value(value, environment)
                self.body.add(ir.Store(place.buffer, packed(environment), element))
            self.cached[value] = (place, nest.inner)
        moved = [sink for sink in nest.sinks if pack_rows.moves_out(sink)]
        for sink in moved:
            self.turned[sink] = self.saved_buffer(sink.value.shape.dtype, nest.inner, free)
        self.nest(nest, plan, stage, self.packed_lanes(chunk), free)
        for sink in moved:
            place = self.turned[sink]
            with self.row_loop(chunk), self.lanes(nest.inner) as environment:
                element = self.body.let(ir.Load(place.buffer, packed(environment)))
                target, _ = views.piece_environments(
                    self.axes, sink.value, sink.number, environment
                )
                self.body.add(store(self.context.residences[sink.value], target, element))
        for value in spread:
            if frozenset(self.axes.of(value)) & frozenset(self.geometry.rows):
                free.append(self.cached.pop(value)[0])

    # ---- one nest ------------------------------------------------------------------------------
    def nest(
        self,
        nest: row_stages.Nest,
        plan: row_stages.Stages,
        stage: int,
        loops: AbstractContextManager[Environment],
        free: list[Residence],
    ) -> None:
        sums: list[tuple[Instruction, ir.Scalar, str]] = []
        for value in nest.reduces:
            scalar, reducer = self.accumulator(value)
            self.body.add(ir.Accumulator(scalar, reducer))
            sums.append((value, scalar, reducer))
        with loops as environment:
            self.body.local = {
                value: self.exactly(value, residence, environment)
                for value, (residence, inner) in self.cached.items()
                if inner in (nest.inner, ())
            }
            for value, scalar, reducer in sums:
                operand = self.body.value(value.operands[0], environment)
                self.body.add(ir.Accumulate(scalar, reducer, convert(operand, scalar.dtype)))
            if nest.saved:
                free += self.read_last(plan, stage, nest, environment)
            for value in nest.saved:
                place = self.saved_buffer(value.shape.dtype, nest.inner, free)
                self.cached[value] = (place, nest.inner)
                element = self.body.value(value, environment)
                self.body.add(store(place, environment, element))
            for value in nest.demoted:
                place = self.scratch_buffer(value)
                self.cached[value] = (place, nest.inner)
                self.body.add(store(place, environment, self.body.value(value, environment)))
            for sink in nest.sinks:
                self.sink(sink, environment)
        self.body.local = {}
        for value, scalar, reducer in sums:
            if nest.inner and not self.geometry.interchanged:
                self.body.add(ir.LaneReduce(scalar, reducer, self.geometry.scope))
            result = self.body.finish(value, scalar, self.environment)
            self.body.define(value, self.environment, result)
            if self.geometry.rows_together > 1:
                place = self.saved_buffer(value.shape.dtype, (), free)
                self.cached[value] = (place, ())
                self.body.add(store(place, self.environment, result))
        for sink in nest.sinks:
            if sink.kind is SinkKind.STORE and sink.value in plan.read_back:
                place = self.turned.get(sink, self.context.residences[sink.value])
                self.cached[sink.value] = (place, nest.inner)

    def exactly(
        self, value: Instruction, residence: Residence, environment: Environment
    ) -> Residence:
        own = self.body.axes_of(value)
        exact = tuple(environment[axis] for axis in own)
        return replace(residence, exact=exact, at=indices(residence, environment))

    def accumulator(self, value: Instruction) -> tuple[ir.Scalar, str]:
        reducer = reducer_of(value)
        assert reducer is not None
        dtype = accumulation_dtype(value.shape.dtype)
        return ir.Scalar(self.context.names.new("a"), dtype), reducer

    def sink(self, sink: Sink, environment: Environment) -> None:
        if sink.kind is SinkKind.STORE:
            value = self.body.value(sink.value, environment)
            place = self.turned.get(sink, self.context.residences[sink.value])
            self.body.add(store(place, environment, value))
        elif is_update(sink.value):
            self.update_in_place(sink, environment)
        elif sink.kind is SinkKind.AROUND:
            value = self.body.value(sink.root, environment)
            self.body.add(store(self.context.residences[sink.value], environment, value))
        elif sink.kind is SinkKind.PIECE:
            target, source = views.piece_environments(
                self.axes, sink.value, sink.number, environment
            )
            value = self.body.value(sink.root, source)
            place = self.context.residences[sink.value]
            if sink in self.turned:
                place, target = self.turned[sink], dict(environment)
            self.body.add(store(place, target, value))
        else:
            self.accumulate(sink, environment)

    def update_in_place(self, sink: Sink, environment: Environment) -> None:
        """An element of an update's window, or one around it."""
        place, at = self.context.residences[sink.value], self.body.window_start(sink.value)
        if sink.kind is SinkKind.PIECE:
            value = self.body.value(sink.root, updates.of_piece(self.axes, sink.value, environment))
            target = updates.target(self.axes, sink.value, environment, at)
            self.body.add(store(place, target, value))
        elif at:
            value = self.body.value(sink.root, environment)
            inside = updates.inside(self.axes, sink.value, environment, at)
            outside = ir.Apply(op.NOT, (inside,), "pred")
            self.body.add(ir.If(outside, (store(place, environment, value),)))

    # ---- global reductions ---------------------------------------------------------------------
    def is_combined(self, value: Instruction) -> bool:
        """Whether `value` is a vector of global reductions whose parts a row adds up."""
        inner = self.inner(self.axes.of(value))
        return value in self.context.parts and bool(inner) and self.is_static(inner)

    def combine_parts(self, wanted: Sequence[Instruction]) -> None:
        """Parts of vectors are added up part by part into a LOCAL buffer, lanes innermost."""
        for value in filter(self.is_combined, wanted):
            inner = self.inner(self.axes.of(value))
            buffer, order = self.context.parts[value]
            place = self.local_buffer(combination_dtype(value), inner)
            self.clear(place, value)
            parts = self.body.loop("step", 0, buffer.dims[0], ir.LoopKind.SERIAL)
            with parts as part, self.lanes(inner) as environment:
                at = (part, *(environment[axis] for axis in order))
                element = convert(ir.Load(buffer, at), place.buffer.dtype)
                self.update(place, environment, value, element)
            self.body.combined[value] = place

    def clear(self, place: Residence, value: Instruction) -> None:
        """Fill a LOCAL buffer with the neutral element of `value`'s reducer."""
        reducer = reducer_of(value)
        assert reducer is not None
        with self.lanes(place.order) as environment:
            neutral = ir.Scalar(self.context.names.new("a"), place.buffer.dtype)
            self.body.add(ir.Accumulator(neutral, reducer))
            self.body.add(store(place, environment, neutral))

    def update(
        self, place: Residence, environment: Environment, reduce: Instruction, value: ir.Expression
    ) -> None:
        """buffer[i] = reducer(buffer[i], value)."""
        reducer = reducer_of(reduce)
        assert reducer is not None
        at = indices(place, environment)
        updated = ir.Apply(reducer, (ir.Load(place.buffer, at), value), place.buffer.dtype)
        self.body.add(ir.Store(place.buffer, at, updated))

    def accumulators(self) -> None:
        for sink in self.section.sinks:
            if sink.kind not in (SinkKind.PARTIAL, SinkKind.FINAL):
                continue
            scalar, reducer = self.accumulator(sink.value)
            self.scalars[sink] = scalar
            inner = self.inner(self.axes.of(sink.value))
            if not inner:
                self.body.add(ir.Accumulator(scalar, reducer))
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
            self.body.add(ir.Accumulate(scalar, reducer, value))
        else:
            self.update(place, environment, sink.value, value)

    def leave(self, sink: Sink, chunk: Index) -> None:
        """Store this task's part of a global reduction."""
        place = self.vectors.get(sink)
        if place is None:
            self.lane_reduce(sink)
            self.leave_element(sink, self.scalars[sink], self.environment, chunk)
            return
        with self.lanes(place.order) as environment:
            element = self.body.let(self.body.load(place, environment))
            self.leave_element(sink, element, environment, chunk)

    def lane_reduce(self, sink: Sink) -> None:
        """Make a task's scalar known to all of its lanes."""
        reducer = reducer_of(sink.value)
        assert reducer is not None
        if self.inner(domain_of(sink, self.axes)):
            self.body.add(ir.LaneReduce(self.scalars[sink], reducer, self.geometry.scope))

    def leave_element(
        self, sink: Sink, element: ir.Scalar, environment: Environment, chunk: Index
    ) -> None:
        buffer, order = self.context.parts[sink.value]
        loops = self.section.loops
        part = chunk
        if loops is not None and loops.lane_reduced and self.geometry.lane_block is not None:
            part = index.add(index.multiply(chunk, self.geometry.lane_blocks), self.part)
        at = (part, *(environment[axis] for axis in order))
        self.body.add(ir.Store(buffer, at, element))

    def finish(self, sinks: Sequence[Sink]) -> None:
        """Store the values of the global reductions that this task finishes, and what is made of
        them: all have the same elements, so one loop does."""
        if not sinks:
            return
        place = self.vectors.get(sinks[0])
        for sink in sinks:
            if place is None:
                self.lane_reduce(sink)
        with nullcontext(self.environment) if place is None else self.lanes(place.order) as at:
            for sink in sinks:
                own = self.vectors.get(sink)
                element = self.scalars[sink]
                if own is not None:
                    element = self.body.let(self.body.load(own, at))
                value = self.body.finish(sink.value, element, at)
                self.body.define(sink.value, at, value)
                if sink.value in self.context.scheme.stored:
                    self.body.add(store(self.context.residences[sink.value], at, value))
            for stored in self.section.epilogue:
                value = self.body.value(stored, at)
                self.body.add(store(self.context.residences[stored], at, value))

    def invariant_values(self, values: Sequence[Instruction]) -> None:
        """Values that are the same in every row, computed once a task into LOCAL buffers."""
        for value in values:
            place = self.local_buffer(value.shape.dtype, self.inner(self.axes.of(value)))
            with self.lanes(place.order) as environment:
                element = self.body.value(value, environment)
                self.body.add(store(place, environment, element))
            self.cached[value] = (place, place.order)
