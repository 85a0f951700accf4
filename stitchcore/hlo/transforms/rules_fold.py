"""Constant folding, and computing before a broadcast instead of after it."""

from __future__ import annotations

import numpy as np

from stitchcore.hlo.evaluator.evaluate import apply
from stitchcore.hlo.ir import builder
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction, instruction
from stitchcore.hlo.ir.literal import Literal, from_array
from stitchcore.hlo.ir.query import reducer_of
from stitchcore.hlo.ir.shape import DTYPES, Shape

FOLD_ELEMENTS = 1 << 16
"""Results above this many elements are not folded: text and kernels would carry them."""


def literal_of(node: Instruction) -> Literal | None:
    """The value of a constant that is not symbolic."""
    value = node.get("value") if node.opcode == op.CONSTANT else None
    return value if isinstance(value, Literal) else None


def splat_of(node: Instruction) -> Literal | None:
    """The scalar that every element of `node` is known to be."""
    while node.opcode in (op.BROADCAST, op.RESHAPE):
        node = node.operands[0]
    literal = literal_of(node)
    if literal is None or literal.array.size == 0:
        return None
    if literal.dims == ():
        return literal
    width = DTYPES[literal.dtype].bytes
    first = literal.data[:width]
    if literal.array.size <= 4096 and literal.data == first * literal.array.size:
        return Literal(literal.dtype, (), first)
    return None


def zero_sized(node: Instruction) -> Instruction | None:
    """A part without elements is of nothing in particular, and padded it is padding."""
    shape = node.shape
    if shape.size == 0:
        zero = builder.literal(from_array(np.zeros((), DTYPES[shape.dtype].numpy), shape.dtype))
        return builder.broadcast(zero, shape.dims, ())
    if node.opcode == op.PAD and node.operands[0].shape.size == 0:
        return builder.broadcast(node.operands[1], shape.dims, ())
    return None


def fold_constants(node: Instruction) -> Instruction | None:
    """All operands are constants and the result does not grow beyond them."""
    if not node.operands or any(literal_of(o) is None for o in node.operands):
        return None
    size = node.shape.size
    if node.shape.elements is not None or not isinstance(size, int) or size > FOLD_ELEMENTS:
        return None
    if node.opcode == op.REDUCE and not _exact_reduction(node):
        return None
    values = [node_literal.array for o in node.operands if (node_literal := literal_of(o))]
    result = np.asarray(apply(node, values))
    return builder.literal(from_array(result, node.shape.dtype))


def _exact_reduction(node: Instruction) -> bool:
    """Independent of the order of its operations."""
    reducer = reducer_of(node)
    exact = DTYPES[node.shape.dtype].kind != "float" or reducer in (op.MAXIMUM, op.MINIMUM)
    return reducer is not None and exact


def narrow_elementwise(node: Instruction) -> Instruction | None:
    """f(broadcast(x), broadcast(y), splats) is broadcast(f(x, y, splats)) for equal broadcasts."""
    if node.shape.rank == 0 or not node.operands or node.shape.bounded:
        return None
    axes: tuple[int, ...] | None = None
    for operand in node.operands:
        if splat_of(operand) is not None or operand.shape.rank == 0:
            continue
        if operand.opcode != op.BROADCAST or axes not in (None, operand["dimensions"]):
            return None
        axes = operand["dimensions"]
    if axes is None:
        axes = ()
    if len(axes) == node.shape.rank:
        return None
    dims = tuple(node.shape.dims[axis] for axis in axes)
    operands = []
    for operand in node.operands:
        splat = splat_of(operand)
        if splat is not None:
            scalar = builder.literal(splat)
            is_array = dims and operand.shape.rank > 0
            operands.append(builder.broadcast(scalar, dims, ()) if is_array else scalar)
        elif operand.shape.rank == 0:
            operands.append(operand)
        else:
            operands.append(operand.operands[0])
    shape = Shape(node.shape.dtype, dims)
    inner = instruction(node.opcode, shape, operands, **dict(node.attributes))
    return builder.broadcast(inner, node.shape.dims, axes)
