"""The opcode table: one record per HLO opcode, the only place that spells opcode names.

Every other part asks the record: import and printing (attributes), folding and oracle (`numpy`),
both renderings (`c`, `cuda`), cost (`flops`), tests (`domain`, `ulp`), the report (`kind`). Parts
that must single out an opcode use the name constants below, never a literal.

Attribute values (names as in HLO text; every extent may be a Dim):
  parameter number: int | constant value: literal.Literal, or ratio=(Dim, Dim): numerator over
  denominator | iota iota_dimension: int | broadcast, transpose, reduce, reverse, concatenate, sort,
  map, set/get-dimension-size dimensions: tuple[int, ...] | reduce, sort, scatter, map, call
  to_apply: Computation | slice slice: tuple of (start, limit, stride) | pad padding: tuple of
  (low, high, interior) | dynamic-slice dynamic_slice_sizes | get-tuple-element index: int |
  compare direction: str (type: TOTALORDER when floats are totally ordered) | dot, gather, scatter: dimension-number tuples under HLO's names |
  reduce-window, select-and-scatter, convolution window: tuple of attributes.WindowDim per dimension |
  while condition, body: Computation | conditional branch_computations: tuple[Computation, ...]
  (true, then false, when the predicate is pred) | rng distribution: str, unique: int |
  rng-bit-generator algorithm: str | batch-norm-* epsilon: float, feature_index: int.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from stitchcore.hlo import numerics
from stitchcore.hlo.numerics import Array
from stitchcore.hlo.precision import Precision, settle, widen, working
from stitchcore.hlo.shape import DTYPES

Kind = Literal[
    "elementwise",  # one output element from the same element of each operand
    "reduce",
    "movement",  # elements only move; index maps say where
    "constant",
    "indexed",  # movement decided by data: gather, scatter, sort, dynamic slices, windows
    "library",
    "control",
    "random",
    "composite",  # expand.py writes it with other opcodes
    "structure",  # parameter, tuple and their like: no work of their own
    "opaque",  # stays outside kernels
]

EXPENSIVE_FLOPS = 6
"""From this many flops an element a value is worth keeping instead of computing again."""


@dataclass(frozen=True)
class Opcode:
    """What the compiler knows of one opcode.

    `arity` None means any number. `numpy` is the meaning on working-type arrays (numerics.py);
    attributes named in `attributes` are passed by keyword when the opcode is elementwise. `c` maps
    a dtype kind ("float", "integer", "pred") to a C expression over {0}, {1}, ..., {t} (the type the
    result is computed in: f32 for bf16 and f16), {s} (likewise of the last operand), {from} and {to}
    (their storage types) and {op} (compare's operator); `cuda` only holds what differs. `flops` is work per output element (for a reduce: set by its reducer). `identity` gives
    the neutral element as a Python number for a dtype name when the opcode can reduce. `ulp` is the
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

    @property
    def expensive(self) -> bool:
        return self.flops >= EXPENSIVE_FLOPS

    @property
    def commutative(self) -> bool:
        """Every opcode that can reduce is commutative in this table, and no other matters."""
        return self.identity is not None


# Names that other parts single out.
PARAMETER = "parameter"
CONSTANT = "constant"
IOTA = "iota"
TUPLE = "tuple"
GET_TUPLE_ELEMENT = "get-tuple-element"
COPY = "copy"
RESHAPE = "reshape"
BITCAST = "bitcast"
BROADCAST = "broadcast"
TRANSPOSE = "transpose"
SLICE = "slice"
PAD = "pad"
CONCATENATE = "concatenate"
REVERSE = "reverse"
REDUCE = "reduce"
CONVERT = "convert"
BITCAST_CONVERT = "bitcast-convert"
REDUCE_PRECISION = "reduce-precision"
COMPARE = "compare"
SELECT = "select"
CLAMP = "clamp"
ADD = "add"
SUBTRACT = "subtract"
MULTIPLY = "multiply"
DIVIDE = "divide"
REMAINDER = "remainder"
POWER = "power"
MAXIMUM = "maximum"
MINIMUM = "minimum"
AND = "and"
OR = "or"
XOR = "xor"
NOT = "not"
NEGATE = "negate"
ABS = "abs"
SIGN = "sign"
SQRT = "sqrt"
RSQRT = "rsqrt"
EXPONENTIAL = "exponential"
LOG = "log"
TANH = "tanh"
LOGISTIC = "logistic"
ERF = "erf"
FLOOR = "floor"
IS_FINITE = "is-finite"
SHIFT_LEFT = "shift-left"
SHIFT_RIGHT_LOGICAL = "shift-right-logical"
DOT = "dot"
CONVOLUTION = "convolution"
GATHER = "gather"
SCATTER = "scatter"
DYNAMIC_SLICE = "dynamic-slice"
DYNAMIC_UPDATE_SLICE = "dynamic-update-slice"
SORT = "sort"
MAP = "map"
REDUCE_WINDOW = "reduce-window"
SELECT_AND_SCATTER = "select-and-scatter"
CALL = "call"
FUSION = "fusion"
WHILE = "while"
CONDITIONAL = "conditional"
RNG = "rng"
RNG_BIT_GENERATOR = "rng-bit-generator"
BATCH_NORM_TRAINING = "batch-norm-training"
BATCH_NORM_INFERENCE = "batch-norm-inference"
BATCH_NORM_GRAD = "batch-norm-grad"
SET_DIMENSION_SIZE = "set-dimension-size"
GET_DIMENSION_SIZE = "get-dimension-size"
OPTIMIZATION_BARRIER = "opt-barrier"
CUSTOM_CALL = "custom-call"
TRIANGULAR_SOLVE = "triangular-solve"
CHOLESKY = "cholesky"
FFT = "fft"
TOPK = "topk"

COMPARE_OPERATORS: Mapping[str, str] = {
    "EQ": "==",
    "NE": "!=",
    "LT": "<",
    "LE": "<=",
    "GT": ">",
    "GE": ">=",
}

_FLOAT = frozenset(n for n, d in DTYPES.items() if d.kind == "float")
_INTEGER = frozenset(n for n, d in DTYPES.items() if d.kind in ("signed", "unsigned"))
_PRED = frozenset({"pred"})
_SIGNED = frozenset(n for n, d in DTYPES.items() if d.kind in ("float", "signed"))
_NUMBER = _FLOAT | _INTEGER
_BITS = _INTEGER | _PRED
_ANY = _NUMBER | _PRED


def _templates(float_: str = "", integer: str = "", pred: str = "") -> dict[str, str]:
    pairs = (("float", float_), ("integer", integer), ("pred", pred))
    return {kind: text for kind, text in pairs if text}


def _function(name: str, arity: int) -> str:
    return f"st_{name}_{{t}}(" + ", ".join(f"{{{i}}}" for i in range(arity)) + ")"


def _elementwise(
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
) -> Opcode:
    if c is None:
        text = _function(name.replace("-", "_"), arity)
        kinds = {_kind(dtype) for dtype in dtypes}
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
    )


