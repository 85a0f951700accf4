"""Pooling written with slices: a small window's elements, each a slice, combined one by one.

A `reduce-window` over w elements is w strided slices of the padded operand, combined in the
window's order. `select-and-scatter` (the gradient of max pooling) asks which of these slices each
window selects, and pads what it adds to that one back to the operand's size. Kernels read slices
and pads as index maps, so nothing of this is stored but the selection.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from stitchcore.hlo.ir import builder
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.attributes import WindowDim
from stitchcore.hlo.ir.cumulative import scan_of, starts_neutral
from stitchcore.hlo.ir.dim import Dim
from stitchcore.hlo.ir.instruction import Computation, Instruction
from stitchcore.hlo.ir.query import monoid, reducer_of
from stitchcore.hlo.ir.shape import DTYPES

LARGEST_WINDOW = 16
"""Elements of a window up to which reading each of them costs little beside the pass itself."""


CHOICE, OFTEN = "s8", "s32"
"""Types in which kernels keep which element a window selected: the least that has LARGEST_WINDOW;
and the width of what is selected where windows overlap, and each choice is compared with again and
again: a byte is widened for each time (1.4 to 2 times as long on a CPU)."""


def small_window(node: Instruction) -> Instruction | None:
    """A reduce-window with a monoid over few elements; 2-byte floats are summed in f32, and what is
    counted from the end of an axis (cumulative.py) from there."""
    reducer, window = reducer_of(node), node["window"]
    if reducer is None or len(node.operands) != 2 or not _is_small(window):
        return None
    if overlaps(window) and is_turned(node.operands[0]):
        return None
    operand, initial = node.operands
    wide = _sum_type(reducer, node.shape.dtype)
    padded = builder.pad(operand, _outside(node, reducer), [_padding(d) for d in window])
    total = builder.convert(initial, wide)
    total = builder.broadcast(total, node.shape.dims, ()) if node.shape.dims else total
    parts, scan = list(_parts(padded, window, node.shape.dims)), scan_of(node)
    for part in reversed(parts) if scan is not None and scan.reverse else parts:
        if part is None:
            return None
        total = builder.elementwise(reducer, total, builder.convert(part, wide))
    return builder.convert(total, node.shape.dtype)


def overlaps(window: Sequence[WindowDim]) -> bool:
    """Whether an element may be in more than one of the windows."""
    return any(not isinstance(d.size, int) or d.stride < d.size for d in window)


def is_turned(value: Instruction) -> bool:
    """Whether neighbours in `value` lie apart in memory. A kernel would read each element of each
    window across the rows of memory, alone; operations that turn all of it first take 0.2 to 0.6
    of the time, for the gradients of poolings in NCHW and where windows overlap (of windows side by
    side each element is read once, and there a kernel takes a fifth)."""
    while op.record(value.opcode).kind == "elementwise" or value.opcode == op.PAD:
        value = value.operands[-1 if value.opcode == op.SELECT else 0]
    return (
        value.opcode == op.TRANSPOSE
        and value["dimensions"][-1] != value.shape.rank - 1
        and value.shape.dims[-1] != 1
    )


def _outside(node: Instruction, reducer: str) -> Instruction:
    """What windows find beside the operand: nothing, for XLA takes its elements alone, and the
    first operand once."""
    neutral = op.record(reducer).identity
    assert neutral is not None
    dtype = node.shape.dtype
    return node.operands[1] if starts_neutral(node) else builder.constant(neutral(dtype), dtype)


def _sum_type(reducer: str, dtype: str) -> str:
    return "f32" if DTYPES[dtype].narrow and op.record(reducer).ulp > 0 else dtype


def _is_small(window: Sequence[WindowDim]) -> bool:
    count: Dim = 1
    for d in window:
        count = count * d.size
    small = isinstance(count, int) and 0 < count <= LARGEST_WINDOW
    return small and not any(d.reversed for d in window)


def _padding(d: WindowDim) -> tuple[Dim, Dim, int]:
    return d.pad_low, d.pad_high, d.lhs_dilate - 1


def _offsets(window: Sequence[WindowDim]) -> Iterator[tuple[int, ...]]:
    """Places in the padded operand of the first window's elements, in the window's order."""
    sizes = [d.size for d in window if isinstance(d.size, int)]
    steps = [d.rhs_dilate for d in window]
    for element in itertools.product(*map(range, sizes)):
        yield tuple(k * step for k, step in zip(element, steps, strict=True))


def _parts(
    padded: Instruction, window: Sequence[WindowDim], dims: Sequence[Dim]
) -> Iterator[Instruction | None]:
    """For each element of the window, that element of all windows; None where a stride meets a
    symbolic dimension."""
    for offsets in _offsets(window):
        ranges: list[tuple[Dim, Dim, int]] = []
        for offset, d, extent in zip(offsets, window, dims, strict=True):
            if d.stride != 1 and not isinstance(extent, int):
                yield None
                return
            ranges.append((offset, offset + (extent - 1) * d.stride + 1, d.stride))
        yield builder.slice_(padded, ranges)


def small_selection(node: Instruction) -> Instruction | None:
    """A select-and-scatter that adds to the greatest (or least) of few elements, the first of equal
    ones: max pooling's gradient."""
    operand, source, initial = node.operands
    window, direction = node["window"], _direction(node["select"])
    adds = monoid(node["scatter"]) == op.ADD
    plain = all(d.lhs_dilate == d.rhs_dilate == 1 for d in window)
    if not (adds and plain and direction and _is_small(window)) or is_turned(operand):
        return None
    if any(not isinstance(extent, int) for d, extent in zip(window, operand.shape.dims, strict=True)
           if (d.size, d.stride) != (1, 1)):  # fmt: skip
        return None
    dtype = operand.shape.dtype
    worst = op.record(op.MAXIMUM if direction == "GE" else op.MINIMUM).identity
    assert worst is not None
    parts, inside = _candidates(node, operand, worst(dtype)), None
    if any((d.pad_low, d.pad_high) != (0, 0) for d in window):
        truth = builder.constant(True, "pred")
        inside = _candidates(node, builder.broadcast(truth, operand.shape.dims, ()), False)
    width = OFTEN if overlaps(window) else CHOICE
    chosen = builder.convert(_chosen(parts, inside, direction), width)
    total = builder.convert(initial, _sum_type(op.ADD, dtype))
    total = builder.broadcast(total, operand.shape.dims, ())
    nothing, nowhere = builder.constant(0, dtype), builder.constant(-1, width)
    for number, offsets in enumerate(_offsets(window)):
        back = list(map(_back, window, offsets, operand.shape.dims, source.shape.dims))
        spread, where = builder.pad(source, nothing, back), builder.pad(chosen, nowhere, back)
        selected = builder.elementwise(
            op.COMPARE, where, builder.splat(number, where), direction="EQ"
        )
        added = builder.elementwise(op.SELECT, selected, spread, builder.splat(0, spread))
        total = builder.elementwise(op.ADD, total, builder.convert(added, total.shape.dtype))
    return builder.convert(total, node.shape.dtype)


