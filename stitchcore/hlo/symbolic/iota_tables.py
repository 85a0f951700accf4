"""Array constants that are functions of their indices, recognised at several sizes at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from stitchcore.hlo.ir import builder
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.hlo.ir.literal import Literal, from_array
from stitchcore.hlo.ir.numerics import Array
from stitchcore.hlo.ir.shape import Shape

MakeScalar = Callable[[Sequence[Literal]], Instruction]
"""One scalar instruction from its values at all points."""


def table(literals: Sequence[Literal], shape: Shape, scalar: MakeScalar) -> Instruction | None:
    """`literals` as one expression of symbolic `shape`: a splat, a scaled iota, a band mask."""
    if any(literal.array.size == 0 for literal in literals):
        return None
    for recognise in (_splat, _iota, _band):
        expression = recognise(literals, shape, scalar)
        if expression is not None:
            return expression
    return None


def _first(literals: Sequence[Literal]) -> list[Literal]:
    return [from_array(x.array.reshape(-1)[0], x.dtype) for x in literals]


def _splat(literals: Sequence[Literal], shape: Shape, scalar: MakeScalar) -> Instruction | None:
    for literal, first in zip(literals, _first(literals), strict=True):
        if literal.data != first.data * literal.array.size:
            return None
    return builder.broadcast(scalar(_first(literals)), shape.dims, ())


def _iota(literals: Sequence[Literal], shape: Shape, scalar: MakeScalar) -> Instruction | None:
    """start + step * index along one dimension, exact in the element type."""
    if shape.dtype == "pred":
        return None
    for axis in range(shape.rank):
        if any(literal.dims[axis] < 2 for literal in literals):
            continue
        steps = []
        for literal in literals:
            array = literal.array
            line = np.moveaxis(array, axis, 0)[(slice(None),) + (0,) * (array.ndim - 1)]
            step = np.asarray(line[1] - line[0], array.dtype)
            expected = _expand(
                line[0] + step * np.arange(len(line)).astype(array.dtype), axis, array
            )
            if not np.array_equal(expected.astype(array.dtype), array):
                break
            steps.append(from_array(step, literal.dtype))
        else:
            counted: Instruction = builder.iota(shape.dtype, shape.dims, axis)
            if any(s.scalar != 1 for s in steps):
                factor = builder.broadcast(scalar(steps), shape.dims, ())
                counted = builder.elementwise(op.MULTIPLY, counted, factor)
            starts = _first(literals)
            if any(s.scalar != 0 for s in starts):
                start = builder.broadcast(scalar(starts), shape.dims, ())
                counted = builder.elementwise(op.ADD, counted, start)
            return counted
    return None


def _expand(line: Array, axis: int, like: Array) -> Array:
    return np.broadcast_to(
        line.reshape([-1 if i == axis else 1 for i in range(like.ndim)]), like.shape
    )


def _band(literals: Sequence[Literal], shape: Shape, scalar: MakeScalar) -> Instruction | None:
    """One value where row >= column + offset, another elsewhere: causal masks, in the last two
    dimensions."""
    if shape.rank < 2 or any(min(x.dims[-2:]) < 2 for x in literals):
        return None
    inside: list[Literal] = []
    outside: list[Literal] = []
    offsets = set()
    for literal in literals:
        band = _band_of(literal.array)
        if band is None:
            return None
        offset, low, high = band
        offsets.add(offset)
        inside.append(from_array(low, literal.dtype))
        outside.append(from_array(high, literal.dtype))
    if len(offsets) != 1:
        return None
    row = builder.iota("s32", shape.dims, shape.rank - 2)
    column = builder.iota("s32", shape.dims, shape.rank - 1)
    shift = builder.broadcast(builder.constant(offsets.pop(), "s32"), shape.dims, ())
    edge = builder.elementwise(op.ADD, column, shift)
    mask = builder.elementwise(op.COMPARE, row, edge, direction="GE")
    on_true = builder.broadcast(scalar(inside), shape.dims, ())
    on_false = builder.broadcast(scalar(outside), shape.dims, ())
    return builder.elementwise(op.SELECT, mask, on_true, on_false)


def _band_of(array: Array) -> tuple[int, Array, Array] | None:
    """(offset, value where row >= column + offset, value elsewhere)."""
    rows, columns = array.shape[-2:]
    plane = array.reshape(-1, rows, columns)[0]
    low, high = plane[-1, 0], plane[0, -1]
    if low == high:
        return None
    in_first_row = int(np.argmax(plane[0] != low)) if (plane[0] != low).any() else columns
    offset = 1 - in_first_row
    if in_first_row == 0:
        offset = int(np.argmax(plane[:, 0] == low))
    mask = np.arange(rows)[:, None] >= np.arange(columns)[None, :] + offset
    expected = np.where(mask, low, high).astype(array.dtype)
    if not np.array_equal(np.broadcast_to(expected, array.shape), array):
        return None
    return offset, np.asarray(low, array.dtype), np.asarray(high, array.dtype)
