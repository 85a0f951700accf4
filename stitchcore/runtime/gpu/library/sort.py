"""Sorting over an array module, by any number of keys in order, rising or falling.

Every key becomes integers that rise as it is to be sorted. Short rows are sorted by counting, for
each element, those before it: unlike CuPy's sort (thrust's, which waits for the device) that can be
captured in a CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.runtime.gpu.library.call import LibraryCall

Array = Any
MOST_PAIRS = 1 << 24
"""Comparisons of a sort by counting."""


@dataclass(frozen=True)
class Key:
    """Operand `number`, the larger first with `falling`; floats by all their bits with `total` (-0
    before 0), else as numbers (NaN is last)."""

    number: int
    falling: bool
    total: bool


def sort_refused(node: Instruction) -> str | None:
    keys = _keys(node["to_apply"].root)
    if keys is None:
        return "a sort by something other than operands in order, rising or falling"
    return None


def waits(node: Instruction) -> bool:
    """Whether the host waits for the device within this sort."""
    extents, [axis] = node.operands[0].shape.static, node["dimensions"]
    return bool(math.prod(extents) * extents[axis] > MOST_PAIRS)


def sort(xp: Any, node: Instruction, operands: Sequence[Array]) -> Any:
    """Stable, whether that is asked for or not."""
    wanted = _keys(node["to_apply"].root)
    assert wanted is not None
    axis = node["dimensions"][0]
    keys = [_rising(xp, xp.moveaxis(operands[key.number], axis, -1), key) for key in wanted]
    order = xp.moveaxis((_sorted if waits(node) else _counted)(xp, keys), -1, axis)
    results = tuple(xp.take_along_axis(operand, order, axis) for operand in operands)
    return results if node.shape.elements is not None else results[0]


def _counted(xp: Any, keys: Sequence[Array]) -> Array:
    """Positions in order along the last axis: an element's place is how many come before it."""
    count = keys[0].shape[-1]
    here = xp.arange(count)
    before = here[:, None] < here[None, :]  # [other, own]: of equal elements the first
    for key in reversed(keys):
        own, other = key[..., None, :], key[..., :, None]
        before = (other < own) | ((other == own) & before)
    place = before.sum(axis=-2)
    # the place of each element, turned round: which element has each place
    return (xp.where(place[..., None, :] == here[:, None], here, 0)).sum(axis=-1)


def _sorted(xp: Any, keys: Sequence[Array]) -> Array:
    """The same by stable sorts, the last key first. CuPy's argsort is stable, numpy's where it is
    asked."""
    order = xp.argsort(keys[-1], axis=-1, kind="stable")
    for key in reversed(keys[:-1]):
        now = xp.take_along_axis(key, order, -1)
        order = xp.take_along_axis(order, xp.argsort(now, axis=-1, kind="stable"), -1)
    return order


def _rising(xp: Any, values: Array, key: Key) -> Array:
    """Integers that are ordered as `values` are to be."""
    if values.dtype.kind == "b":
        values = values.astype("uint8")
    if values.dtype.kind not in "iu":
        values = _by_bits(xp, values, key.total)
    return ~values if key.falling else values


def _by_bits(xp: Any, values: Array, total: bool) -> Array:
    """A float's bits as an integer, those of negative ones mirrored."""
    width = values.dtype.itemsize
    absent = None if total else values != values
    if not total:
        values = xp.where(values == 0, xp.zeros_like(values), values)  # -0 is 0
    bits = xp.ascontiguousarray(values).view(f"int{8 * width}")
    most = (1 << (8 * width - 1)) - 1
    rising = xp.where(bits < 0, bits ^ most, bits)
    return rising if absent is None else xp.where(absent, most, rising)


# ---- what a comparator compares ------------------------------------------------------------------
def _keys(root: Instruction) -> list[Key] | None:
    """The keys of a comparator: one compared, or one compared and where it is equal the next."""
    if root.opcode == op.COMPARE:
        key = _key(root)
        return None if key is None else [key]
    if root.opcode == op.SELECT:
        equal, rest, first = root.operands
    elif root.opcode == op.OR and op.AND in (operand.opcode for operand in root.operands):
        first, both = sorted(root.operands, key=lambda operand: operand.opcode == op.AND)
        equal, rest = both.operands
    else:
        return None
    key = _key(first) if first.opcode == op.COMPARE else None
    others = _keys(rest)
    if key is None or others is None or not _is_equal(equal, key):
        return None
    return [key, *others]


def _key(root: Instruction) -> Key | None:
    if root["direction"] not in ("LT", "GT"):
        return None
    sides = [_parameter_of(operand) for operand in root.operands]
    if None in sides or sides[0] == sides[1]:
        return None
    left, right = (int(side or 0) for side in sides)
    if left // 2 != right // 2:
        return None
    falling = (root["direction"] == "GT") == (left < right)
    total = root.get("type") == "TOTALORDER" or root.operands[0].opcode != op.PARAMETER
    return Key(left // 2, falling, total)


def _is_equal(node: Instruction, key: Key) -> bool:
    """Whether `node` says that both sides of `key` are equal."""
    if node.opcode != op.COMPARE or node["direction"] != "EQ":
        return False
    sides = [_parameter_of(operand) for operand in node.operands]
    return set(sides) == {2 * key.number, 2 * key.number + 1}


def _parameter_of(node: Instruction) -> int | None:
    """The parameter that `node` is, or is a rising function of: the bits of a float as an integer
    that orders as floats do (a select between its bits and their mirror)."""
    if node.opcode == op.PARAMETER:
        return int(node["number"])
    if node.opcode != op.SELECT:
        return None
    negative, mirrored, bits = node.operands
    signs = negative.opcode == op.COMPARE and negative["direction"] == "LT"
    if not signs or bits.opcode != op.BITCAST_CONVERT or negative.operands[0] is not bits:
        return None
    if mirrored.opcode not in (op.SUBTRACT, op.BITCAST_CONVERT, op.XOR):
        return None
    value = bits.operands[0]
    return int(value["number"]) if value.opcode == op.PARAMETER else None


CALLS = {
    op.SORT: LibraryCall(sort, sort_refused),
}
