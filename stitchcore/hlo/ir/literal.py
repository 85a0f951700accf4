"""Constants as hashable values, and their text.

Equality is by bits, so 0.0 and -0.0 differ and a NaN equals itself: folding and interning must not
confuse values that compare equal but compute differently.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from stitchcore.hlo.ir.numerics import Array
from stitchcore.hlo.ir.shape import DTYPES, Shape


@dataclass(frozen=True)
class Literal:
    """A dense array: HLO element type, static dims, little-endian row-major bytes."""

    dtype: str
    dims: tuple[int, ...]
    data: bytes

    @property
    def array(self) -> Array:
        """A read-only view of the value."""
        return np.frombuffer(self.data, DTYPES[self.dtype].numpy).reshape(self.dims)

    @property
    def scalar(self) -> bool | int | float:
        """The value of a rank-0 literal as a Python number."""
        value: bool | int | float = self.array[()].item()
        return value

    def __repr__(self) -> str:
        text = format_literal(self)
        return f"Literal({self.dtype}, {text if len(text) < 40 else text[:36] + '...}'})"


def from_array(array: Array, dtype: str) -> Literal:
    """The literal of `array`, whose numpy type must already be `dtype`'s."""
    array = np.asarray(array)
    if array.dtype != DTYPES[dtype].numpy:
        raise ValueError(f"array of {array.dtype} is not {dtype}")
    return Literal(dtype, array.shape, array.tobytes())


def scalar(value: bool | int | float, dtype: str) -> Literal:
    """A rank-0 literal; an integer out of range raises OverflowError."""
    return from_array(np.asarray(value, DTYPES[dtype].numpy), dtype)


_PAYLOAD = re.compile(r"\(0x[0-9a-f]+\)")
_BRACES = str.maketrans("{}", "  ")


def parse_literal(text: str, shape: Shape) -> Literal:
    """The literal written as `text` in an HLO constant. Raises ValueError when it is not one."""
    target = DTYPES[shape.dtype].numpy
    if not text.lstrip().startswith("{"):
        return scalar(_number(text.strip(), shape.dtype), shape.dtype)
    if "nan(" in text:
        text = _PAYLOAD.sub("", text)
    if "false" in text or "true" in text:
        text = text.replace("true", "1").replace("false", "0")
    kind = DTYPES[shape.dtype].kind
    working: Any = {"float": np.float64, "unsigned": np.uint64}.get(kind, np.int64)
    flat = text.translate(_BRACES)
    values = np.fromstring(flat, working, sep=",") if flat.strip() else np.empty(0, working)
    if values.size != flat.count(",") + bool(flat.strip()):
        raise ValueError("malformed array constant")
    if DTYPES[shape.dtype].narrow:
        values = values.astype(np.float32)
    with np.errstate(over="ignore"):
        array = values.astype(target)
    dims = tuple(int(d) for d in shape.dims if isinstance(d, int))
    return Literal(shape.dtype, dims, array.reshape(dims).tobytes())


def _number(text: str, dtype: str) -> bool | int | float:
    kind = DTYPES[dtype].kind
    if kind == "pred":
        return {"true": True, "false": False, "1": True, "0": False}[text]
    if kind == "float":
        return float(_PAYLOAD.sub("", text))
    return int(text)


def format_literal(literal: Literal) -> str:
    """HLO text of the value that reads back to the same bits (NaN payloads aside)."""
    array = literal.array
    if array.ndim == 0:
        return _format_number(array[()].item(), literal.dtype)
    if array.size == 0:
        return "{" + ", ".join("{}" for _ in range(array.shape[0] if array.ndim > 1 else 0)) + "}"
    flat = [_format_number(v, literal.dtype) for v in array.reshape(-1).tolist()]
    for extent in reversed(array.shape):
        flat = ["{" + ", ".join(flat[i : i + extent]) + "}" for i in range(0, len(flat), extent)]
    return flat[0]


def _format_number(value: bool | int | float, dtype: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if value != value:
        return "nan"
    if value in (np.inf, -np.inf):
        return "inf" if value > 0 else "-inf"
    if value == 0 and np.signbit(value):
        return "-0.0"  # XLA's parser reads "-0" as an integer and loses the sign
    digits = {"f64": 17, "f32": 9}.get(dtype, 6)
    short = f"{value:.{digits - 3}g}"
    target = DTYPES[dtype].numpy
    if np.asarray(float(short), target) == np.asarray(value, target):
        return short
    return f"{value:.{digits}g}"