def _kind(dtype: str) -> str:
    kind = DTYPES[dtype].kind
    return "integer" if kind in ("signed", "unsigned") else kind


def _lowest(dtype: str) -> bool | int | float:
    kind = DTYPES[dtype].kind
    if kind == "pred":
        return False
    return -np.inf if kind == "float" else int(np.iinfo(DTYPES[dtype].numpy).min)


def _highest(dtype: str) -> bool | int | float:
    kind = DTYPES[dtype].kind
    if kind == "pred":
        return True
    return np.inf if kind == "float" else int(np.iinfo(DTYPES[dtype].numpy).max)


def _zero(dtype: str) -> bool | int | float:
    return {"pred": False, "float": 0.0}.get(DTYPES[dtype].kind, 0)


def _one(dtype: str) -> bool | int | float:
    return {"pred": True, "float": 1.0}.get(DTYPES[dtype].kind, 1)


def _ones(dtype: str) -> bool | int | float:
    return True if dtype == "pred" else int(np.invert(np.zeros((), DTYPES[dtype].numpy)))


def _unary(name: str, numpy: Callable[..., Array], dtypes: frozenset[str], **rest: Any) -> Opcode:
    return _elementwise(name, numpy, dtypes, arity=1, **rest)


def _binary(name: str, numpy: Callable[..., Array], dtypes: frozenset[str], **rest: Any) -> Opcode:
    return _elementwise(name, numpy, dtypes, arity=2, **rest)


def _infix(operator: str, name: str, pred: str = "") -> dict[str, str]:
    """Floats: the operator. Integers: a helper, as C's overflow and promotion rules are not HLO's."""
    return _templates(f"({{0}} {operator} {{1}})", _function(name, 2), pred)


def _copied(x: Array) -> Array:
    return x


