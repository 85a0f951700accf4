"""Scatters: each task owns a range of destination rows and goes through all updates in their order.

Every row is summed by one task, in the order of the indices: the result does not depend on threads,
and no atomic operation is needed. Indices are a few bytes beside the rows that they name, so tasks
are as many as keep reading all of them small beside adding rows up. What is scattered into lies
there already (its own section in the phase before: `Section.copy_unless_aliased`, scheme.AROUND).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.hlo.ir.query import scatter_combiner
from stitchcore.loop_ir import index
from stitchcore.loop_ir.index import Index, Variable
from stitchcore.loop_ir.nodes import (
    Apply,
    Expression,
    FromIndex,
    Load,
    LoopKind,
    Scalar,
    Section,
    Store,
)
from stitchcore.schedule.axes import Axis
from stitchcore.schedule.constants import convert
from stitchcore.schedule.context import SectionContext
from stitchcore.schedule.sections import Sink
from stitchcore.schedule.updates import conjunction
from stitchcore.schedule.values import Body, indices
from stitchcore.schedule.views import bind_row, dim_index

INDICES, UPDATES = 1, 2
"""Numbers of a scatter's operands; the first is what is scattered into."""

ROW_PER_OWNER = 16
"""Elements of a row that take as long as looking at the indices of a few: so wide a row for every
task, else indices are most of the work."""


def lower(context: SectionContext, phase: int, sink: Sink) -> Section:
    """The section that applies the updates of `sink`'s scatter."""
    return _Scatter(context, phase, sink.value).section()


class _Scatter:
    def __init__(self, context: SectionContext, phase: int, value: Instruction) -> None:
        self.axes, self.value = context.axes, value
        self.place = context.residences[value]
        names = context.names
        self.body = Body(
            context.axes, names, lambda v: context.residence(v, phase), context.parts.get,
            context.errors,
        )  # fmt: skip
        self.task = names.new("task")
        self.rows = context.axes.pieces[value, UPDATES]
        self.window = tuple(value["update_window_dims"])
        self.most = context.limits.max_splits

    def section(self) -> Section:
        value, body = self.value, self.body
        first = value["scatter_dims_to_operand_dims"][0]
        extent = index.from_dim(value.shape.dims[first])
        tasks = _owners(value, self.most)
        rows = index.ceil_divide(extent, tasks)
        begin = index.multiply(Variable(self.task), rows)
        owned = (begin, index.minimum(index.add(begin, rows), extent))
        batch = [row for d, row in enumerate(self.rows) if d not in self.window]
        window = [self.rows[d] for d in self.window]
        with self.loops([axis for row in batch for axis in row], LoopKind.SERIAL) as environment:
            places = self.places(environment)
            with body.guarded(self.named(places, owned)):
                at = self.positions(places)
                with self.loops([a for row in window for a in row], LoopKind.LANES) as inner:
                    self.apply(environment | inner, at)
        return Section(self.task, tasks, tuple(body.blocks[0].statements))

    @contextmanager
    def loops(self, axes: Sequence[Axis], last: LoopKind) -> Iterator[dict[Axis, Index]]:
        """Loops over `axes`, the innermost of the kind `last`; of lanes there is one loop always,
        so that the lane that touches an element is the same in every iteration around it."""
        environment: dict[Axis, Index] = {}
        with ExitStack() as stack:
            for number, axis in enumerate(axes):
                inner = number + 1 == len(axes)
                end = index.from_dim(self.axes.extents[axis])
                kind = last if inner else LoopKind.SERIAL
                stem = "lane" if kind is LoopKind.LANES else "step"
                environment[axis] = stack.enter_context(self.body.loop(stem, 0, end, kind))
            if not axes and last is LoopKind.LANES:
                stack.enter_context(self.body.loop("lane", 0, 1, last))
            yield environment

    def places(self, environment: dict[Axis, Index]) -> list[Scalar]:
        """The components of this iteration's index vector, as integers of 64 bits."""
        value, vectors = self.value, self.value.operands[INDICES]
        batch = [row for d, row in enumerate(self.rows) if d not in self.window]
        vector = value["index_vector_dim"]
        components = []
        for component in range(len(value["scatter_dims_to_operand_dims"])):
            bound: dict[Axis, Index] = {}
            batch_rows = iter(batch)
            for d, wanted in enumerate(self.axes.dims[vectors]):
                row = None if d == vector else next(batch_rows)
                at = component if row is None else dim_index(self.axes, row, environment)
                if wanted:
                    bind_row(self.axes, wanted, at, bound)
            wide = convert(self.body.value(vectors, bound), "s64")
            components.append(wide if isinstance(wide, Scalar) else self.body.let(wide))
        return components

    def named(self, places: Sequence[Scalar], owned: tuple[Index, Index]) -> Expression:
        """Whether the row is one of this task's: the first component says, others need only fit."""
        tests: list[Expression] = []
        for number, d in enumerate(self.value["scatter_dims_to_operand_dims"]):
            whole = (0, index.from_dim(self.value.shape.dims[d]))
            low, high = owned if number == 0 else whole
            for limit, direction in ((low, "GE"), (high, "LT")):
                pair = (places[number], FromIndex(limit, "s64"))
                tests.append(Apply(op.COMPARE, pair, "pred", (("direction", direction),)))
        return conjunction(tests)

    def positions(self, places: Sequence[Scalar]) -> dict[int, Index]:
        """By dimension of the result, where the row is."""
        starts: dict[int, Index] = {}
        for d, place in zip(self.value["scatter_dims_to_operand_dims"], places, strict=True):
            last = index.from_dim(self.value.shape.dims[d] - 1)
            starts[d] = self.body.gather_index(place, last)
        return starts

    def apply(self, environment: dict[Axis, Index], at: dict[int, Index]) -> None:
        """One element of the row."""
        value, axes = self.value, self.axes
        update: dict[Axis, Index] = {}
        for wanted, row in zip(axes.dims[value.operands[UPDATES]], self.rows, strict=True):
            if wanted:
                bind_row(axes, wanted, dim_index(axes, row, environment), update)
        new = self.body.value(value.operands[UPDATES], update)
        bound: dict[Axis, Index] = {}
        window = iter(self.window)
        for d, wanted in enumerate(axes.dims[value]):
            place = at[d] if d in at else dim_index(axes, self.rows[next(window)], environment)
            if wanted:
                bind_row(axes, wanted, place, bound)
        where = indices(self.place, bound)
        combiner = scatter_combiner(value)
        if combiner is not None:
            new = Apply(combiner, (Load(self.place.buffer, where), new), value.shape.dtype)
        self.body.add(Store(self.place.buffer, where, new))


def _owners(value: Instruction, most: int) -> int:
    """Tasks of a scatter, each with a range of its destination's rows."""
    extent = value.shape.dims[value["scatter_dims_to_operand_dims"][0]]
    dims = [value.operands[UPDATES].shape.dims[d] for d in value["update_window_dims"]]
    width = math.prod(d if isinstance(d, int) else 1 for d in dims)
    tasks = max(min(width // ROW_PER_OWNER, most), 1)
    return min(tasks, extent) if isinstance(extent, int) and extent > 0 else tasks
