"""The two precisions of evaluation, and how a computed value becomes one that may be stored."""

from __future__ import annotations

from enum import Enum

import numpy as np

from stitchcore.hlo.ir.numerics import Array, flush
from stitchcore.hlo.ir.shape import DTYPES

_F32_OVERFLOW = float(np.finfo(np.float32).max) * (1 + 2.0**-25)
"""From here on a float64 rounds to an f32 infinity."""


class Precision(Enum):
    STORAGE = "storage"
    FLOAT64 = "float64"

    @property
    def wide(self) -> bool:
        return self is Precision.FLOAT64


def is_float(dtype: str) -> bool:
    return dtype in DTYPES and DTYPES[dtype].kind == "float"


def widen(array: Array, dtype: str, precision: Precision) -> Array:
    """A stored value as this precision works with it between instructions."""
    return array.astype(np.float64) if precision.wide and is_float(dtype) else array


def working(array: Array) -> Array:
    """A value ready for arithmetic: narrow floats as float32, denormals flushed."""
    if array.dtype.itemsize < 4 and array.dtype.kind not in "iub":
        array = array.astype(np.float32)
    return flush(array)


def round_to_dtype(array: Array, dtype: str, precision: Precision) -> Array:
    """A result rounded to what `dtype` can hold: exactly in storage, by range in float64."""
    if not precision.wide or not is_float(dtype):
        return flush(array.astype(DTYPES[dtype].numpy, copy=False))
    return round_wide(array.astype(np.float64, copy=False), dtype)


def round_wide(array: Array, dtype: str) -> Array:
    """A float64 result with the range of `dtype`; narrow floats are rounded as well."""
    if dtype == "f32":
        big = np.abs(array) >= _F32_OVERFLOW
        small = np.abs(array) < np.finfo(np.float32).tiny
        if big.any():
            array = np.where(big, np.copysign(np.inf, array), array)
        return np.where(small, np.copysign(0.0, array), array) if small.any() else array
    if dtype == "f64":
        return flush(array)
    return array.astype(DTYPES[dtype].numpy).astype(np.float64)
