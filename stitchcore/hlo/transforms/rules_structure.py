"""Rules for reductions, tuples, control flow and sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stitchcore.hlo.ir import builder
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Computation, Instruction, instruction, topological
from stitchcore.hlo.ir.query import reducer_of
from stitchcore.hlo.transforms.rules_fold import literal_of, splat_of


def reduce_of_unit_dimensions(node: Instruction) -> Instruction | None:
    """Reducing dimensions of extent 1 is a reshape and one application to the initial value."""
    reducer = reducer_of(node)
    if reducer is None or len(node.operands) != 2:
        return None
    operand, initial = node.operands
    axes = node["dimensions"]
    real = [axis for axis in axes if operand.shape.dims[axis] != 1]
    if len(real) == len(axes) and axes:
        return None
    dims = [d for i, d in enumerate(operand.shape.dims) if i not in axes or i in real]
    squeezed = builder.reshape(operand, dims)
    if not real:
        start = builder.broadcast(initial, dims, ()) if dims else initial
        return builder.elementwise(reducer, squeezed, start)
    remaining = [i for i in range(operand.shape.rank) if i not in axes or i in real]
    return instruction(
        op.REDUCE,
        node.shape,
        (squeezed, initial),
        dimensions=tuple(remaining.index(axis) for axis in real),
        to_apply=node["to_apply"],
    )


def element_of_tuple(node: Instruction) -> Instruction | None:
    operand = node.operands[0]
    return operand.operands[node["index"]] if operand.opcode == op.TUPLE else None


def inline(body: Computation, operands: Sequence[Instruction]) -> Instruction:
    """The root of `body` with its parameters replaced."""
    inlined = dict(zip(body.parameters, operands, strict=True))
    for node in topological((body.root,)):
        if node not in inlined:
            inner = (inlined[operand] for operand in node.operands)
            inlined[node] = instruction(node.opcode, node.shape, inner, **dict(node.attributes))
    return inlined[body.root]


def decided_conditional(node: Instruction) -> Instruction | None:
    """A constant predicate chooses its branch now."""
    literal = splat_of(node.operands[0])
    if literal is None:
        return None
    branches, value = node["branch_computations"], literal.scalar
    index = (0 if value else 1) if isinstance(value, bool) else int(value)
    index = index if 0 <= index < len(branches) else len(branches) - 1
    return inline(branches[index], [node.operands[1 + index]])


def inline_map(node: Instruction) -> Instruction | None:
    """A map of a scalar computation as whole-array instructions."""
    body, dims = node["to_apply"], node.shape.dims
    inlined: dict[Instruction, Instruction] = dict(zip(body.parameters, node.operands, strict=True))
    for inner in topological((body.root,)):
        if inner in inlined:
            continue
        kind = op.record(inner.opcode).kind
        if kind == "constant":
            inlined[inner] = builder.broadcast(inner, dims, ()) if dims else inner
        elif kind == "elementwise":
            shape = node.shape.__class__(inner.shape.dtype, dims)
            operands = [inlined[operand] for operand in inner.operands]
            inlined[inner] = instruction(inner.opcode, shape, operands, **dict(inner.attributes))
        else:
            return None
    return inlined[body.root]


def known_dimension_size(node: Instruction) -> Instruction | None:
    """Of a dimension that is not bounded: its extent, symbolic or not."""
    shape, axis = node.operands[0].shape, node["dimensions"][0]
    if axis in shape.bounded:
        return None
    extent = shape.dims[axis]
    if isinstance(extent, int):
        return builder.constant(extent, node.shape.dtype)
    return instruction(op.CONSTANT, node.shape, ratio=(extent, 1))


def static_dynamic_slice(node: Instruction) -> Instruction | None:
    """Constant starts, clamped as the opcode says."""
    starts = _constant_starts(node.operands[1:])
    dims, sizes = node.operands[0].shape.dims, node["dynamic_slice_sizes"]
    if starts is None or not all(isinstance(d, int) for d in (*dims, *sizes)):
        return None
    ranges: list[tuple[Any, Any, int]] = []
    for start, extent, size in zip(starts, dims, sizes, strict=True):
        begin = min(max(start, 0), extent - size)
        ranges.append((begin, begin + size, 1))
    return builder.slice_(node.operands[0], ranges)


def _constant_starts(operands: Sequence[Instruction]) -> list[int] | None:
    starts = []
    for operand in operands:
        literal = literal_of(operand)
        if literal is None or literal.dims:
            return None
        starts.append(int(literal.scalar))
    return starts


def whole_update(node: Instruction) -> Instruction | None:
    """An update of the operand's own shape replaces it: its start is clamped to zero."""
    return node.operands[1] if node.operands[1].shape == node.shape else None
