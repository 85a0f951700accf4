"""Rules for opcodes that only move elements: no-ops and compositions. All are exact."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from stitchcore.hlo.ir import builder
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.dim import Dim
from stitchcore.hlo.ir.instruction import Instruction, instruction
from stitchcore.hlo.transforms.rules_fold import splat_of


def bitcast_to_reshape(node: Instruction) -> Instruction | None:
    """A row-major bitcast of one element type is a reshape (import refuses other layouts)."""
    operand = node.operands[0]
    if operand.shape.dtype != node.shape.dtype:
        return None
    return builder.reshape(operand, node.shape.dims)


def same_shape_reshape(node: Instruction) -> Instruction | None:
    return node.operands[0] if node.operands[0].shape == node.shape else None


def reshape_of_reshape(node: Instruction) -> Instruction | None:
    inner = node.operands[0]
    if inner.opcode != op.RESHAPE or inner.shape.bounded or node.shape.bounded:
        return None
    return builder.reshape(inner.operands[0], node.shape.dims)


def reshape_of_splat(node: Instruction) -> Instruction | None:
    """Of a broadcast scalar (constant or not)."""
    inner = node.operands[0]
    if inner.opcode != op.BROADCAST or inner.operands[0].shape.rank or node.shape.bounded:
        return None
    return builder.broadcast(inner.operands[0], node.shape.dims, ())


def identity_broadcast(node: Instruction) -> Instruction | None:
    same = node.operands[0].shape == node.shape
    return node.operands[0] if same and _increasing(node["dimensions"]) else None


def _increasing(axes: tuple[int, ...]) -> bool:
    return all(a < b for a, b in pairwise(axes))


def broadcast_of_broadcast(node: Instruction) -> Instruction | None:
    inner = node.operands[0]
    if inner.opcode != op.BROADCAST or node.shape.bounded or inner.shape.bounded:
        return None
    axes = tuple(node["dimensions"][axis] for axis in inner["dimensions"])
    return builder.broadcast(inner.operands[0], node.shape.dims, axes)


def broadcast_to_reshape(node: Instruction) -> Instruction | None:
    """A broadcast that only adds dimensions of extent 1."""
    operand, axes = node.operands[0], node["dimensions"]
    added = [d for axis, d in enumerate(node.shape.dims) if axis not in axes]
    if not added or any(d != 1 for d in added) or not _increasing(axes) or node.shape.bounded:
        return None
    return builder.reshape(operand, node.shape.dims)


def identity_transpose(node: Instruction) -> Instruction | None:
    return node.operands[0] if _increasing(node["dimensions"]) else None


def transpose_of_transpose(node: Instruction) -> Instruction | None:
    inner = node.operands[0]
    if inner.opcode != op.TRANSPOSE:
        return None
    permutation = [inner["dimensions"][axis] for axis in node["dimensions"]]
    return builder.transpose(inner.operands[0], permutation)


def transpose_of_broadcast(node: Instruction) -> Instruction | None:
    """One broadcast, when the operand's dimensions stay in order."""
    inner = node.operands[0]
    if inner.opcode != op.BROADCAST or node.shape.bounded:
        return None
    axes = tuple(node["dimensions"].index(axis) for axis in inner["dimensions"])
    if not _increasing(axes):
        return None
    return builder.broadcast(inner.operands[0], node.shape.dims, axes)


def transpose_to_reshape(node: Instruction) -> Instruction | None:
    """When only dimensions of extent 1 change their place."""
    operand = node.operands[0]
    moving = tuple(axis for axis in node["dimensions"] if operand.shape.dims[axis] != 1)
    if not _increasing(moving) or node.shape.bounded:
        return None
    return builder.reshape(operand, node.shape.dims)


def whole_slice(node: Instruction) -> Instruction | None:
    return node.operands[0] if node.operands[0].shape == node.shape else None


def slice_of_slice(node: Instruction) -> Instruction | None:
    inner = node.operands[0]
    if inner.opcode != op.SLICE:
        return None
    ranges: list[tuple[Any, Any, int]] = []
    for (start, limit, stride), (first, _, step) in zip(node["slice"], inner["slice"], strict=True):
        # Only the last element taken bounds the result, so the composed limit stays inside.
        begin = first + start * step
        end = first + (limit - 1) * step + 1
        ranges.append((begin, end, stride * step))
    shape = node.shape
    return instruction(op.SLICE, shape, (inner.operands[0],), slice=tuple(ranges))


def slice_of_splat(node: Instruction) -> Instruction | None:
    """Of a broadcast scalar."""
    inner = node.operands[0]
    if inner.opcode != op.BROADCAST or inner.operands[0].shape.rank:
        return None
    return builder.broadcast(inner.operands[0], node.shape.dims, ())


