"""Algebraic rules that hold bit for bit."""

from __future__ import annotations

import math

import numpy as np

from stitchcore.hlo.ir import builder
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.hlo.ir.query import reducer_of
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.hlo.transforms.rules_fold import splat_of


def _is_float(node: Instruction) -> bool:
    return node.shape.dtype in DTYPES and DTYPES[node.shape.dtype].kind == "float"


def _splat_value(node: Instruction) -> bool | int | float | None:
    splat = splat_of(node)
    return None if splat is None else splat.scalar


def _negative_zero(value: object) -> bool:
    return value == 0 and isinstance(value, float) and math.copysign(1, value) < 0


def constant_to_the_right(node: Instruction) -> Instruction | None:
    """So that equal expressions are one, and the other rules look at one side only."""
    left, right = node.operands
    if splat_of(left) is None or splat_of(right) is not None:
        return None
    return builder.elementwise(node.opcode, right, left)


_NEUTRAL_RIGHT = {
    op.SUBTRACT: 0,
    op.MULTIPLY: 1,
    op.DIVIDE: 1,
    op.POWER: 1,
    op.XOR: 0,
    op.ADD: 0,
    **dict.fromkeys(op.SHIFTS, 0),
}


def neutral_operand(node: Instruction) -> Instruction | None:
    """x op e = x. For floats x + 0 is x only when x is never -0 (or the zero is -0); x - -0 never.

    maximum(x, -inf) is x, NaN and -0 included, and so on for the reducers' identities.
    """
    left, right = node.operands
    value = _splat_value(right)
    if value is None:
        return None
    dtype = node.shape.dtype
    if node.opcode in (op.MAXIMUM, op.MINIMUM, op.AND, op.OR):
        identity = op.record(node.opcode).identity
        return left if identity is not None and value == identity(dtype) else None
    if value != _NEUTRAL_RIGHT.get(node.opcode) or (dtype == "pred" and node.opcode == op.SUBTRACT):
        return None
    if _is_float(node) and node.opcode == op.ADD:
        return left if _negative_zero(value) or never_negative_zero(left) else None
    if _is_float(node) and node.opcode == op.SUBTRACT:
        return None if _negative_zero(value) else left
    return left


_NON_NEGATIVE = frozenset({op.ABS, op.EXPONENTIAL, op.LOGISTIC})
_VIEWS = frozenset({op.BROADCAST, op.RESHAPE, op.TRANSPOSE, op.SLICE, op.REVERSE})


def never_negative_zero(node: Instruction, depth: int = 8) -> bool:
    """Known not to hold -0: a sum is -0 only when everything summed is."""
    if depth == 0:
        return False
    splat = _splat_value(node)
    if splat is not None:
        return not _negative_zero(splat)
    if node.opcode in _NON_NEGATIVE:
        return True
    if node.opcode == op.CONVERT:
        return not _is_float(node.operands[0]) or never_negative_zero(node.operands[0], depth - 1)
    if node.opcode in _VIEWS:
        return never_negative_zero(node.operands[0], depth - 1)
    if node.opcode == op.ADD:
        return any(never_negative_zero(operand, depth - 1) for operand in node.operands)
    if node.opcode == op.REDUCE and reducer_of(node) == op.ADD:
        return never_negative_zero(node.operands[1], depth - 1)
    return False


def absorbing_operand(node: Instruction) -> Instruction | None:
    """Integers and pred only: x * 0, x and 0, x or all-ones."""
    value = _splat_value(node.operands[1])
    if value is None or _is_float(node):
        return None
    ones = op.record(op.AND).identity
    assert ones is not None
    absorbing = ones(node.shape.dtype) if node.opcode == op.OR else 0
    return node.operands[1] if value == absorbing else None


def same_operands(node: Instruction) -> Instruction | None:
    """x and x, maximum(x, x); for integers also x - x, x xor x, x == x."""
    left, right = node.operands
    if left is not right:
        return None
    if node.opcode in (op.AND, op.OR, op.MAXIMUM, op.MINIMUM):
        return left
    if _is_float(left):
        return None
    if node.opcode == op.COMPARE:
        return builder.splat(node["direction"] in ("EQ", "LE", "GE"), node)
    return builder.splat(0 if node.shape.dtype != "pred" else False, node)


