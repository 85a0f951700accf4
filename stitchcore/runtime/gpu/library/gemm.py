"""A dot as one batched matrix product over strides, as cuBLAS takes it.

HLO's result is [batch..., left free..., right free...], row-major. Each operand becomes
[batch, rows, columns] by strides where its dimensions allow; where they do not, it is first copied
into that order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stitchcore.hlo.ir.instruction import Instruction

FLOATS = frozenset({"f16", "bf16", "f32", "f64"})
"""What cuBLAS multiplies."""


@dataclass(frozen=True)
class Matrices:
    """An operand as `batch` matrices of rows x columns. Elements from one row, column or matrix to
    the next; of `row` and `column` one is 1. With `order` its dimensions are first copied into that
    order, and the strides are those of the copy."""

    row: int
    column: int
    matrix: int
    order: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Gemm:
    """`batch` products of [m, k] by [k, n]; the result is dense. `reduced` says that float32
    operands may be rounded to TF32, as XLA does where no precision is asked for."""

    batch: int
    m: int
    n: int
    k: int
    left: Matrices
    right: Matrices
    dtype: str
    reduced: bool


def gemm(node: Instruction) -> Gemm:
    """The product that `node`, a dot of two arrays of one float type, is."""
    left, right = node.operands
    pairs = tuple(zip(node["lhs_contracting_dims"], node["rhs_contracting_dims"], strict=True))
    batches = tuple(
        zip(node.get("lhs_batch_dims", ()), node.get("rhs_batch_dims", ()), strict=True)
    )
    sides = []
    # summed dimensions may come in any order, the same on both sides: the left's or the right's
    for chosen in (pairs, tuple(sorted(pairs)), tuple(sorted(pairs, key=lambda pair: pair[1]))):
        sides.append(
            tuple(
                _matrices(
                    operand.shape.static,
                    [b[side] for b in batches],
                    [c[side] for c in chosen],
                    side,
                )
                for side, operand in enumerate((left, right))
            )
        )
    best = min(sides, key=lambda pair: sum(setting.order is not None for setting in pair))
    extents = left.shape.static
    contracted = math.prod(extents[a] for a, _ in pairs)
    batch = math.prod(extents[a] for a, _ in batches)
    rows = math.prod(extents) // max(contracted * batch, 1)
    columns = math.prod(right.shape.static) // max(contracted * batch, 1)
    precision = node.get("operand_precision", ())
    reduced = not any(str(setting) in ("high", "highest") for setting in precision)
    return Gemm(batch, rows, columns, contracted, best[0], best[1], left.shape.dtype, reduced)


def _matrices(
    extents: Sequence[int], batch: Sequence[int], contracted: Sequence[int], side: int
) -> Matrices:
    free = [axis for axis in range(len(extents)) if axis not in (*batch, *contracted)]
    groups = (batch, free, contracted) if side == 0 else (batch, contracted, free)
    matrices = _strided(extents, groups, _dense(extents))
    if matrices is not None:
        return matrices
    order = tuple(axis for group in groups for axis in group)
    strides = dict(zip(order, _dense([extents[axis] for axis in order]), strict=True))
    matrices = _strided(extents, groups, [strides[axis] for axis in range(len(extents))])
    assert matrices is not None, "dense in this order"
    return Matrices(matrices.row, matrices.column, matrices.matrix, order)


def _strided(
    extents: Sequence[int], groups: Sequence[Sequence[int]], strides: Sequence[int]
) -> Matrices | None:
    steps = [_step(extents, group, strides) for group in groups]
    if None in steps:
        return None
    matrix, row, column = (step or 0 for step in steps)
    rows, columns = (math.prod(extents[axis] for axis in group) for group in groups[1:])
    # the step along an extent of 1 is free: it is what makes the other the leading dimension
    if rows == 1:
        row = columns if column == 1 else 1
    if columns == 1:
        column = rows if row == 1 else 1
    return Matrices(row, column, matrix) if 1 in (row, column) else None


def _step(extents: Sequence[int], group: Sequence[int], strides: Sequence[int]) -> int | None:
    """Elements from one index of the collapsed dimensions to the next: 0 for a single index, None
    where there is no one number."""
    step, span = 0, 0
    for axis in reversed(group):
        if extents[axis] == 1:
            continue
        if not span:
            step = strides[axis]
        elif strides[axis] != span:
            return None
        span = strides[axis] * extents[axis]
    return step


def _dense(extents: Sequence[int]) -> list[int]:
    strides = [1] * len(extents)
    for axis in range(len(extents) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * extents[axis + 1]
    return strides