_ELEMENTWISE = (
    _unary(COPY, _copied, _ANY, flops=0, c=_templates("{0}", "{0}", "{0}")),
    _unary(NEGATE, numerics.negate, _NUMBER, c=_templates("(-{0})", _function("negate", 1))),
    _unary(ABS, numerics.absolute, _NUMBER),
    _unary(SIGN, numerics.sign, _SIGNED, flops=2),
    _unary(NOT, numerics.logical_not, _BITS, c=_templates("", _function("not", 1), "(!{0})")),
    _unary("popcnt", numerics.population_count, _INTEGER, flops=4),
    _unary("count-leading-zeros", numerics.count_leading_zeros, _INTEGER, flops=4),
    _unary(FLOOR, np.floor, _FLOAT),
    _unary("ceil", np.ceil, _FLOAT),
    _unary("round-nearest-even", np.rint, _FLOAT),
    _unary("round-nearest-afz", numerics.round_nearest_afz, _FLOAT, flops=3),
    _unary(SQRT, np.sqrt, _FLOAT, flops=4, ulp=0.5, domain=(0.0, 16.0)),
    _unary(RSQRT, numerics.rsqrt, _FLOAT, flops=6, ulp=2.0, domain=(1e-3, 16.0)),
    _unary("cbrt", np.cbrt, _FLOAT, flops=14, ulp=2.0),
    _unary(EXPONENTIAL, np.exp, _FLOAT, flops=9, ulp=2.0),
    _unary("exponential-minus-one", np.expm1, _FLOAT, flops=12, ulp=3.0),
    _unary(LOG, np.log, _FLOAT, flops=10, ulp=2.0, domain=(1e-3, 16.0)),
    _unary("log-plus-one", np.log1p, _FLOAT, flops=12, ulp=3.0, domain=(-0.9, 16.0)),
    _unary(TANH, np.tanh, _FLOAT, flops=14, ulp=3.0),
    _unary(LOGISTIC, numerics.logistic, _FLOAT, flops=14, ulp=4.0),
    _unary(ERF, numerics.erf, _FLOAT, flops=14, ulp=3.0, domain=(-4.0, 4.0)),
    _unary("sine", np.sin, _FLOAT, flops=14, ulp=2.0),
    _unary("cosine", np.cos, _FLOAT, flops=14, ulp=2.0),
    _unary("tan", np.tan, _FLOAT, flops=18, ulp=4.0, domain=(-1.5, 1.5)),
    _unary(IS_FINITE, np.isfinite, _FLOAT, c=_templates("st_is_finite_{s}({0})")),
    _unary(
        CONVERT,
        numerics.convert,
        _ANY,
        c=_templates(*["st_convert_{s}_{to}({0})"] * 3),
    ),
    _unary(
        BITCAST_CONVERT,
        _copied,
        _ANY,
        flops=0,
        c=_templates(*["st_bitcast_{from}_{to}({0})"] * 3),
    ),
    _unary(
        REDUCE_PRECISION,
        numerics.reduce_precision,
        _FLOAT,
        flops=4,
        c=_templates("st_reduce_precision_{t}({0}, {exponent_bits}, {mantissa_bits})"),
        attributes=("exponent_bits", "mantissa_bits"),
    ),
    _binary(ADD, numerics.add, _ANY, c=_infix("+", ADD, "({0} | {1})"), identity=_zero, ulp=0.5),
    _binary(SUBTRACT, numerics.subtract, _NUMBER, c=_infix("-", SUBTRACT), ulp=0.5),
    _binary(
        MULTIPLY, numerics.multiply, _ANY, c=_infix("*", MULTIPLY, "({0} & {1})"), identity=_one, ulp=0.5
    ),
    _binary(
        DIVIDE,
        numerics.divide,
        _NUMBER,
        flops=4,
        ulp=0.5,
        c=_templates("({0} / {1})", _function("divide", 2)),
    ),
    _binary(REMAINDER, numerics.remainder, _NUMBER, flops=12),
    _binary(POWER, numerics.power, _NUMBER, flops=24, ulp=4.0, domain=(0.1, 4.0)),
    _binary(MAXIMUM, numerics.maximum, _ANY, identity=_lowest),
    _binary(MINIMUM, numerics.minimum, _ANY, identity=_highest),
    _binary(AND, numerics.bit_and, _BITS, c=_templates("", *["({0} & {1})"] * 2), identity=_ones),
    _binary(OR, numerics.bit_or, _BITS, c=_templates("", *["({0} | {1})"] * 2), identity=_zero),
    _binary(XOR, numerics.bit_xor, _BITS, c=_templates("", *["({0} ^ {1})"] * 2), identity=_zero),
    _binary(SHIFT_LEFT, numerics.shift_left, _INTEGER),
    _binary(SHIFT_RIGHT_LOGICAL, numerics.shift_right_logical, _INTEGER),
    _binary("shift-right-arithmetic", numerics.shift_right_arithmetic, _INTEGER),
    _binary("atan2", numerics.atan2, _FLOAT, flops=24, ulp=4.0),
    _binary(
        COMPARE,
        numerics.compare,
        _ANY,
        c=_templates(*["({0} {op} {1})"] * 3),
        attributes=("direction", "type"),
    ),
    _elementwise(
        SELECT,
        numerics.select,
        _ANY,
        arity=3,
        c=_templates(*[_function("select", 3)] * 3),
    ),
    _elementwise(CLAMP, numerics.clamp, _NUMBER, arity=3, flops=2),
)


