"""Cumulative sums, products and extremes: windows as long as their axis, padded on one side.

TensorFlow's Cumsum and Cumprod become a `reduce-window` of as many elements as the axis has, with
padding for all but one before it (after it, when `reverse`); when `exclusive`, with padding for all
and a slice that takes the total away. Each result is the reducer's over all elements up to one, so
a pass along the axis that carries what it has so far makes them all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from stitchcore.hlo.ir import builder
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.attributes import WindowDim
from stitchcore.hlo.ir.dim import Dim
from stitchcore.hlo.ir.instruction import Instruction, instruction
from stitchcore.hlo.ir.query import reducer_of
from stitchcore.hlo.ir.shape import Shape


@dataclass(frozen=True)
class Scan:
    """Element i along `dim` is the reducer's result over the operand's elements up to the i-th, or
    before it where `exclusive`; with `reverse` both are counted from the end."""

    dim: int
    reverse: bool
    exclusive: bool


def scan_of(node: Instruction) -> Scan | None:
    """What a reduce-window computes where its windows are a scan, whatever its function."""
    window: tuple[WindowDim, ...] = node["window"]
    moving = [d for d, window_dim in enumerate(window) if window_dim != WindowDim(1)]
    if len(moving) != 1 or len(node.operands) != 2:
        return None
    [dim] = moving
    moved, extent = window[dim], node.operands[0].shape.dims[dim]
    if node.shape.dims[dim] == 1 or replace(moved, size=1, pad_low=0, pad_high=0) != WindowDim(1):
        return None
    for reverse in (False, True):
        before, after = (
            (moved.pad_high, moved.pad_low) if reverse else (moved.pad_low, moved.pad_high)
        )
        first = moved.size - before  # elements that the first window has
        outside = (after, extent + after - moved.size)  # beyond the last window, before the first
        if first in (0, 1) and all(isinstance(n, int) and n <= 0 for n in outside):
            return Scan(dim, reverse, first == 0)
    return None


def scan_refusal(node: Instruction) -> str | None:
    """Why a reduce-window is no scan by one opcode that starts at its neutral element."""
    if scan_of(node) is None:
        return "a window that is neither small nor from an end of its axis"
    if reducer_of(node) is None:
        return "a window whose function is not one opcode"
    if not starts_neutral(node):
        return "a window that does not start at its function's neutral element"
    return None


def starts_neutral(node: Instruction) -> bool:
    """Whether a reduce-window by one opcode starts at a constant that changes nothing."""
    reducer, start = reducer_of(node), node.operands[1]
    assert reducer is not None
    neutral = op.record(reducer).identity
    assert neutral is not None
    known = start.opcode == op.CONSTANT and start.get("value") is not None
    return bool(known and start["value"].scalar == neutral(start.shape.dtype))


def part_of_scan(node: Instruction) -> Instruction | None:
    """An exclusive scan without what a slice takes from its ends (the total, in TensorFlow's) is a
    scan of fewer elements; a conversion between the two stays."""
    source = node.operands[0]
    scan = source.operands[0] if source.opcode == op.CONVERT else source
    described = scan_of(scan) if scan.opcode == op.REDUCE_WINDOW else None
    if described is None or not described.exclusive:
        return None
    dims = scan.shape.dims
    cut = [d for d, bounds in enumerate(node["slice"]) if bounds != (0, dims[d], 1)]
    start, limit, stride = node["slice"][described.dim]
    if cut != [described.dim] or stride != 1:
        return None
    window = list(scan["window"])
    window[described.dim] = _shorter(window[described.dim], start, dims[described.dim] - limit)
    shape = Shape(scan.shape.dtype, node.shape.dims)
    body = scan["to_apply"]
    shorter = instruction(
        op.REDUCE_WINDOW, shape, scan.operands, window=tuple(window), to_apply=body
    )
    return builder.convert(shorter, node.shape.dtype) if scan_of(shorter) is not None else None


def _shorter(window: WindowDim, low: Dim, high: Dim) -> WindowDim:
    return replace(window, pad_low=window.pad_low - low, pad_high=window.pad_high - high)