def slice_of_concatenate(node: Instruction) -> Instruction | None:
    """A slice that lies within one piece is a slice of that piece."""
    inner = node.operands[0]
    if inner.opcode != op.CONCATENATE:
        return None
    axis = inner["dimensions"][0]
    start, limit, stride = node["slice"][axis]
    offset = 0
    for piece in inner.operands:
        extent = piece.shape.dims[axis]
        if not all(isinstance(value, int) for value in (start, limit, offset, extent)):
            return None
        if offset <= start and limit <= offset + extent:
            ranges = list(node["slice"])
            ranges[axis] = (start - offset, limit - offset, stride)
            return instruction(op.SLICE, node.shape, (piece,), slice=tuple(ranges))
        offset += extent
    return None


def flat_concatenate(node: Instruction) -> Instruction | None:
    """Nested concatenations along one axis are one; empty pieces go; one piece is itself."""
    axis = node["dimensions"][0]
    pieces: list[Instruction] = []
    for piece in node.operands:
        if piece.opcode == op.CONCATENATE and piece["dimensions"] == node["dimensions"]:
            pieces.extend(piece.operands)
        elif piece.shape.dims[axis] != 0:
            pieces.append(piece)
    if not pieces or tuple(pieces) == node.operands:
        return node.operands[0] if len(node.operands) == 1 else None
    return pieces[0] if len(pieces) == 1 else builder.concatenate(pieces, axis)


def no_padding(node: Instruction) -> Instruction | None:
    """Nothing is added or spread: what is left of the operand; or the padding equals the splat it
    surrounds."""
    operand, value = node.operands
    if all(triple == (0, 0, 0) for triple in node["padding"]):
        return operand
    if all(_only_removes(*triple) for triple in node["padding"]):
        pairs = zip(operand.shape.dims, node["padding"], strict=True)
        return builder.slice_(operand, [(-low, e + high, 1) for e, (low, high, _) in pairs])
    splat = splat_of(operand)
    if splat is not None and splat == splat_of(value):
        return builder.broadcast(value, node.shape.dims, ())
    return None


def _only_removes(low: Dim, high: Dim, interior: int) -> bool:
    return isinstance(low, int) and isinstance(high, int) and max(low, high, interior) <= 0


def short_reverse(node: Instruction) -> Instruction | None:
    """Reversing dimensions of extent 1, or twice."""
    operand = node.operands[0]
    axes = tuple(axis for axis in node["dimensions"] if node.shape.dims[axis] != 1)
    if operand.opcode == op.REVERSE and operand["dimensions"] == node["dimensions"]:
        return operand.operands[0]
    if axes == node["dimensions"]:
        return None
    return builder.reverse(operand, axes) if axes else operand


def short_iota(node: Instruction) -> Instruction | None:
    """Counting along one element is zero."""
    if node.shape.dims[node["iota_dimension"]] != 1:
        return None
    return builder.splat(0, node)


def batched_gather(node: Instruction) -> Instruction | None:
    """Components of the index vectors that count along a dimension of the indices, as many as there
    are places for them, make a batch of that dimension; where there is one place, it is the only
    start."""
    operand, indices = node.operands
    vector = node["index_vector_dim"]
    if indices.opcode != op.CONCATENATE or indices["dimensions"] != (vector,):
        return None
    collapsed, dims = set(node["collapsed_slice_dims"]), operand.shape.dims
    batching = dict(
        zip(
            node.get("operand_batching_dims", ()),
            node.get("start_indices_batching_dims", ()),
            strict=True,
        )
    )
    pieces: list[Instruction] = []
    starts: list[int] = []
    rest = list(node["start_index_map"])
    for piece in indices.operands:
        extent = piece.shape.dims[vector]
        if not isinstance(extent, int):
            return None
        own, rest = rest[:extent], rest[extent:]
        place = own[0] if extent == 1 and own[0] in collapsed else None
        if place is not None and dims[place] == 1:
            continue
        if place is not None and piece.opcode == op.IOTA:
            along = piece["iota_dimension"]
            taken = along == vector or along in batching.values()
            if not taken and piece.shape.dims[along] == dims[place]:
                batching[place] = along
                continue
        pieces.append(piece)
        starts += own
    if not pieces or len(pieces) == len(indices.operands):
        return None
    attributes = dict(node.attributes) | {
        "collapsed_slice_dims": tuple(d for d in node["collapsed_slice_dims"] if d not in batching),
        "start_index_map": tuple(starts),
        "operand_batching_dims": tuple(sorted(batching)),
        "start_indices_batching_dims": tuple(batching[d] for d in sorted(batching)),
    }
    return instruction(
        op.GATHER, node.shape, (operand, builder.concatenate(pieces, vector)), **attributes
    )
