"""Evaluation of contractions, convolutions and batch normalisation, from their definitions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.hlo.ir.numerics import Array
from stitchcore.hlo.ir.precision import Precision, round_to_dtype, working


def dot(node: Instruction, operands: Sequence[Array], precision: Precision) -> Array:
    """Result dimensions: batch, then the free ones of the left, then of the right operand."""
    left, right = (working(o) for o in operands)
    left_rows = _matrices(left, node.get("lhs_batch_dims", ()), node["lhs_contracting_dims"])
    right_rows = _matrices(right, node.get("rhs_batch_dims", ()), node["rhs_contracting_dims"])
    product = np.matmul(left_rows, right_rows.swapaxes(-1, -2))
    return round_to_dtype(product.reshape(node.shape.static), node.shape.dtype, precision)


def _matrices(array: Array, batch: Sequence[int], contracting: Sequence[int]) -> Array:
    """[batch, free, contracted]."""
    free = [axis for axis in range(array.ndim) if axis not in (*batch, *contracting)]
    extents = [
        int(np.prod([array.shape[axis] for axis in axes], dtype=np.int64))
        for axes in (batch, free, contracting)
    ]
    return array.transpose([*batch, *free, *contracting]).reshape(extents)


def convolution(node: Instruction, operands: Sequence[Array], precision: Precision) -> Array:
    left_labels, right_labels, out_labels = re.split(r"_|->", node["dim_labels"])
    rank = len(left_labels) - 2
    spatial = "".join(str(i) for i in range(rank))
    left = working(operands[0]).transpose([left_labels.index(c) for c in "b" + spatial + "f"])
    right = working(operands[1]).transpose([right_labels.index(c) for c in spatial + "io"])
    groups, batch_groups = node.get("feature_group_count", 1), node.get("batch_group_count", 1)
    left = _spread(left, node["window"])
    right = np.flip(right, tuple(i for i, d in enumerate(node["window"]) if d.reversed))
    parts = []
    count = max(groups, batch_groups)
    for group in range(count):
        lhs = _part(left, left.ndim - 1, group, groups) if groups > 1 else left
        lhs = _part(lhs, 0, group, batch_groups) if batch_groups > 1 else lhs
        parts.append(_correlate(lhs, _part(right, right.ndim - 1, group, count), node["window"]))
    result = np.concatenate(parts, -1)
    order = "b" + spatial + "f"
    result = result.transpose([order.index(c) for c in out_labels])
    return round_to_dtype(result, node.shape.dtype, precision)


def _part(array: Array, axis: int, index: int, count: int) -> Array:
    return np.split(array, count, axis)[index]


def _spread(left: Array, window: Sequence[Any]) -> Array:
    """[b, spatial..., f] with base dilation and (possibly negative) padding applied."""
    shape, sources, targets = [left.shape[0]], [np.arange(left.shape[0])], [np.arange(len(left))]
    for extent, d in zip(left.shape[1:-1], window, strict=True):
        size = (extent - 1) * d.lhs_dilate + 1 + d.pad_low + d.pad_high
        position = d.pad_low + np.arange(extent) * d.lhs_dilate
        inside = (position >= 0) & (position < size)
        shape.append(size)
        sources.append(np.nonzero(inside)[0])
        targets.append(position[inside])
    channels = np.arange(left.shape[-1])
    result = np.zeros([*shape, left.shape[-1]], left.dtype)
    result[np.ix_(*targets, channels)] = left[np.ix_(*sources, channels)]
    return result


def _correlate(left: Array, right: Array, window: Sequence[Any]) -> Array:
    """One group: sums over window positions, or over output positions where those are fewer."""
    sizes = right.shape[:-2]
    outputs = [
        (extent - ((size - 1) * d.rhs_dilate + 1)) // d.stride + 1
        for extent, size, d in zip(left.shape[1:-1], sizes, window, strict=True)
    ]
    result = np.zeros([left.shape[0], *outputs, right.shape[-1]], left.dtype)
    if np.prod(sizes) <= np.prod(outputs):
        for offset in np.ndindex(*sizes):
            cut = tuple(
                slice(o * d.rhs_dilate, o * d.rhs_dilate + (n - 1) * d.stride + 1, d.stride)
                for o, d, n in zip(offset, window, outputs, strict=True)
            )
            result += left[(slice(None), *cut)] @ right[offset]
        return result
    flat = right.reshape(-1, right.shape[-1])
    for place in np.ndindex(*outputs):
        cut = tuple(
            slice(p * d.stride, p * d.stride + (n - 1) * d.rhs_dilate + 1, d.rhs_dilate)
            for p, d, n in zip(place, window, sizes, strict=True)
        )
        patch = left[(slice(None), *cut)].reshape(left.shape[0], -1)
        result[(slice(None), *place)] = patch @ flat
    return result


def batch_norm(node: Instruction, operands: Sequence[Array]) -> Any:
    """Statistics over all dimensions but `feature_index`, in at least float32."""
    arrays = [working(operand) for operand in operands]
    axis, epsilon = node["feature_index"], arrays[0].dtype.type(node["epsilon"])
    shape = [-1 if i == axis else 1 for i in range(arrays[0].ndim)]
    others = tuple(i for i in range(arrays[0].ndim) if i != axis)
    x, scale = arrays[0], arrays[1].reshape(shape)
    if node.opcode == op.BATCH_NORM_TRAINING:
        mean = x.mean(others, keepdims=True, dtype=x.dtype)
        variance = np.square(x - mean).mean(others, keepdims=True, dtype=x.dtype)
        normal = (x - mean) / np.sqrt(variance + epsilon)
        result = normal * scale + arrays[2].reshape(shape)
        return result, mean.reshape(-1), variance.reshape(-1)
    if node.opcode == op.BATCH_NORM_INFERENCE:
        mean, variance = arrays[3].reshape(shape), arrays[4].reshape(shape)
        return (x - mean) / np.sqrt(variance + epsilon) * scale + arrays[2].reshape(shape)
    mean, variance, gradient = arrays[2].reshape(shape), arrays[3].reshape(shape), arrays[4]
    inverse = 1 / np.sqrt(variance + epsilon)
    count = x.dtype.type(x.size // x.shape[axis])
    centred = x - mean
    bias_grad = gradient.sum(others, keepdims=True, dtype=x.dtype)
    product = (gradient * centred).sum(others, keepdims=True, dtype=x.dtype)
    scale_grad = product * inverse
    inner = gradient - bias_grad / count - centred * inverse * inverse * product / count
    x_grad = scale * inverse * inner
    return x_grad, scale_grad.reshape(-1), bias_grad.reshape(-1)