def _plain(name: str, kind: Kind, arity: int | None, *attributes: str, flops: int = 0) -> Opcode:
    domain = (-8.0, 8.0)
    return Opcode(
        name, kind, arity, attributes, flops, 0.0, domain, None, {}, {}, None, frozenset(DTYPES)
    )


_OTHERS = (
    _plain(PARAMETER, "structure", 0, "number"),
    _plain(TUPLE, "structure", None),
    _plain(GET_TUPLE_ELEMENT, "structure", 1, "index"),
    _plain(OPTIMIZATION_BARRIER, "structure", 1),
    _plain("after-all", "structure", None),
    _plain("add-dependency", "structure", 2),
    _plain("domain", "structure", 1, "domain"),
    _plain(CONSTANT, "constant", 0, "value", "ratio"),
    _plain(IOTA, "constant", 0, "iota_dimension"),
    _plain(RESHAPE, "movement", 1),
    _plain(BITCAST, "movement", 1),
    _plain(BROADCAST, "movement", 1, "dimensions"),
    _plain(TRANSPOSE, "movement", 1, "dimensions"),
    _plain(SLICE, "movement", 1, "slice"),
    _plain(PAD, "movement", 2, "padding"),
    _plain(CONCATENATE, "movement", None, "dimensions"),
    _plain(REVERSE, "movement", 1, "dimensions"),
    _plain(REDUCE, "reduce", None, "dimensions", "to_apply", flops=1),
    _plain(
        GATHER,
        "indexed",
        2,
        "offset_dims",
        "collapsed_slice_dims",
        "start_index_map",
        "operand_batching_dims",
        "start_indices_batching_dims",
        "index_vector_dim",
        "slice_sizes",
        "indices_are_sorted",
    ),
    _plain(
        SCATTER,
        "indexed",
        None,
        "update_window_dims",
        "inserted_window_dims",
        "scatter_dims_to_operand_dims",
        "input_batching_dims",
        "scatter_indices_batching_dims",
        "index_vector_dim",
        "indices_are_sorted",
        "unique_indices",
        "to_apply",
    ),
    _plain(DYNAMIC_SLICE, "indexed", None, "dynamic_slice_sizes"),
    _plain(DYNAMIC_UPDATE_SLICE, "indexed", None),
    _plain(SORT, "indexed", None, "dimensions", "is_stable", "to_apply", flops=16),
    _plain(TOPK, "indexed", 1, "k", "largest", flops=16),
    _plain(REDUCE_WINDOW, "indexed", None, "window", "to_apply", flops=4),
    _plain(SELECT_AND_SCATTER, "indexed", 3, "window", "select", "scatter", flops=8),
    _plain(
        DOT,
        "library",
        2,
        "lhs_batch_dims",
        "rhs_batch_dims",
        "lhs_contracting_dims",
        "rhs_contracting_dims",
        "operand_precision",
    ),
    _plain(
        CONVOLUTION,
        "library",
        2,
        "window",
        "dim_labels",
        "feature_group_count",
        "batch_group_count",
        "operand_precision",
    ),
    _plain(TRIANGULAR_SOLVE, "library", 2, "left_side", "lower", "unit_diagonal", "transpose_a"),
    _plain(CHOLESKY, "library", 1, "lower"),
    _plain(FFT, "library", 1, "fft_type", "fft_length"),
    _plain(MAP, "composite", None, "dimensions", "to_apply"),
    _plain(BATCH_NORM_TRAINING, "composite", 3, "epsilon", "feature_index"),
    _plain(BATCH_NORM_INFERENCE, "composite", 5, "epsilon", "feature_index"),
    _plain(BATCH_NORM_GRAD, "composite", 5, "epsilon", "feature_index"),
    _plain(CALL, "control", None, "to_apply"),
    _plain(FUSION, "control", None, "kind", "calls"),
    _plain(WHILE, "control", 1, "condition", "body"),
    _plain(CONDITIONAL, "control", None, "branch_computations"),
    _plain(RNG, "random", None, "distribution", "unique"),
    _plain(RNG_BIT_GENERATOR, "random", 1, "algorithm"),
    _plain("rng-get-and-update-state", "random", 0, "delta", "unique"),
    _plain(SET_DIMENSION_SIZE, "opaque", 2, "dimensions"),
    _plain(GET_DIMENSION_SIZE, "opaque", 1, "dimensions"),
    _plain("dynamic-reshape", "opaque", None),
    _plain(
        CUSTOM_CALL, "opaque", None, "custom_call_target", "api_version", "backend_config", "unique"
    ),
    *(
        _plain(name, "opaque", None, "text", "unique")
        for name in (
            "infeed outfeed send send-done recv recv-done all-reduce all-gather all-to-all"
            " reduce-scatter collective-permute partition-id replica-id complex real imag"
            " stochastic-convert async-start async-update async-done"
        ).split()
    ),
)

