"""Bounded arrays (`f32[<=128]`) as whole ones beside their sizes, so that a device can hold them.

What set-dimension-size cuts stays in memory at its bound; its extent is a scalar of the program.
Elements past it hold anything: what could see them is told not to look (XLA's dynamic padder does
the same). Rules are those of the opcodes that TensorFlow's unique and sparse updates become.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from stitchcore.errors import Reason, Refused
from stitchcore.hlo.ir import builder
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction, instruction, topological
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.ir.rewrite import rebuild, renew
from stitchcore.hlo.ir.shape import DTYPES, Shape

Sizes = Mapping[int, Instruction]
"""The scalar that is the extent of a bounded dimension, by dimension."""
Rule = Callable[[Instruction, tuple[Instruction, ...], Sequence[Sizes]], tuple[Instruction, Sizes]]
"""(bounded instruction, whole operands, their sizes) -> whole instruction, its sizes."""


def padded(module: Module) -> Module:
    """`module` without bounded shapes; itself where it has none.

    Raises Refused(UNSUPPORTED_TYPE) for a bounded value that is returned, goes through an opcode
    without a rule, or is one of a loop or branch.
    """
    order = topological((*module.entry.parameters, module.entry.root))
    if not any(_is_bounded(shape) for node in order for shape in _shapes(node)):
        return module
    sizes: dict[Instruction, Sizes] = {}

    def without_bounds(node: Instruction, operands: tuple[Instruction, ...]) -> Instruction:
        if not any(map(_is_bounded, _shapes(node))):
            return instruction(node.opcode, node.shape, operands, **dict(node.attributes))
        rule = _ELEMENTWISE if op.record(node.opcode).kind == "elementwise" else None
        rule = _RULES.get(node.opcode, rule)
        if rule is None:
            raise _refused(node, "no rule holds it at its bound")
        rebuilt, sizes[node] = rule(
            node, operands, [sizes.get(operand, {}) for operand in node.operands]
        )
        return rebuilt

    entry, rebuilt = rebuild(module.entry, without_bounds)
    if sizes.get(module.entry.root):
        raise _refused(module.entry.root, "the module returns it")
    return replace(module, entry=entry, provenance=renew(module, entry, rebuilt))


def _shapes(node: Instruction) -> tuple[Shape, ...]:
    return node.shape, *(operand.shape for operand in node.operands)


def _is_bounded(shape: Shape) -> bool:
    return bool(shape.bounded) or any(map(_is_bounded, shape.elements or ()))


def _refused(node: Instruction, detail: str) -> Refused:
    shapes = ", ".join(map(str, _shapes(node)))
    return Refused(node.opcode, Reason.UNSUPPORTED_TYPE, f"{shapes}: {detail}")


def _set_size(
    node: Instruction, operands: tuple[Instruction, ...], sizes: Sequence[Sizes]
) -> tuple[Instruction, Sizes]:
    [axis] = node["dimensions"]
    if axis not in node.shape.bounded:
        raise _refused(node, "a bounded dimension is made whole")
    return operands[0], {**sizes[0], axis: operands[1]}


def _get_size(
    node: Instruction, operands: tuple[Instruction, ...], sizes: Sequence[Sizes]
) -> tuple[Instruction, Sizes]:
    [axis] = node["dimensions"]
    if axis in sizes[0]:
        return sizes[0][axis], {}
    return builder.constant(operands[0].shape.static[axis], node.shape.dtype), {}


def _elementwise(
    node: Instruction, operands: tuple[Instruction, ...], sizes: Sequence[Sizes]
) -> tuple[Instruction, Sizes]:
    """As far as the shortest operand goes."""
    least: dict[int, Instruction] = {}
    for extents in sizes:
        for axis, size in extents.items():
            known = least.get(axis, size)
            least[axis] = size if known is size else builder.elementwise(op.MINIMUM, known, size)
    shape = replace(node.shape, bounded=())
    return instruction(node.opcode, shape, operands, **dict(node.attributes)), least


def _scatter(
    node: Instruction, operands: tuple[Instruction, ...], sizes: Sequence[Sizes]
) -> tuple[Instruction, Sizes]:
    """Indices that are not there become -1, which every scatter drops. Of a bounded operand a
    single element is written, past its extent or not: nothing reads it there."""
    array, indices, update = operands
    if len(node.operands) != 3 or node.get("input_batching_dims"):
        raise _refused(node, "of several arrays, or by batches")
    if not set(sizes[0]) <= set(node["inserted_window_dims"]):
        raise _refused(node, "windows that may lie across the extent")
    vector, rank = node["index_vector_dim"], indices.shape.rank
    rows = [axis for axis in range(rank) if axis != vector]
    windows = node["update_window_dims"]
    batch = [axis for axis in range(update.shape.rank) if axis not in windows]
    if set(sizes[1]) - set(rows) or set(sizes[2]) - set(batch):
        raise _refused(node, "components or windows of unknown extent")
    extents = dict(sizes[1])
    for axis, size in sizes[2].items():
        extents.setdefault(rows[batch.index(axis)], size)
    for axis, size in extents.items():
        indices = _dropped_past(indices, axis, size)
    shape = replace(node.shape, bounded=())
    scattered = instruction(op.SCATTER, shape, (array, indices, update), **dict(node.attributes))
    return scattered, sizes[0]


def _dropped_past(indices: Instruction, axis: int, size: Instruction) -> Instruction:
    """`indices`, from `size` on along `axis` -1: of an unsigned type its largest, outside too."""
    dims, dtype = indices.shape.static, indices.shape.dtype
    place = instruction(op.IOTA, Shape(size.shape.dtype, dims), iota_dimension=axis)
    inside = builder.elementwise(
        op.COMPARE, place, builder.broadcast(size, dims, ()), direction="LT"
    )
    outside = builder.array(np.asarray(-1).astype(DTYPES[dtype].numpy), dtype)
    return builder.elementwise(op.SELECT, inside, indices, builder.broadcast(outside, dims, ()))


_ELEMENTWISE: Rule = _elementwise
_RULES: Mapping[str, Rule] = {
    op.SET_DIMENSION_SIZE: _set_size,
    op.GET_DIMENSION_SIZE: _get_size,
    op.SCATTER: _scatter,
}
