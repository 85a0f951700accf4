"""Sorting over an array module, by keys that follow from one operand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stitchcore.hlo import opcodes as op
from stitchcore.hlo.instruction import Computation, Instruction

Array = Any


def sort_refused(node: Instruction) -> str | None:
    if _key(node["to_apply"]) is None:
        return "a sort by something other than one operand, rising or falling"
    return None


def sort(xp: Any, node: Instruction, operands: Sequence[Array]) -> Any:
    """Stable, whether that is asked for or not."""
    found = _key(node["to_apply"])
    assert found is not None
    number, falling = found
    axis = node["dimensions"][0]
    keys = operands[number]
    if falling:  # the order of the reversed, reversed: equal ones keep theirs
        order = keys.shape[axis] - 1 - xp.flip(_order(xp, xp.flip(keys, axis), axis), axis)
    else:
        order = _order(xp, keys, axis)
    sorted_ = tuple(xp.take_along_axis(operand, order, axis) for operand in operands)
    return sorted_ if node.shape.elements is not None else sorted_[0]


def _order(xp: Any, keys: Array, axis: int) -> Array:
    """Stable: CuPy's argsort always is, numpy's where it is asked."""
    return xp.argsort(keys, axis=axis, kind="stable")


def _key(body: Computation) -> tuple[int, bool] | None:
    """The operand that a comparator compares, and whether the larger come first."""
    root = body.root
    if root.opcode != op.COMPARE or root["direction"] not in ("LT", "GT"):
        return None
    sides = [_parameter_of(operand) for operand in root.operands]
    if None in sides or sides[0] == sides[1]:
        return None
    left, right = (int(side or 0) for side in sides)
    if left // 2 != right // 2:
        return None
    return left // 2, (root["direction"] == "GT") == (left < right)


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