def exact_reciprocal(node: Instruction) -> Instruction | None:
    """x / 2^k is x * 2^-k; any other reciprocal rounds twice."""
    value = _splat_value(node.operands[1])
    if not isinstance(value, float) or value == 0 or not math.isfinite(value):
        return None
    if abs(math.frexp(value)[0]) != 0.5:
        return None
    reciprocal = 1 / value
    target = DTYPES[node.shape.dtype].numpy
    tiny = float(np.finfo(np.float32).tiny) if target.itemsize < 8 else float(np.finfo(target).tiny)
    stored = float(np.asarray(reciprocal).astype(target))
    if stored != reciprocal or abs(reciprocal) < tiny or abs(value) < tiny:
        return None
    return builder.elementwise(op.MULTIPLY, node.operands[0], builder.splat(reciprocal, node))


def small_power(node: Instruction) -> Instruction | None:
    """x^2 as x * x and x^0 as 1: both correctly rounded, as a power at its best is."""
    value = _splat_value(node.operands[1])
    if value == 2:
        return builder.elementwise(op.MULTIPLY, node.operands[0], node.operands[0])
    if value == 0:
        return builder.splat(1.0 if _is_float(node) else 1, node)
    return None


def involution(node: Instruction) -> Instruction | None:
    """not not x, - - x."""
    operand = node.operands[0]
    return operand.operands[0] if operand.opcode == node.opcode else None


def decided_select(node: Instruction) -> Instruction | None:
    predicate, on_true, on_false = node.operands
    if on_true is on_false:
        return on_true
    value = _splat_value(predicate)
    return None if value is None else (on_true if value else on_false)


def held_check(node: Instruction) -> Instruction | None:
    """A check that always holds."""
    value, predicate = node.operands
    return value if _splat_value(predicate) is True else None


def same_type_convert(node: Instruction) -> Instruction | None:
    operand = node.operands[0]
    return operand if operand.shape == node.shape else None


def convert_of_convert(node: Instruction) -> Instruction | None:
    """A conversion that loses nothing may be skipped; f32 -> bf16 -> f32 loses."""
    inner = node.operands[0]
    if inner.opcode != op.CONVERT:
        return None
    source = inner.operands[0]
    if not _lossless(source.shape.dtype, inner.shape.dtype):
        return None
    return builder.convert(source, node.shape.dtype)


_MANTISSA = {"f8e4m3fn": 4, "f8e5m2": 3, "f16": 11, "bf16": 8, "f32": 24, "f64": 53}
_EXPONENT = {"f8e4m3fn": 4, "f8e5m2": 5, "f16": 5, "bf16": 8, "f32": 8, "f64": 11}


def _lossless(source: str, target: str) -> bool:
    """Every value of `source` is a value of `target`."""
    a, b = DTYPES[source], DTYPES[target]
    if a.kind == "pred":
        return True
    if b.kind == "pred":
        return False
    if a.kind == "float":
        wide = _MANTISSA.get(target, 0) >= _MANTISSA[source]
        return wide and _EXPONENT.get(target, 0) >= _EXPONENT[source]
    bits = a.bytes * 8 - (a.kind == "signed")
    if b.kind == "float":
        return bits <= _MANTISSA[target] and _EXPONENT[target] >= _EXPONENT["f32"]
    if a.kind == "signed" and b.kind == "unsigned":
        return False
    return b.bytes * 8 - (b.kind == "signed") >= bits


def same_type_bitcast(node: Instruction) -> Instruction | None:
    """Also a chain of bitcasts is one bitcast."""
    operand = node.operands[0]
    if operand.shape == node.shape:
        return operand
    if operand.opcode == op.BITCAST_CONVERT and operand.operands[0].shape == node.shape:
        return operand.operands[0]
    return None


def identity(node: Instruction) -> Instruction | None:
    """Copies and optimisation barriers only matter to XLA's own passes."""
    return node.operands[0]