OPCODES: Mapping[str, Opcode] = {record.name: record for record in (*_ELEMENTWISE, *_OTHERS)}
"""Every opcode that may be imported. An opcode outside is refused as unknown."""

REDUCERS: frozenset[str] = frozenset(n for n, r in OPCODES.items() if r.identity is not None)
"""Opcodes a monoid reduction may apply."""

STITCHABLE_KINDS: frozenset[str] = frozenset({"elementwise", "movement", "reduce", "constant"})


def record(name: str) -> Opcode:
    """The record of opcode `name`. Raises KeyError for an opcode outside the table."""
    return OPCODES[name]


def c_template(name: str, dtype: str, cuda: bool = False) -> str:
    """The C (or CUDA) expression of an elementwise opcode for operands of `dtype`."""
    found = OPCODES[name]
    kind = _kind(dtype)
    return found.cuda.get(kind, found.c[kind]) if cuda else found.c[kind]


def compute(
    name: str,
    operands: Sequence[Array],
    dtype: str,
    attributes: Mapping[str, Any] | None = None,
) -> Array:
    """Elementwise `name` on storage arrays, rounded to `dtype`, denormals flushed.

    bf16 and f16 operands are computed in float32 and rounded once. Shapes must broadcast.
    """
    target = DTYPES[dtype].numpy
    if name == BITCAST_CONVERT:
        return bitcast(operands[0], target)
    wide = [working(np.asarray(operand)) for operand in operands]
    with np.errstate(all="ignore"):
        if name == CONVERT:
            return numerics.flush(numerics.convert(wide[0], target))
        return settle(_apply(name, wide, attributes or {}), dtype, Precision.STORAGE)


def compute_wide(
    name: str,
    operands: Sequence[Array],
    operand_dtypes: Sequence[str],
    dtype: str,
    attributes: Mapping[str, Any] | None = None,
) -> Array:
    """`compute` with every float held in float64 (precision.py says what is still rounded)."""
    source, target = operand_dtypes[0], DTYPES[dtype].numpy
    if name == BITCAST_CONVERT:
        return widen(bitcast(operands[0].astype(DTYPES[source].numpy), target), dtype, _WIDE)
    with np.errstate(all="ignore"):
        if name == CONVERT and source != dtype:
            narrow = numerics.convert(operands[0], target)
            return widen(numerics.flush(narrow), dtype, _WIDE)
        if name == CONVERT:
            return operands[0]
        return settle(_apply(name, operands, attributes or {}), dtype, _WIDE)


_WIDE = Precision.FLOAT64


def _apply(name: str, operands: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    found = OPCODES[name]
    if found.numpy is None:
        raise ValueError(f"{name} is not elementwise")
    extra = {key: attributes[key] for key in found.attributes if key in attributes}
    return np.asarray(found.numpy(*operands, **extra))


def bitcast(x: Array, target: np.dtype[Any]) -> Array:
    """The same bits as another type; the last dimension appears or goes when widths differ."""
    x = np.asarray(x, order="C")
    if x.dtype.itemsize == target.itemsize:
        return x.view(target)
    if x.dtype.itemsize > target.itemsize:
        return np.asarray(x[..., None], order="C").view(target)
    return x.view(target)[..., 0]
