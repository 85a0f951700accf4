"""Windows over an array module: pooling, its gradient, cumulative sums."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.attributes import WindowDim
from stitchcore.hlo.ir.cumulative import Scan, scan_of
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.hlo.ir.query import monoid, reducer_of
from stitchcore.runtime.gpu.library.call import LibraryCall
from stitchcore.runtime.gpu.library.convolution import known

Array = Any

_JOIN: Mapping[str, Callable[[Any], Any]] = {
    op.ADD: lambda xp: xp.add,
    op.MAXIMUM: lambda xp: xp.maximum,
    op.MINIMUM: lambda xp: xp.minimum,
}


def reduce_window_refused(node: Instruction) -> str | None:
    if len(node.operands) != 2 or reducer_of(node) not in _JOIN:
        return "a window that is not of one array's sum, maximum or minimum"
    return _window_refused(node)


def _window_refused(node: Instruction) -> str | None:
    for d in node["window"]:
        if d.lhs_dilate != 1 or known(d.pad_low) < 0 or known(d.pad_high) < 0:
            return "a window over a dilated or cut array"
    return None


def reduce_window(xp: Any, node: Instruction, operands: Sequence[Array]) -> Array:
    values, initial = operands
    window = node["window"]
    reducer = reducer_of(node)
    assert reducer is not None
    scan = scan_of(node)
    if reducer == op.ADD and scan is not None:
        return _sums(xp, values, scan, node.shape.static[scan.dim]) + initial
    neutral = op.record(reducer).identity
    assert neutral is not None
    padded = _padded(xp, values, window, neutral(node.shape.dtype))
    join, result = _JOIN[reducer](xp), initial
    for cut in _cuts(window, node.shape.static):
        result = join(result, padded[cut])
    return result


def _sums(xp: Any, values: Array, scan: Scan, count: int) -> Array:
    """The first `count` sums of the pass along the scan's axis, from zero, in `values`' type."""
    along = xp.flip(values, scan.dim) if scan.reverse else values
    sums = xp.cumsum(along, axis=scan.dim, dtype=values.dtype)
    if scan.exclusive:
        shape = [1 if d == scan.dim else extent for d, extent in enumerate(values.shape)]
        sums = xp.concatenate([xp.zeros(shape, values.dtype), sums], scan.dim)
    cut = tuple(slice(count) if d == scan.dim else slice(None) for d in range(sums.ndim))
    return xp.flip(sums[cut], scan.dim) if scan.reverse else sums[cut]


def _padded(xp: Any, values: Array, window: Sequence[WindowDim], fill: Any) -> Array:
    pads = [(known(d.pad_low), known(d.pad_high)) for d in window]
    shape = [n + low + high for n, (low, high) in zip(values.shape, pads, strict=True)]
    result = xp.empty(shape, values.dtype)
    result[...] = fill
    inner = tuple(slice(low, low + n) for n, (low, _) in zip(values.shape, pads, strict=True))
    result[inner] = values
    return result


def _cuts(window: Sequence[WindowDim], outputs: Sequence[int]) -> list[tuple[slice, ...]]:
    """For each element of the window, what it sees of the padded array, in row-major order."""
    return [
        tuple(
            slice(at * d.rhs_dilate, at * d.rhs_dilate + (n - 1) * d.stride + 1, d.stride)
            for at, d, n in zip(place, window, outputs, strict=True)
        )
        for place in itertools.product(*(range(known(d.size)) for d in window))
    ]


def select_and_scatter_refused(node: Instruction) -> str | None:
    chooser = node["select"].root
    plain = chooser.opcode == op.COMPARE and chooser.operands == node["select"].parameters
    if not plain or chooser["direction"] not in ("GE", "LE") or monoid(node["scatter"]) != op.ADD:
        return "a choice other than of the largest or least, or not summed"
    return _window_refused(node)


def select_and_scatter(xp: Any, node: Instruction, operands: Sequence[Array]) -> Array:
    """Each source element is added where its window's chosen element lies; padding never wins, and
    of equal ones the first does."""
    values, source, initial = operands
    window = node["window"]
    largest = node["select"].root["direction"] == "GE"
    size = values.size
    places = _padded(xp, xp.arange(size).reshape(values.shape), window, size)
    padded = _padded(xp, values, window, 0)
    best, where = xp.zeros(source.shape, values.dtype), xp.full(source.shape, size)
    for cut in _cuts(window, source.shape):
        value, place = padded[cut], places[cut]
        holds = best >= value if largest else best <= value
        better = (place < size) & ((where == size) | ~holds)
        best, where = xp.where(better, value, best), xp.where(better, place, where)
    flat = xp.empty(size + 1, values.dtype)
    flat[...] = initial
    xp.add.at(flat, where.reshape(-1), source.reshape(-1))
    return flat[:-1].reshape(values.shape)


CALLS = {
    op.REDUCE_WINDOW: LibraryCall(reduce_window, reduce_window_refused),
    op.SELECT_AND_SCATTER: LibraryCall(select_and_scatter, select_and_scatter_refused),
}
