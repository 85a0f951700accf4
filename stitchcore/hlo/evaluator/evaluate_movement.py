"""Evaluation of opcodes that only move elements. Values keep their numpy type throughout."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.hlo.ir.numerics import Array
from stitchcore.hlo.ir.precision import Precision, widen
from stitchcore.hlo.ir.shape import DTYPES


def iota(node: Instruction, operands: Sequence[Array], precision: Precision) -> Array:
    dims, axis = node.shape.static, node["iota_dimension"]
    line = np.arange(dims[axis]).astype(DTYPES[node.shape.dtype].numpy)
    line = widen(line, node.shape.dtype, precision)
    return np.broadcast_to(line.reshape([-1 if i == axis else 1 for i in range(len(dims))]), dims)


def reshape(node: Instruction, operands: Sequence[Array]) -> Array:
    return operands[0].reshape(node.shape.static)


def broadcast(node: Instruction, operands: Sequence[Array]) -> Array:
    """A bounded operand dimension brings its actual extent."""
    operand, target = operands[0], list(node.shape.static)
    spread = [1] * len(target)
    for axis, extent in zip(node["dimensions"], operand.shape, strict=True):
        spread[axis] = extent
        if axis in node.shape.bounded:
            target[axis] = extent
    return np.broadcast_to(operand.reshape(spread), target)


def transpose(node: Instruction, operands: Sequence[Array]) -> Array:
    return operands[0].transpose(node["dimensions"])


def slice_(node: Instruction, operands: Sequence[Array]) -> Array:
    return operands[0][tuple(slice(*triple) for triple in node["slice"])]


def reverse(node: Instruction, operands: Sequence[Array]) -> Array:
    return np.flip(operands[0], node["dimensions"])


def concatenate(node: Instruction, operands: Sequence[Array]) -> Array:
    return np.concatenate(operands, node["dimensions"][0])


def pad(node: Instruction, operands: Sequence[Array]) -> Array:
    """Negative edge padding removes elements; interior padding spreads them apart."""
    operand, value = operands
    result = np.full(node.shape.static, value, operand.dtype)
    sources, targets = [], []
    for (low, _, interior), extent, out in zip(
        node["padding"], operand.shape, result.shape, strict=True
    ):
        position = low + np.arange(extent) * (interior + 1)
        inside = (position >= 0) & (position < out)
        sources.append(np.nonzero(inside)[0])
        targets.append(position[inside])
    if operand.ndim == 0:
        return operand
    result[np.ix_(*targets)] = operand[np.ix_(*sources)]
    return result


def trimmed(operands: Sequence[Array]) -> list[Array]:
    """Operands of a bounded result cut to their common actual extent."""
    common = tuple(min(extents) for extents in zip(*(o.shape for o in operands), strict=True))
    return [o[tuple(slice(extent) for extent in common)] for o in operands]


def set_dimension_size(node: Instruction, operands: Sequence[Array]) -> Array:
    """The array cut to its actual extent: bounded values are held at their true size."""
    axis = node["dimensions"][0]
    size = int(operands[1])
    return operands[0][tuple(slice(size if i == axis else None) for i in range(operands[0].ndim))]


def get_dimension_size(node: Instruction, operands: Sequence[Array]) -> Array:
    return np.asarray(operands[0].shape[node["dimensions"][0]], np.int32)
