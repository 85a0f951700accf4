"""What each elementwise opcode means, in numpy: the one definition that folding, the oracle and the
loop IR's interpreter share.

Every function takes arrays of one working type (float32 or float64 for floats, the storage type for
integers and pred) and returns an array; `opcodes.compute` widens narrow floats before, rounds and
flushes after. Where TensorFlow's CPU kernels and XLA disagree on an edge (out-of-range float to
integer conversion, NaN in maximum), TensorFlow's rule is the one written here.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def is_float(array: Array) -> bool:
    return array.dtype.kind == "f"


def _bits(array: Array) -> int:
    return array.dtype.itemsize * 8


def negate(x: Array) -> Array:
    return np.negative(x)


def absolute(x: Array) -> Array:
    return np.abs(x)


def sign(x: Array) -> Array:
    """Keeps the sign of a zero and propagates NaN."""
    return np.where(x == 0, x, np.sign(x)) if is_float(x) else np.sign(x)


def logical_not(x: Array) -> Array:
    return np.logical_not(x) if x.dtype.kind == "b" else np.invert(x)


def round_nearest_afz(x: Array) -> Array:
    """Round to nearest, halves away from zero; exact, with no intermediate x + 0.5."""
    whole = np.trunc(x)
    step = np.where(np.abs(x - whole) >= 0.5, np.copysign(1, x), 0)
    return np.asarray(np.copysign(whole + step, x), x.dtype)


def rsqrt(x: Array) -> Array:
    return (1 / np.sqrt(x)).astype(x.dtype)


def logistic(x: Array) -> Array:
    return (1 / (1 + np.exp(-x))).astype(x.dtype)


_erf = np.frompyfunc(math.erf, 1, 1)


def erf(x: Array) -> Array:
    return np.asarray(_erf(x.astype(np.float64)), np.float64).astype(x.dtype)


def population_count(x: Array) -> Array:
    unsigned = x.astype(np.dtype(f"u{x.dtype.itemsize}"))
    octets = np.ascontiguousarray(unsigned).reshape(-1, 1).view(np.uint8)
    counts = np.unpackbits(octets, axis=1).sum(axis=1)
    return np.asarray(counts.reshape(x.shape), x.dtype)


def count_leading_zeros(x: Array) -> Array:
    unsigned = x.astype(np.dtype(f"u{x.dtype.itemsize}")).astype(np.uint64)
    count = np.zeros(x.shape, np.int64)
    for shift in (32, 16, 8, 4, 2, 1):
        if shift >= _bits(x):
            continue
        empty = unsigned >> np.uint64(_bits(x) - shift) == 0
        count += np.where(empty, shift, 0)
        shifted = (unsigned << np.uint64(shift)) & np.uint64(2 ** _bits(x) - 1)
        unsigned = np.where(empty, shifted, unsigned)
    return np.where(unsigned == 0, _bits(x), count).astype(x.dtype)


def add(x: Array, y: Array) -> Array:
    return np.add(x, y)


def subtract(x: Array, y: Array) -> Array:
    return np.not_equal(x, y) if x.dtype.kind == "b" else np.subtract(x, y)


def multiply(x: Array, y: Array) -> Array:
    return np.multiply(x, y)


def divide(x: Array, y: Array) -> Array:
    """Integers: truncates; x / 0 is all ones, and the one overflow wraps."""
    if is_float(x):
        return np.divide(x, y)
    safe = np.where((y == 0) | _overflows(x, y), 1, y).astype(x.dtype)
    quotient = x // safe
    if x.dtype.kind == "i":
        inexact = (quotient * safe != x) & ((x < 0) != (safe < 0))
        quotient = quotient + inexact.astype(x.dtype)
    ones = np.invert(np.zeros((), x.dtype))
    return np.where(y == 0, ones, quotient).astype(x.dtype)


def remainder(x: Array, y: Array) -> Array:
    """The sign of x. Integers: x % 0 is x, and the one overflow gives 0."""
    if is_float(x):
        return np.fmod(x, y)
    safe = np.where((y == 0) | _overflows(x, y), 1, y).astype(x.dtype)
    return np.where(y == 0, x, np.fmod(x, safe)).astype(x.dtype)


def _overflows(x: Array, y: Array) -> Array:
    if x.dtype.kind != "i":
        return np.zeros(np.broadcast(x, y).shape, np.bool_)
    return np.asarray((x == np.iinfo(x.dtype).min) & (y == -1))


def power(x: Array, y: Array) -> Array:
    """Integers wrap; a negative exponent gives 0 unless the base is 1 or -1."""
    if is_float(x):
        return np.power(x, y)
    result, base = np.ones(np.broadcast(x, y).shape, x.dtype), x.copy()
    exponent = np.maximum(y, 0).astype(np.dtype(f"u{x.dtype.itemsize}"))
    for _ in range(_bits(x)):
        result = np.where(exponent & exponent.dtype.type(1), result * base, result)
        base, exponent = base * base, exponent >> exponent.dtype.type(1)
    if x.dtype.kind == "i":
        unit = np.where(x == 1, 1, np.where(x == -1, np.where(y % 2 == 0, 1, -1), 0))
        result = np.where(y < 0, unit, result)
    return result.astype(x.dtype)


def maximum(x: Array, y: Array) -> Array:
    """A NaN in either operand wins."""
    return np.maximum(x, y)


def minimum(x: Array, y: Array) -> Array:
    """A NaN in either operand wins."""
    return np.minimum(x, y)


def bit_and(x: Array, y: Array) -> Array:
    return np.bitwise_and(x, y)


def bit_or(x: Array, y: Array) -> Array:
    return np.bitwise_or(x, y)


def bit_xor(x: Array, y: Array) -> Array:
    return np.bitwise_xor(x, y)


def _amount(x: Array, y: Array) -> tuple[Array, Array]:
    """Shift amounts made legal, and where they were not (the amount is read as unsigned)."""
    outside = (y < 0) | (y >= _bits(x)) if y.dtype.kind == "i" else y >= _bits(x)
    return np.where(outside, 0, y).astype(x.dtype), outside


def shift_left(x: Array, y: Array) -> Array:
    amount, outside = _amount(x, y)
    return np.where(outside, 0, np.left_shift(x, amount)).astype(x.dtype)


def shift_right_logical(x: Array, y: Array) -> Array:
    amount, outside = _amount(x, y)
    unsigned = np.dtype(f"u{x.dtype.itemsize}")
    shifted = np.right_shift(x.astype(unsigned), amount.astype(unsigned))
    return np.where(outside, 0, shifted).astype(unsigned).astype(x.dtype)


def shift_right_arithmetic(x: Array, y: Array) -> Array:
    amount, outside = _amount(x, y)
    signed = np.dtype(f"i{x.dtype.itemsize}")
    value = x.astype(signed)
    fill = np.where(value < 0, -1, 0).astype(signed)
    shifted = np.right_shift(value, amount.astype(signed))
    return np.where(outside, fill, shifted).astype(signed).astype(x.dtype)


def atan2(x: Array, y: Array) -> Array:
    return np.arctan2(x, y)


def compare(x: Array, y: Array, direction: str, type: str = "") -> Array:
    """`direction` is one of EQ NE LT LE GT GE; a NaN compares unequal unless `type` is TOTALORDER
    (-NaN < -inf < ... < -0 < 0 < ... < inf < NaN)."""
    if type == "TOTALORDER" and is_float(x):
        x, y = total_order(x), total_order(y)
    functions = {
        "EQ": np.equal,
        "NE": np.not_equal,
        "LT": np.less,
        "LE": np.less_equal,
        "GT": np.greater,
        "GE": np.greater_equal,
    }
    result: Array = functions[direction](x, y)
    return result


def total_order(x: Array) -> Array:
    """Integers whose order is the total order of the floats `x`."""
    signed = np.dtype(f"i{x.dtype.itemsize}")
    bits = np.asarray(x, order="C").view(signed)
    return np.where(bits < 0, bits ^ np.iinfo(signed).max, bits)


def select(predicate: Array, on_true: Array, on_false: Array) -> Array:
    return np.where(predicate, on_true, on_false)


def clamp(low: Array, x: Array, high: Array) -> Array:
    return np.minimum(np.maximum(x, low), high)


def convert(x: Array, target: np.dtype[Any]) -> Array:
    """Value conversion. Out-of-range floats follow x86's truncating conversion, as TensorFlow's
    CPU kernels do: INT_MIN for 32 and 64 bits, the low bits of the 32-bit result below that."""
    if target.kind == "b":
        return np.not_equal(x, 0)
    if target.kind in "iu" and x.dtype.kind not in "iub":
        return _truncate(x.astype(np.float64), target)
    if target.itemsize < 4 and target.kind not in "iu" and x.dtype == np.float64:
        return (x.astype(np.float32) if target.itemsize == 2 else _odd(x)).astype(target)
    return x.astype(target)


def _odd(x: Array) -> Array:
    """float64 as float32, what is dropped kept in the last bit: narrower types than 16 bits are
    rounded once by TensorFlow, and so they are by rounding this (Boldo and Melquiond 2008)."""
    nearest = x.astype(np.float32)
    wide = nearest.astype(np.float64)
    bits = nearest.view(np.uint32) - (np.abs(wide) > np.abs(x)).astype(np.uint32)
    return np.asarray(bits | (wide != x).astype(np.uint32)).view(np.float32)


def _truncate(x: Array, target: np.dtype[Any]) -> Array:
    if target == np.uint64:
        high = x >= 2.0**63
        low = _truncate(np.where(high, x - 2.0**63, x), np.dtype(np.int64)).astype(np.uint64)
        return np.where(high, low ^ np.uint64(2**63), low)
    wide = target.itemsize == 8 or target == np.uint32
    limit = 2.0**63 if wide else 2.0**31
    inside = (np.trunc(x) >= -limit) & (np.trunc(x) < limit)
    whole = np.where(inside, x, -limit).astype(np.int64)
    return whole.astype(np.int64 if wide else np.int32).astype(target)


def reduce_precision(x: Array, exponent_bits: int, mantissa_bits: int) -> Array:
    """Round to a narrower float kept in the same storage: overflow to inf, underflow to zero."""
    y = x.astype(np.float64)
    fraction, exponent = np.frexp(y)
    scaled = np.ldexp(np.rint(np.ldexp(fraction, mantissa_bits + 1)), exponent - mantissa_bits - 1)
    bias = 2 ** (exponent_bits - 1) - 1
    largest = np.ldexp(2.0 - 2.0**-mantissa_bits, bias)
    rounded = np.where(np.abs(scaled) > largest, np.copysign(np.inf, y), scaled)
    rounded = np.where(np.abs(rounded) < np.ldexp(1.0, 1 - bias), np.copysign(0.0, y), rounded)
    return np.where(np.isfinite(y), rounded, y).astype(x.dtype)


def flush(x: Array) -> Array:
    """Denormal floats become zeros of the same sign, as with FTZ and DAZ set."""
    if x.dtype.kind != "f" or x.dtype.itemsize < 4:
        return x
    tiny = np.abs(x) < np.finfo(x.dtype).tiny
    return np.where(tiny, np.copysign(np.zeros((), x.dtype), x), x) if tiny.any() else x
