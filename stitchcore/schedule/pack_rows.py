"""Short rows packed into one long lane loop: [28, 36] as 1008 lanes instead of 28 times 36.

Rows that do not fill whole vectors leave a remainder each; end to end they leave one. A value that
varies along rows or lanes only is spread over a LOCAL buffer first, so that every access of the
packed loop is dense; where one is not (a transposed view, a slice of lanes), rows stay apart. Rows
shorter than a vector are packed too where they are read in another order (an image flipped): what
is moved so is spread, element by element, and the rest is vectors; what is written so leaves the
rest by a LOCAL buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.dim import Dim
from stitchcore.hlo.ir.instruction import Instruction, reachable
from stitchcore.loop_ir import index
from stitchcore.loop_ir.layout import flat_index
from stitchcore.loop_ir.nodes import Loop, Section
from stitchcore.loop_ir.visitor import accesses, statements
from stitchcore.schedule.axes import Axes, Axis
from stitchcore.schedule.cache_hints import unit_stride
from stitchcore.schedule.row_stages import Stages
from stitchcore.schedule.sections import Sink, SinkKind
from stitchcore.schedule.tiling import VECTOR, Geometry, no_vector
from stitchcore.schedule.views import is_moved

PACKED: Axis = -2
"""Stands for the place of an element in a task's packed rows, in LOCAL buffers over them."""

STEM = "packed"
"""Lane variables of packed loops begin so."""

SHORT = 256


def pays(
    plan: Stages, sinks: Sequence[Sink], geometry: Geometry, extents: Mapping[Axis, Dim]
) -> bool:
    """Whether the rows of a section are short, leave remainders, and are all it loops over."""
    lane, rows = geometry.lane, geometry.rows_per_task
    if lane is None or not isinstance(rows, int) or rows < 2 or plan.invariant:
        return False
    extent = extents[lane]
    if len(plan.nests) == 1:
        moved = any(map(is_moved, plan.wanted)) or any(map(moves_out, sinks))
        short = no_vector(extent) and moved
    else:
        short = isinstance(extent, int) and extent < SHORT and extent % VECTOR != 0
    return short and all(nest.inner == (lane,) for nests in plan.nests for nest in nests)


def moves_out(sink: Sink) -> bool:
    """Whether what a section computes goes to other places than it is computed for."""
    flipped = sink.kind is SinkKind.PIECE and sink.value.opcode == op.REVERSE
    return flipped and is_moved(sink.value)


def flattens(plan: Stages, geometry: Geometry, extents: Mapping[Axis, Dim], below: int) -> bool:
    """Whether short rows become one lane loop as they are: lanes that would have nothing to do cost
    more than quotients and remainders, and caches see to what is not dense."""
    lane, rows = geometry.lane, geometry.rows_per_task
    if lane is None or geometry.lane_block is not None or not geometry.rows or plan.invariant:
        return False
    if not isinstance(rows, int) or rows < 2 or len(plan.nests) != 1:
        return False
    extent = extents[lane]
    short = isinstance(extent, int) and extent < below
    return short and all(nest.inner == (lane,) and not nest.reduces for nest in plan.nests[0])


def partial(
    roots: Iterable[Instruction],
    axes: Axes,
    whole: frozenset[Axis],
    in_memory: Callable[[Instruction], bool],
    cached: Iterable[Instruction],
    operands: Callable[[Instruction], Sequence[Instruction]],
    moves: bool,
) -> list[Instruction]:
    """Values that vary along some axes of `whole`, or (where it `moves` any) are moved, used by
    others that vary along all of them."""
    known = frozenset(cached)

    def is_partial(value: Instruction) -> bool:
        own = frozenset(axes.of(value))
        return bool(own) and (own < whole or (moves and own == whole and is_moved(value)))

    def stop(value: Instruction) -> bool:
        if value in known or is_partial(value) or in_memory(value):
            return True
        return op.record(value.opcode).kind == "constant"

    values = reachable(roots, stop, operands)
    return [value for value in values if value not in known and is_partial(value)]


def is_dense(section: Section) -> bool:
    """Whether every access of a section's packed loops is to neighbouring elements."""
    for loop in statements(section.body):
        if not isinstance(loop, Loop) or not loop.variable.startswith(STEM):
            continue
        for access in accesses(loop.body):
            place = index.collapse(flat_index(access.buffer, access.indices))
            if index.mentions(place, loop.variable) and not unit_stride((place,), loop.variable):
                return False
    return True
