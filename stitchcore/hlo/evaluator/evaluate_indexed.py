"""Evaluation of opcodes whose movement the data decides: gather, scatter, sort, dynamic slices."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stitchcore.hlo.evaluator.evaluate_reduce import ufunc
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.hlo.ir.numerics import Array
from stitchcore.hlo.ir.precision import Precision, round_to_dtype, working
from stitchcore.hlo.ir.query import reducer_of


def dynamic_slice(node: Instruction, operands: Sequence[Array]) -> Array:
    """Start indices are clamped so that the slice lies inside."""
    sizes = node["dynamic_slice_sizes"]
    return operands[0][_window(operands[0], operands[1:], sizes)]


def dynamic_update_slice(node: Instruction, operands: Sequence[Array]) -> Array:
    result = operands[0].copy()
    result[_window(result, operands[2:], operands[1].shape)] = operands[1]
    return result


def _window(array: Array, starts: Sequence[Array], sizes: Sequence[int]) -> tuple[slice, ...]:
    if len(starts) == 1 and starts[0].ndim == 1:
        starts = list(starts[0])
    begin = [
        min(max(int(start), 0), extent - size)
        for start, extent, size in zip(starts, array.shape, sizes, strict=True)
    ]
    return tuple(slice(b, b + size) for b, size in zip(begin, sizes, strict=True))


def _index_rows(indices: Array, vector_dim: int) -> Array:
    """Start indices as int64 [batch..., components]."""
    if vector_dim == indices.ndim:
        indices = indices[..., None]
    if indices.dtype == np.uint64:  # above all extents, not negative
        indices = np.minimum(indices, np.uint64(np.iinfo(np.int64).max))
    return np.moveaxis(indices, vector_dim, -1).astype(np.int64)


def gather(node: Instruction, operands: Sequence[Array]) -> Array:
    """Start indices are clamped so that each slice lies inside."""
    operand = operands[0]
    rows = _index_rows(operands[1], node["index_vector_dim"])
    batch = rows.shape[:-1]
    sizes = node["slice_sizes"]
    batching = tuple(node.get("operand_batching_dims", ()))
    hidden = {*node["collapsed_slice_dims"], *batching}
    starts = {
        axis: np.clip(rows[..., i], 0, operand.shape[axis] - sizes[axis])
        for i, axis in enumerate(node["start_index_map"])
    }
    for axis, batch_axis in zip(batching, node.get("start_indices_batching_dims", ()), strict=True):
        position = batch_axis - (batch_axis > node["index_vector_dim"])
        starts[axis] = _along(len(batch), position, operand.shape[axis])
    window = [axis for axis in range(operand.ndim) if axis not in hidden]
    index = []
    for axis in range(operand.ndim):
        start = starts.get(axis, np.zeros((), np.int64))
        start = start.reshape(start.shape + (1,) * len(window)) if start.ndim else start
        if axis in hidden:
            index.append(start)
        else:
            offset = _along(len(window), window.index(axis), sizes[axis])
            index.append(start + offset)
    shape = batch + tuple(sizes[axis] for axis in window)
    gathered = (
        operand[tuple(np.broadcast_to(i, shape) for i in index)]
        if index
        else (np.broadcast_to(operand, shape))
    )
    offset_dims = node["offset_dims"]
    rank = len(batch) + len(window)
    order = {d: len(batch) + i for i, d in enumerate(offset_dims)}
    free = iter(range(len(batch)))
    return gathered.transpose([order[d] if d in order else next(free) for d in range(rank)])


def _along(rank: int, axis: int, extent: int) -> Array:
    return np.arange(extent).reshape([-1 if i == axis else 1 for i in range(rank)])


def scatter(
    node: Instruction, operands: Sequence[Array], precision: Precision, combine: Callable[..., Any]
) -> Any:
    """A window that does not lie wholly inside is dropped. Updates are applied in index order."""
    count = (len(operands) - 1) // 2
    results = [working(operand).copy() for operand in operands[:count]]
    updates = [working(update) for update in operands[count + 1 :]]
    places, inside = _scatter_places(node, results[0], operands[count], updates[0])
    reducer = reducer_of(node)
    flat = [result.reshape(-1) for result in results]
    chosen = [update[inside] for update in updates]
    if count == 1 and reducer is not None:
        ufunc(reducer, flat[0]).at(flat[0], places[inside], chosen[0])
    elif count == 1 and node["to_apply"].root is node["to_apply"].parameters[1]:
        flat[0][places[inside]] = chosen[0]
    else:
        for position, place in enumerate(places[inside]):
            old, new = [f[place] for f in flat], [c[position] for c in chosen]
            value = combine(*map(np.asarray, old), *map(np.asarray, new))
            for f, part in zip(flat, value if count > 1 else (value,), strict=True):
                f[place] = part
    shapes = node.shape.elements or (node.shape,)
    rounded = tuple(
        round_to_dtype(f.reshape(r.shape), s.dtype, precision)
        for f, r, s in zip(flat, results, shapes, strict=True)
    )
    return rounded if count > 1 else rounded[0]


def _scatter_places(
    node: Instruction, operand: Array, indices: Array, update: Array
) -> tuple[Array, Array]:
    """For every update element its flat position in the operand, and whether its window fits."""
    rows = _index_rows(indices, node["index_vector_dim"])
    window_dims = node["update_window_dims"]
    batching = tuple(node.get("input_batching_dims", ()))
    hidden = {*node["inserted_window_dims"], *batching}
    batch_dims = [d for d in range(update.ndim) if d not in window_dims]
    window = [axis for axis in range(operand.ndim) if axis not in hidden]

    def spread(values: Array) -> Array:
        """[batch...] to the update's rank, ones along window dimensions."""
        shape = [1] * update.ndim
        for d, extent in zip(batch_dims, values.shape, strict=True):
            shape[d] = extent
        return values.reshape(shape)

    places, inside = np.zeros(update.shape, np.int64), np.ones(update.shape, np.bool_)
    targets = node["scatter_dims_to_operand_dims"]
    batch_axes = dict(zip(batching, node.get("scatter_indices_batching_dims", ()), strict=True))
    for axis, extent in enumerate(operand.shape):
        start: Array = np.zeros((), np.int64)
        size = 1
        if axis in targets:
            start = spread(rows[..., targets.index(axis)])
        elif axis in batch_axes:
            position = batch_axes[axis] - (batch_axes[axis] > node["index_vector_dim"])
            start = _along(update.ndim, batch_dims[position], extent)
        offset: Array = np.zeros((), np.int64)
        if axis in window:
            dim = window_dims[window.index(axis)]
            size = update.shape[dim]
            offset = _along(update.ndim, dim, size)
        inside &= (start >= 0) & (start <= extent - size)
        places = places * extent + start + offset
    return places, inside


