"""Evaluation of reductions: reduce (one or several values), reduce-window, select-and-scatter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from stitchcore.errors import Reason, Refused
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.cumulative import Scan, scan_of
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.hlo.ir.numerics import Array
from stitchcore.hlo.ir.precision import Precision, round_to_dtype, working
from stitchcore.hlo.ir.query import monoid, reducer_of

Combine = Callable[..., Any]

UFUNCS: Mapping[str, np.ufunc] = {
    op.ADD: np.add,
    op.MULTIPLY: np.multiply,
    op.MAXIMUM: np.maximum,
    op.MINIMUM: np.minimum,
    op.AND: np.bitwise_and,
    op.OR: np.bitwise_or,
    op.XOR: np.bitwise_xor,
}
_PRED_UFUNCS: Mapping[str, np.ufunc] = {
    op.ADD: np.logical_or,
    op.MULTIPLY: np.logical_and,
}


def ufunc(reducer: str, array: Array) -> np.ufunc:
    """The numpy reducer for arrays like this one."""
    if array.dtype.kind == "b" and reducer in _PRED_UFUNCS:
        return _PRED_UFUNCS[reducer]
    return UFUNCS[reducer]


def reduce(
    node: Instruction, operands: Sequence[Array], precision: Precision, combine: Combine
) -> Any:
    """bf16 and f16 accumulate in float32 and are rounded once, as XLA's CPU backend does."""
    count = len(operands) // 2
    axes = tuple(node["dimensions"])
    reducer = reducer_of(node)
    if count == 1 and reducer is not None:
        values, initial = working(operands[0]), working(operands[1])
        function = ufunc(reducer, values)
        result = function.reduce(values, axis=axes, dtype=values.dtype, initial=initial[()])
        return round_to_dtype(np.asarray(result), node.shape.dtype, precision)
    return _fold(operands[:count], operands[count:], axes, combine)


def _fold(
    values: Sequence[Array], initial: Sequence[Array], axes: tuple[int, ...], combine: Combine
) -> Any:
    """Pairs of neighbours are combined until one is left: the order of elements is kept."""
    several = len(values) > 1
    remaining = [i for i in range(values[0].ndim) if i not in axes]
    shape = [values[0].shape[i] for i in remaining]
    rows = [v.transpose([*axes, *remaining]).reshape([-1, *shape]) for v in values]
    while len(rows[0]) > 1:
        left, right = [r[0:-1:2] for r in rows], [r[1::2] for r in rows]
        odd = [r[-1:] for r in rows] if len(rows[0]) % 2 else None
        paired = combine(*left, *right)
        rows = list(paired) if several else [paired]
        if odd is not None:
            rows = [np.concatenate([r, o]) for r, o in zip(rows, odd, strict=True)]
    start = [np.broadcast_to(value, shape) for value in initial]
    if not len(rows[0]):
        return tuple(start) if several else start[0]
    return combine(*start, *(r[0] for r in rows))


def _padded(array: Array, node: Instruction, value: Any) -> Array:
    """`array` with the window's base dilation and padding filled with `value`."""
    window = node["window"]
    dilated = [
        (n - 1) * d.lhs_dilate + 1 if n else 0 for n, d in zip(array.shape, window, strict=True)
    ]
    shape = [n + d.pad_low + d.pad_high for n, d in zip(dilated, window, strict=True)]
    result = np.full(shape, value, array.dtype)
    sources, targets = [], []
    for extent, out, d in zip(array.shape, shape, window, strict=True):
        position = d.pad_low + np.arange(extent) * d.lhs_dilate
        inside = (position >= 0) & (position < out)
        sources.append(np.nonzero(inside)[0])
        targets.append(position[inside])
    result[np.ix_(*targets)] = array[np.ix_(*sources)]
    return result


def reduce_window(node: Instruction, operands: Sequence[Array], precision: Precision) -> Array:
    reducer = reducer_of(node)
    if reducer is None or len(operands) != 2:
        raise Refused(node.opcode, Reason.UNSUPPORTED_OPCODE, "only one value and a monoid")
    values, initial = working(operands[0]), working(operands[1])[()]
    window, function = node["window"], ufunc(reducer, values)
    scan, identity = scan_of(node), op.record(reducer).identity
    assert identity is not None
    neutral = identity(node.shape.dtype)
    if scan is not None and initial == neutral:
        result = _scan(values, scan, initial, node.shape.static[scan.dim], function)
    else:
        padded = _padded(values, node, neutral)  # XLA takes `initial` once, and nothing outside
        spans = [(d.size - 1) * d.rhs_dilate + 1 for d in window]
        views = sliding_window_view(padded, spans)
        rank = values.ndim
        views = views[tuple(slice(None, None, d.stride) for d in window)]
        apart = tuple(slice(None, None, d.rhs_dilate) for d in window)
        views = views[(slice(None),) * rank + apart]
        result = function.reduce(
            views, axis=tuple(range(rank, 2 * rank)), dtype=values.dtype, initial=initial
        )
    return round_to_dtype(np.asarray(result), node.shape.dtype, precision)


def _scan(values: Array, scan: Scan, start: Any, count: int, function: np.ufunc) -> Array:
    """One pass along the axis that starts at `start`; `count` elements of it are wanted."""
    along = np.flip(values, scan.dim) if scan.reverse else values
    scanned = function.accumulate(along, axis=scan.dim, dtype=along.dtype)
    if scan.exclusive:
        shape = [1 if d == scan.dim else extent for d, extent in enumerate(scanned.shape)]
        scanned = np.concatenate([np.full(shape, start, scanned.dtype), scanned], scan.dim)
    scanned = scanned.take(np.arange(count), scan.dim)
    return np.flip(scanned, scan.dim) if scan.reverse else scanned


def select_and_scatter(
    node: Instruction, operands: Sequence[Array], precision: Precision, choose: Combine
) -> Array:
    """Each source element is added where its window's chosen element lies; padding never wins."""
    values, source, initial = (working(operand) for operand in operands)
    window = node["window"]
    reducer = monoid(node["scatter"])
    if reducer is None:
        raise Refused(node.opcode, Reason.UNSUPPORTED_OPCODE, "scatter is not a monoid")
    flat = np.arange(values.size).reshape(values.shape)
    padded_values, places = _padded(values, node, 0), _padded(flat, node, -1)
    best = np.zeros(source.shape, values.dtype)
    where = np.full(source.shape, -1)
    for offset in np.ndindex(*(d.size for d in window)):
        cut = tuple(
            slice(o * d.rhs_dilate, o * d.rhs_dilate + (n - 1) * d.stride + 1, d.stride)
            for o, d, n in zip(offset, window, source.shape, strict=True)
        )
        value, place = padded_values[cut], places[cut]
        better = (place >= 0) & ((where < 0) | ~choose(best, value).astype(bool))
        best, where = np.where(better, value, best), np.where(better, place, where)
    result = np.full(values.size, initial[()], values.dtype)
    inside = where >= 0
    ufunc(reducer, values).at(result, where[inside], source[inside])
    return round_to_dtype(result.reshape(values.shape), node.shape.dtype, precision)
