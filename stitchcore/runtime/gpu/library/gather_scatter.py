"""Gather, scatter and dynamic slices over an array module: indices stay on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.hlo.ir.query import reducer_of
from stitchcore.runtime.gpu.library.call import LibraryCall

Array = Any


def dynamic_slice(xp: Any, node: Instruction, operands: Sequence[Array]) -> Array:
    """Start indices are clamped so that the slice lies inside."""
    array, *starts = operands
    return array[_window(xp, array.shape, starts, node["dynamic_slice_sizes"])]


def dynamic_update_slice(xp: Any, operands: Sequence[Array], result: Array) -> None:
    """The first operand with the second written into it; `result` may be the first's memory."""
    array, update, *starts = operands
    if not _same_memory(array, result):
        result[...] = array
    result[_window(xp, array.shape, starts, update.shape)] = update


def _same_memory(first: Array, second: Array) -> bool:
    key = "__cuda_array_interface__"
    if hasattr(first, key):
        return bool(getattr(first, key)["data"][0] == getattr(second, key)["data"][0])
    return bool(first.ctypes.data == second.ctypes.data)


def _window(
    xp: Any, extents: Sequence[int], starts: Sequence[Array], sizes: Sequence[int]
) -> tuple[Any, ...]:
    """An index for each dimension. Where the window is as wide as the array it is a slice, unless
    several others are not: then all are arrays, since arrays between slices change their order."""
    if len(starts) == 1 and starts[0].ndim == 1:
        starts = [starts[0][axis] for axis in range(len(extents))]
    partial = [axis for axis, size in enumerate(sizes) if size != extents[axis]]
    index: list[Any] = [slice(None)] * len(extents)
    chosen = partial if len(partial) <= 1 else list(range(len(extents)))
    for position, axis in enumerate(chosen):
        begin = xp.clip(starts[axis], 0, extents[axis] - sizes[axis]).astype("int64")
        shape = [-1 if n == position else 1 for n in range(len(chosen))]
        index[axis] = (begin + xp.arange(sizes[axis])).reshape(shape)
    return tuple(index)


def _rows(xp: Any, indices: Array, vector_dim: int) -> Array:
    """Start indices as int64 [batch..., components]."""
    if vector_dim == indices.ndim:
        indices = indices[..., None]
    return xp.moveaxis(indices, vector_dim, -1).astype("int64")


def _along(xp: Any, rank: int, axis: int, extent: int) -> Array:
    return xp.arange(extent).reshape([-1 if i == axis else 1 for i in range(rank)])


def gather(xp: Any, node: Instruction, operands: Sequence[Array]) -> Array:
    """Start indices are clamped so that each slice lies inside."""
    operand = operands[0]
    rows = _rows(xp, operands[1], node["index_vector_dim"])
    batch, sizes = rows.shape[:-1], node["slice_sizes"]
    batching = tuple(node.get("operand_batching_dims", ()))
    hidden = {*node["collapsed_slice_dims"], *batching}
    window = [axis for axis in range(operand.ndim) if axis not in hidden]
    targets = node["start_index_map"]
    starts = {
        axis: xp.clip(rows[..., i], 0, operand.shape[axis] - sizes[axis])
        for i, axis in enumerate(targets)
    }
    whole = all(sizes[axis] == operand.shape[axis] for axis in window)
    if len(targets) == 1 and hidden == set(targets) and whole:  # rows of a table
        [axis] = targets
        taken = xp.take(xp.moveaxis(operand, axis, 0), starts[axis], axis=0)
    else:
        for axis, by in zip(batching, node.get("start_indices_batching_dims", ()), strict=True):
            position = by - (by > node["index_vector_dim"])
            starts[axis] = _along(xp, len(batch), position, operand.shape[axis])
        taken = operand[_places(xp, operand.ndim, batch, window, starts, sizes)]
    offset_dims = node["offset_dims"]
    order = {d: len(batch) + i for i, d in enumerate(offset_dims)}
    free = iter(range(len(batch)))
    rank = len(batch) + len(window)
    return taken.transpose([order[d] if d in order else next(free) for d in range(rank)])


