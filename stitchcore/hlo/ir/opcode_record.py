"""What one opcode's record holds, and the constructors the table (opcodes.py) is written with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np

from stitchcore.hlo.ir.numerics import Array
from stitchcore.hlo.ir.shape import DTYPES

Kind = Literal[
    "elementwise",  # one output element from the same element of each operand
    "check",  # the first operand's element; an error where the second operand's is false
    "reduce",
    "movement",  # elements only move; index maps say where
    "constant",
    "lookup",  # elements of the first operand, from places that the others say
    "update",  # the first operand's elements, but in a window the second's; the others say where
    "scatter",  # the first operand's rows, combined with those of the third that the second names
    "scan",  # windows that each reach from an end of their axis; other windows are refused
    "indexed",  # movement decided by data otherwise: sort, the gradient of windows
    "library",
    "control",
    "random",
    "composite",  # hlo/transforms/expand.py writes it with other opcodes
    "structure",  # parameter, tuple and their like: no work of their own
    "opaque",  # stays outside kernels
]

EXPENSIVE_FLOPS = 6
"""From this many flops an element a value is worth keeping instead of computing again."""


@dataclass(frozen=True)
class Opcode:
    """What the compiler knows of one opcode.

    `arity` None means any number. `numpy` is the meaning on working-type arrays (numerics.py);
    `attributes` are passed to it by keyword (use `opcodes.compute`, which also rounds). `c` maps a
    dtype kind ("float", "integer", "pred") to a C expression over {0}, {1}, ..., {t} (the type the
    result is computed in: f32 for narrow floats), {s} (likewise of the last operand), {from} and
    {to} (their storage types) and {op} (compare's operator); `cuda` only holds what differs.
    `flops` is work per output element (a reduce: per input element, set by its reducer), `gpu` the
    instructions of a GPU for one of f32: float32, integer (with moves, comparisons and branches),
    special functions, as NVRTC 12.9 makes them for sm_90 on the way that ordinary values take.
    `identity` gives the neutral element for a dtype name when the opcode can reduce. `ulp` is the
    tolerance against a correctly rounded result; `domain` the ordinary float range of tests.
    """

    name: str
    kind: Kind
    arity: int | None
    attributes: tuple[str, ...]
    flops: int
    ulp: float
    domain: tuple[float, float]
    numpy: Callable[..., Array] | None
    c: Mapping[str, str]
    cuda: Mapping[str, str]
    identity: Callable[[str], bool | int | float] | None
    dtypes: frozenset[str]
    gpu: tuple[int, int, int]

    @property
    def expensive(self) -> bool:
        return self.flops >= EXPENSIVE_FLOPS

    @property
    def commutative(self) -> bool:
        """Every opcode that can reduce is commutative in this table, and no other matters."""
        return self.identity is not None


FLOAT = frozenset(n for n, d in DTYPES.items() if d.kind == "float")
INTEGER = frozenset(n for n, d in DTYPES.items() if d.kind in ("signed", "unsigned"))
PRED = frozenset({"pred"})
SIGNED = frozenset(n for n, d in DTYPES.items() if d.kind in ("float", "signed"))
NUMBER = FLOAT | INTEGER
BITS = INTEGER | PRED
ANY = NUMBER | PRED


def templates(float_: str = "", integer: str = "", pred: str = "") -> dict[str, str]:
    pairs = (("float", float_), ("integer", integer), ("pred", pred))
    return {kind: text for kind, text in pairs if text}


def function_template(name: str, arity: int) -> str:
    return f"st_{name}_{{t}}(" + ", ".join(f"{{{i}}}" for i in range(arity)) + ")"


def elementwise(
    name: str,
    numpy: Callable[..., Array],
    dtypes: frozenset[str],
    *,
    arity: int,
    flops: int = 1,
    ulp: float = 0.0,
    domain: tuple[float, float] = (-8.0, 8.0),
    c: Mapping[str, str] | None = None,
    cuda: Mapping[str, str] | None = None,
    identity: Callable[[str], bool | int | float] | None = None,
    attributes: tuple[str, ...] = (),
    gpu: tuple[int, int, int] | None = None,
) -> Opcode:
    if c is None:
        text = function_template(name.replace("-", "_"), arity)
        kinds = {template_kind(dtype) for dtype in dtypes}
        c = {kind: text for kind in ("float", "integer", "pred") if kind in kinds}
    return Opcode(
        name,
        "elementwise",
        arity,
        attributes,
        flops,
        ulp,
        domain,
        numpy,
        c,
        cuda or {},
        identity,
        dtypes,
        gpu or (flops, 0, 0),
    )


def template_kind(dtype: str) -> str:
    kind = DTYPES[dtype].kind
    return "integer" if kind in ("signed", "unsigned") else kind


def lowest(dtype: str) -> bool | int | float:
    kind = DTYPES[dtype].kind
    if kind == "pred":
        return False
    return -highest(dtype) if kind == "float" else int(np.iinfo(DTYPES[dtype].numpy).min)


def highest(dtype: str) -> bool | int | float:
    kind = DTYPES[dtype].kind
    if kind == "pred":
        return True
    if kind == "float":  # f8e4m3fn has no infinity
        limits = ml_dtypes.finfo(DTYPES[dtype].numpy)  # type: ignore[no-untyped-call]
        return np.inf if np.isinf(limits.dtype.type(np.inf)) else float(limits.max)
    return int(np.iinfo(DTYPES[dtype].numpy).max)


def zero(dtype: str) -> bool | int | float:
    return {"pred": False, "float": 0.0}.get(DTYPES[dtype].kind, 0)


def one(dtype: str) -> bool | int | float:
    return {"pred": True, "float": 1.0}.get(DTYPES[dtype].kind, 1)


def ones(dtype: str) -> bool | int | float:
    return True if dtype == "pred" else int(np.invert(np.zeros((), DTYPES[dtype].numpy)))


def unary(name: str, numpy: Callable[..., Array], dtypes: frozenset[str], **rest: Any) -> Opcode:
    return elementwise(name, numpy, dtypes, arity=1, **rest)


def binary(name: str, numpy: Callable[..., Array], dtypes: frozenset[str], **rest: Any) -> Opcode:
    return elementwise(name, numpy, dtypes, arity=2, **rest)


def infix(operator: str, name: str, pred: str = "") -> dict[str, str]:
    """Floats: the operator. Integers: a helper, as C's overflow rules are not HLO's."""
    return templates(f"({{0}} {operator} {{1}})", function_template(name, 2), pred)


def plain(name: str, kind: Kind, arity: int | None, *attributes: str, flops: int = 0) -> Opcode:
    domain = (-8.0, 8.0)
    every, gpu = frozenset(DTYPES), (flops, 0, 0)
    return Opcode(name, kind, arity, attributes, flops, 0.0, domain, None, {}, {}, None, every, gpu)
