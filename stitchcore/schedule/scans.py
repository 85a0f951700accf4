"""Cumulative sums: a loop along the axis that carries what it has so far; lanes beside the axis.

A lane has one element of every axis but the scanned one and goes along that in order, so results
depend on no thread. On a CPU the loops are turned inside out where they are rendered: a step of the
pass is a vector of carried sums (codegen/c_lane_tiles.py). These have the values' type:
TensorFlow's kernel on a CPU goes along the axis too, so results are its own, bit for bit
(tests/tensorflow/test_scans.py). On a GPU, where it adds in a tree, sums are carried in f64: the
last of n has n roundings otherwise. Operands are computed on the way, and so are values of the
results' own elements (reduction_epilogue.py). What reads them otherwise goes on in the same kernel
once all are there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from stitchcore.device.records import Device
from stitchcore.errors import Reason
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.cumulative import scan_of, scan_refusal
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.hlo.ir.query import reducer_of
from stitchcore.loop_ir import index
from stitchcore.loop_ir.index import Index, Variable
from stitchcore.loop_ir.nodes import Accumulate, Accumulator, LoopKind, Scalar, Section
from stitchcore.schedule import tiling
from stitchcore.schedule.axes import Axis
from stitchcore.schedule.constants import convert
from stitchcore.schedule.context import SectionContext
from stitchcore.schedule.sections import SectionScheme
from stitchcore.schedule.values import Body, accumulation_dtype, combination_dtype, store
from stitchcore.schedule.views import bind_row, dim_index

COLUMNS, ROWS = 64, 8
"""Lanes of a CPU's task: at least so many columns side by side, four cache lines of floats a step;
of rows no more than have their lines in one set of the first cache where they lie a large power of
two apart (512 rows of 4096 floats: 0.84 ns an element with 8, 10.4 with 16)."""


def refusal(value: Instruction, device: Device) -> tuple[Reason, str] | None:
    """Why `device` has no scan like `value` in a kernel."""
    why = scan_refusal(value)
    if why is not None:
        return Reason.UNSUPPORTED_OPCODE, why
    scan = scan_of(value)
    assert scan is not None
    beside = tiling.size_of(value.shape.dims[scan.dim + 1 :])
    if device.kind == "gpu" and beside < device.lanes:
        detail = f"a scan beside which {beside} elements lie, of {device.lanes} lanes"
        return Reason.NOT_PROFITABLE, detail
    return None


def lower(context: SectionContext, phase: int, section: SectionScheme) -> Section:
    """The section that makes the scan of `section`, and what is computed from its elements."""
    return _Scan(context, phase, section).section()


class _Scan:
    def __init__(self, context: SectionContext, phase: int, section: SectionScheme) -> None:
        value = section.sinks[0].value
        scan = scan_of(value)
        assert scan is not None
        self.axes, self.value, self.scan = context.axes, value, scan
        stored = [v for v in (value, *section.epilogue) if v in context.scheme.stored]
        self.places = {v: context.residences[v] for v in stored}
        self.body = Body(
            context.axes, context.names, lambda v: context.residence(v, phase), context.parts.get,
            context.errors,
        )  # fmt: skip
        self.names, self.limits = context.names, context.limits
        scanned = context.axes.dims[value][scan.dim] or ()
        order = self.places[stored[0]].order
        kept = tuple(axis for axis in order if axis not in scanned)
        self.rows, self.lane = kept[:-1], kept[-1] if kept else None
        self.along_memory = bool(order) and order[-1] in scanned

    def section(self) -> Section:
        task = self.names.new("task")
        extents = self.axes.extents
        lanes = index.from_dim(extents[self.lane]) if self.lane is not None else 1
        count = index.from_dim(tiling.product(extents[axis] for axis in self.rows))
        block, chunk = self.block(), 1
        blocks = index.ceil_divide(lanes, block)
        if isinstance(lanes, int) and lanes <= block:
            chunk, block, blocks = max(block // max(lanes, 1), 1), lanes, 1
        chunks = index.ceil_divide(count, chunk)
        begin = index.multiply(index.modulo(Variable(task), blocks), block)
        width = index.minimum(block, index.add(lanes, index.multiply(begin, -1)))
        if isinstance(lanes, int) and lanes % max(block, 1) == 0:
            width = block
        first = index.multiply(index.floor_divide(Variable(task), blocks), chunk)
        last = index.minimum(index.add(first, chunk), count)
        with self.row_loop(first, last, chunk) as rows, self.lane_loop(begin, width) as lane:
            self.walk(rows | lane)
        tasks = index.multiply(chunks, blocks)
        return Section(task, tasks, tuple(self.body.blocks[0].statements))

    def block(self) -> int:
        """Lanes of a task, where there are more."""
        limits = self.limits
        if self.along_memory and not limits.run_lanes:
            return ROWS
        length = max(tiling.size_of((self.value.shape.dims[self.scan.dim],)), 1)
        least = limits.run_lanes or COLUMNS
        return max(limits.task_elements // length // least, 1) * least

    @contextmanager
    def row_loop(self, first: Index, last: Index, chunk: int) -> Iterator[dict[Axis, Index]]:
        bound: dict[Axis, Index] = {}
        if chunk == 1 or not self.rows:
            bind_row(self.axes, self.rows, first, bound)
            yield bound
            return
        with self.body.loop("row", first, last, LoopKind.SERIAL) as row:
            bind_row(self.axes, self.rows, row, bound)
            yield bound

    @contextmanager
    def lane_loop(self, begin: Index, width: Index) -> Iterator[dict[Axis, Index]]:
        """Without an axis beside the scanned one there is one sum, and lanes have nothing to do."""
        if self.lane is None:
            yield {}
            return
        with self.body.loop("lane", 0, width, LoopKind.LANES) as lane:
            yield {self.lane: index.add(begin, lane)}

    def walk(self, beside: dict[Axis, Index]) -> None:
        """The pass along the axis, for one element of the axes `beside` it."""
        value, scan, reducer = self.value, self.scan, reducer_of(self.value)
        assert reducer is not None
        dtype = accumulation_dtype(value.shape.dtype)
        if reducer == op.ADD and self.limits.run_lanes:
            dtype = combination_dtype(value)
        carried = Scalar(self.names.new("a"), dtype)
        self.body.add(Accumulator(carried, reducer))
        count = index.from_dim(value.shape.dims[scan.dim])
        if scan.exclusive:
            self.leave(carried, beside, 0, count)
            count = index.add(count, -1)
        extent = index.from_dim(value.operands[0].shape.dims[scan.dim])
        with self.body.loop("step", 0, count, LoopKind.SERIAL) as step:
            element = self.body.value(
                value.operands[0], self.operand_environment(beside, step, extent)
            )
            self.body.add(Accumulate(carried, reducer, convert(element, dtype)))
            whole = index.from_dim(value.shape.dims[scan.dim])
            self.leave(carried, beside, index.add(step, int(scan.exclusive)), whole)

    def leave(self, carried: Scalar, beside: dict[Axis, Index], at: Index, count: Index) -> None:
        """What is carried is the result's element `at` of the pass, which has `count`: store it and
        what is computed from it."""
        bound = dict(beside)
        row = self.axes.dims[self.value][self.scan.dim]
        bind_row(self.axes, row or (), self.counted(at, count), bound)
        element = self.body.let(convert(carried, self.value.shape.dtype))
        self.body.define(self.value, bound, element)
        for value, place in self.places.items():
            self.body.add(store(place, bound, self.body.value(value, bound)))

    def operand_environment(
        self, beside: dict[Axis, Index], at: Index, extent: Index
    ) -> dict[Axis, Index]:
        """The operand's axes, for its element `at` of the pass."""
        axes, operand = self.axes, self.value.operands[0]
        bound: dict[Axis, Index] = {}
        for d, wanted in enumerate(axes.dims[operand]):
            row = axes.dims[self.value][d]
            if d == self.scan.dim:
                bind_row(axes, wanted or (), self.counted(at, extent), bound)
            elif wanted == row:
                bound.update((axis, beside[axis]) for axis in wanted or ())
            elif wanted:
                bind_row(axes, wanted, dim_index(axes, row, beside), bound)
        return bound

    def counted(self, at: Index, count: Index) -> Index:
        """Where element `at` of the pass lies among `count`."""
        if not self.scan.reverse:
            return at
        return index.add(index.add(count, -1), index.multiply(at, -1))