def _places(
    xp: Any,
    rank: int,
    batch: Sequence[int],
    window: Sequence[int],
    starts: dict[int, Array],
    sizes: Sequence[int],
) -> tuple[Array, ...]:
    """For each dimension an index array of [batch..., window...]."""
    shape = (*batch, *(sizes[axis] for axis in window))
    index = []
    for axis in range(rank):
        place = xp.zeros((1,) * len(shape), "int64")
        if axis in starts:
            place = starts[axis].reshape(starts[axis].shape + (1,) * len(window))
        if axis in window:
            place = place + _along(xp, len(window), window.index(axis), sizes[axis])
        index.append(xp.broadcast_to(place, shape))
    return tuple(index)


def scatter_refused(node: Instruction) -> str | None:
    if len(node.operands) != 3 or _joined(node) is None:
        return "a scatter that does not add to, subtract from or replace elements of one array"
    return None


def _joined(node: Instruction) -> int | None:
    """By how much an update counts: added (1), subtracted (-1) or in the old one's place (0)."""
    body = node["to_apply"]
    if reducer_of(node) == op.ADD:
        return 1
    if body.root.opcode == op.SUBTRACT and body.root.operands == body.parameters:
        return -1
    return 0 if body.root is body.parameters[1] else None


def scatter(xp: Any, node: Instruction, operands: Sequence[Array]) -> Array:
    """A window that does not lie wholly inside goes to an element past the end, and is dropped.
    Sums are atomic: their order, and so their last bits, may differ from run to run."""
    operand, indices, update = operands
    places = _scatter_places(xp, node, operand.shape, indices, update.shape).reshape(-1)
    flat = xp.empty(operand.size + 1, operand.dtype)
    flat[:-1] = operand.reshape(-1)
    flat[-1] = 0
    sign = _joined(node)
    values = update.reshape(-1)
    if sign == 0:
        flat[places] = values
    else:
        xp.add.at(flat, places, values if sign == 1 else -values)
    return flat[:-1].reshape(operand.shape)


def _scatter_places(
    xp: Any, node: Instruction, extents: Sequence[int], indices: Array, update: Sequence[int]
) -> Array:
    """For every update element its flat position, or the element past the end."""
    rows = _rows(xp, indices, node["index_vector_dim"])
    window_dims = node["update_window_dims"]
    batching = tuple(node.get("input_batching_dims", ()))
    hidden = {*node["inserted_window_dims"], *batching}
    batch_dims = [d for d in range(len(update)) if d not in window_dims]
    window = [axis for axis in range(len(extents)) if axis not in hidden]
    targets = node["scatter_dims_to_operand_dims"]
    batch_axes = dict(zip(batching, node.get("scatter_indices_batching_dims", ()), strict=True))
    places, inside, total = xp.zeros(update, "int64"), xp.ones(update, "bool"), 1
    for axis, extent in enumerate(extents):
        start, size, offset = 0, 1, 0
        if axis in targets:
            values = rows[..., targets.index(axis)]
            shape = [1] * len(update)
            for d, length in zip(batch_dims, values.shape, strict=True):
                shape[d] = length
            start = values.reshape(shape)
        elif axis in batch_axes:
            position = batch_axes[axis] - (batch_axes[axis] > node["index_vector_dim"])
            start = _along(xp, len(update), batch_dims[position], extent)
        if axis in window:
            dim = window_dims[window.index(axis)]
            size = update[dim]
            offset = _along(xp, len(update), dim, size)
        inside = inside & (start >= 0) & (start + size <= extent)
        places, total = places * extent + start + offset, total * extent
    return xp.where(inside, places, total)


CALLS = {
    op.GATHER: LibraryCall(gather),
    op.SCATTER: LibraryCall(scatter, scatter_refused),
    op.DYNAMIC_SLICE: LibraryCall(dynamic_slice),
}
