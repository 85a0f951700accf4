"""Index maps of updates in place: the window of the first operand that the second one replaces.

Where the window begins, other operands say; it is clamped so that the whole of it lies inside (the
StableHLO specification, `dynamic_update_slice`). An update that is stored is two things to store:
its window, and what lies around it (AROUND). Where input and output are the same memory the second
is there already, so that section is left out (`Section.copy_unless_aliased`) and only the window
is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.loop_ir import index
from stitchcore.loop_ir.index import Index
from stitchcore.loop_ir.nodes import Apply, Expression, InRange
from stitchcore.schedule.axes import Axes, Axis
from stitchcore.schedule.views import Environment, bind_row, dim_index

FIRST_START = 2
"""Operands: what is updated, the window's new elements, where it begins along each dimension."""


def moving(update: Instruction) -> list[int]:
    """Dimensions along which the window can begin at more than one place."""
    operand, window = update.operands[0].shape.dims, update.operands[1].shape.dims
    return [d for d, (whole, part) in enumerate(zip(operand, window, strict=True)) if whole != part]


def starts(update: Instruction) -> dict[int, tuple[Instruction, Index]]:
    """By dimension along which the window moves: where it begins, and the last place it may."""
    operand, window = update.operands[0].shape.dims, update.operands[1].shape.dims
    return {
        d: (update.operands[FIRST_START + d], index.from_dim(operand[d] - window[d]))
        for d in moving(update)
    }


def target(
    axes: Axes, update: Instruction, environment: Environment, at: Mapping[int, Index]
) -> dict[Axis, Index]:
    """The axes of an update, for the loops over its window, which begins `at`."""
    bound: dict[Axis, Index] = {}
    rows = axes.pieces[update, 1]
    for d, (wanted, row) in enumerate(zip(axes.dims[update], rows, strict=True)):
        if wanted and wanted == row and d not in at:
            bound.update((axis, environment[axis]) for axis in row)
        elif wanted:
            position = index.add(at.get(d, 0), dim_index(axes, row, environment))
            bind_row(axes, wanted, position, bound)
    return bound


def source(
    axes: Axes, update: Instruction, environment: Environment, at: Mapping[int, Index]
) -> dict[Axis, Index]:
    """The axes of the window's elements, for an element of the update: clamped into the window."""
    bound: dict[Axis, Index] = {}
    window = update.operands[1]
    for d, wanted in enumerate(axes.dims[window]):
        if not wanted:
            continue
        position = dim_index(axes, axes.dims[update][d], environment)
        if d in at:
            last = index.from_dim(window.shape.dims[d] - 1)
            shifted = index.add(position, index.multiply(at[d], -1))
            position = index.maximum(index.minimum(shifted, last), 0)
        bind_row(axes, wanted, position, bound)
    return bound


def of_piece(axes: Axes, update: Instruction, environment: Environment) -> dict[Axis, Index]:
    """The axes of the window's elements, for the loops over it."""
    bound: dict[Axis, Index] = {}
    rows = axes.pieces[update, 1]
    for wanted, row in zip(axes.dims[update.operands[1]], rows, strict=True):
        if wanted and wanted == row:
            bound.update((axis, environment[axis]) for axis in row)
        elif wanted:
            bind_row(axes, wanted, dim_index(axes, row, environment), bound)
    return bound


def inside(
    axes: Axes, update: Instruction, environment: Environment, at: Mapping[int, Index]
) -> Expression:
    """Whether an element of the update lies in its window, of which `at` is not empty."""
    tests: list[Expression] = []
    for d, begin in at.items():
        size = index.from_dim(update.operands[1].shape.dims[d])
        position = dim_index(axes, axes.dims[update][d], environment)
        tests.append(InRange(position, begin, index.add(begin, size)))
    return conjunction(tests)


def conjunction(tests: Sequence[Expression]) -> Expression:
    """All of `tests`, of which there is at least one."""
    condition = tests[0]
    for test in tests[1:]:
        condition = Apply(op.AND, (condition, test), "pred")
    return condition