def sort(node: Instruction, operands: Sequence[Array], before: Callable[..., Array]) -> Any:
    """Rows along the dimension, by the comparator; ties keep their order, stable or not."""
    axis = node["dimensions"][0]
    moved = [np.moveaxis(o, axis, -1) for o in operands]
    length = moved[0].shape[-1]
    rows = [m.reshape(-1, length) for m in moved]
    order = _sorted_order(rows, before)
    ordered = [
        np.take_along_axis(r, order, 1).reshape(m.shape) for r, m in zip(rows, moved, strict=True)
    ]
    results = tuple(np.moveaxis(t, -1, axis) for t in ordered)
    return results if node.shape.elements is not None else results[0]


def _sorted_order(rows: Sequence[Array], before: Callable[..., Array]) -> Array:
    """Positions in sorted order, by merging sorted runs: all rows and pairs of runs at once."""
    count, length = rows[0].shape
    order = np.broadcast_to(np.arange(length), (count, length)).copy()
    width = 1
    while width < length:
        for begin in range(0, length, 2 * width):
            middle, end = min(begin + width, length), min(begin + 2 * width, length)
            if middle < end:
                order[:, begin:end] = _merge(rows, order, (begin, middle, end), before)
        width *= 2
    return order


def _merge(
    rows: Sequence[Array],
    order: Array,
    bounds: tuple[int, int, int],
    before: Callable[..., Array],
) -> Array:
    """The merge of two sorted runs: an element's place is its own rank plus that in the other."""
    begin, middle, end = bounds
    left, right = order[:, begin:middle], order[:, middle:end]
    right_rank = _ranks(rows, right, left, before, strict=True)
    left_rank = _ranks(rows, left, right, before, strict=False)
    merged = np.empty((len(order), end - begin), order.dtype)
    np.put_along_axis(merged, left_rank + np.arange(middle - begin), left, 1)
    np.put_along_axis(merged, right_rank + np.arange(end - middle), right, 1)
    return merged


def _ranks(
    rows: Sequence[Array],
    items: Array,
    run: Array,
    before: Callable[..., Array],
    strict: bool,
) -> Array:
    """How many of the sorted `run` come before each item: binary search, all at once.

    With `strict`, elements of `run` equal to the item come before it (the item is of a later run).
    """
    low = np.zeros(items.shape, np.int64)
    high = np.full(items.shape, run.shape[1], np.int64)
    take = functools.partial(np.take_along_axis, axis=1)
    while (low < high).any():
        middle = np.minimum((low + high) // 2, run.shape[1] - 1)
        probe = take(run, middle)
        mine = [take(r, items) for r in rows]
        other = [take(r, probe) for r in rows]
        ahead = ~_before(before, mine, other) if strict else _before(before, other, mine)
        active = low < high
        low = np.where(active & ahead, middle + 1, low)
        high = np.where(active & ~ahead, middle, high)
    return low


def _before(before: Callable[..., Array], left: Sequence[Array], right: Sequence[Array]) -> Array:
    pairs = [part for pair in zip(left, right, strict=True) for part in pair]
    return np.asarray(before(*pairs)).astype(bool)