def _direction(select: Computation) -> str | None:
    """The comparison of the selected element with the next one, by which it stays selected."""
    root = select.root
    compares = root.opcode == op.COMPARE and root.operands == select.parameters
    direction = root["direction"] if compares else None
    return direction if direction in ("GE", "LE") else None


def _candidates(node: Instruction, values: Instruction, outside: Any) -> list[Instruction]:
    """For each element of the window, that element of all windows; `outside` beside the operand."""
    nothing = builder.constant(outside, values.shape.dtype)
    padded = builder.pad(values, nothing, [_padding(d) for d in node["window"]])
    window_parts = list(_parts(padded, node["window"], node.operands[1].shape.dims))
    return [part for part in window_parts if part is not None]


def _chosen(
    parts: Sequence[Instruction], inside: Sequence[Instruction] | None, direction: str
) -> Instruction:
    """By window, the number of its selected element (s32); -1 where all lie outside.

    What lies outside is the worst value there is, so the first element inside is ahead of all
    before it, or as bad and then named from the start. Asked of the number instead (is any chosen
    yet?), each element would wait for the one before it twice, and gcc makes no vectors of it.
    """
    best, number = parts[0], builder.broadcast(builder.constant(0, "s32"), parts[0].shape.dims, ())
    if inside is not None:
        zero, number = number, builder.splat(-1, number)
        for k, within in reversed(list(enumerate(inside))):
            number = builder.elementwise(op.SELECT, within, builder.splat(k, zero), number)
    for k, part in enumerate(parts[1:], 1):
        first_wins = builder.elementwise(op.COMPARE, best, part, direction=direction)
        better = builder.elementwise(op.NOT, first_wins)
        if inside is not None:
            better = builder.elementwise(op.AND, better, inside[k])
        best = builder.elementwise(op.SELECT, better, part, best)
        number = builder.elementwise(op.SELECT, better, builder.splat(k, number), number)
    return number


def _back(d: WindowDim, at: int, extent: Dim, count: Dim) -> tuple[Dim, Dim, int]:
    """Padding by which an element of each window comes to its place in the operand."""
    low = at - d.pad_low
    return low, extent - low - ((count - 1) * d.stride + 1), d.stride - 1
