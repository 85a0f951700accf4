"""The opcode table: one record per HLO opcode, the only place that spells opcode names.

Every other part asks the record: import and printing (attributes), folding and oracle (`numpy`),
both renderings (`c`, `cuda`), cost (`flops`, `gpu`), tests (`domain`, `ulp`), the report (`kind`).
Parts that must single out an opcode use the name constants below, never a literal.

Attribute values (names as in HLO text; every extent may be a Dim):
  parameter number: int | constant value: literal.Literal, or ratio=(Dim, Dim): numerator over
  denominator | iota iota_dimension: int | broadcast, transpose, reduce, reverse, concatenate, sort,
  map, set/get-dimension-size dimensions: tuple[int, ...] | reduce, sort, scatter, map, call
  to_apply: Computation | slice slice: tuple of (start, limit, stride) | pad padding: tuple of
  (low, high, interior) | dynamic-slice dynamic_slice_sizes | get-tuple-element index: int |
  compare direction: str (type: TOTALORDER when floats are totally ordered) | dot, gather, scatter:
  dimension-number tuples under HLO's names | reduce-window, select-and-scatter, convolution
  window: tuple of attributes.WindowDim, one per dimension |
  while condition, body: Computation | conditional branch_computations: tuple[Computation, ...]
  (true, then false, when the predicate is pred) | rng distribution: str, unique: int |
  check message: str (at {} the integer that did not pass) | rng-bit-generator algorithm: str |
  batch-norm-* epsilon: float, feature_index: int.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stitchcore.hlo.ir import numerics
from stitchcore.hlo.ir.numerics import Array
from stitchcore.hlo.ir.opcode_record import (
    ANY,
    BITS,
    EXPENSIVE_FLOPS,
    FLOAT,
    INTEGER,
    NUMBER,
    SIGNED,
    Kind,
    Opcode,
    binary,
    elementwise,
    function_template,
    highest,
    infix,
    lowest,
    one,
    ones,
    plain,
    template_kind,
    templates,
    unary,
    zero,
)
from stitchcore.hlo.ir.precision import Precision, round_to_dtype, widen, working
from stitchcore.hlo.ir.shape import DTYPES

__all__ = ["EXPENSIVE_FLOPS", "OPCODES", "Kind", "Opcode"]

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
CHECK = "check"
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
SHIFT_RIGHT_ARITHMETIC = "shift-right-arithmetic"
SHIFTS = (SHIFT_LEFT, SHIFT_RIGHT_LOGICAL, SHIFT_RIGHT_ARITHMETIC)
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


def _copied(x: Array) -> Array:
    return x


_ELEMENTWISE = (
    unary(COPY, _copied, ANY, flops=0, c=templates("{0}", "{0}", "{0}")),
    unary(NEGATE, numerics.negate, NUMBER, c=templates("(-{0})", function_template("negate", 1))),
    unary(ABS, numerics.absolute, SIGNED),
    unary(SIGN, numerics.sign, SIGNED, flops=2, gpu=(0, 4, 0)),
    unary(NOT, numerics.logical_not, BITS, c=templates("", function_template("not", 1), "(!{0})")),
    unary("popcnt", numerics.population_count, INTEGER, flops=4),
    unary("count-leading-zeros", numerics.count_leading_zeros, INTEGER, flops=4),
    unary(FLOOR, np.floor, FLOAT, gpu=(0, 0, 1)),
    unary("ceil", np.ceil, FLOAT, gpu=(0, 0, 1)),
    unary("round-nearest-even", np.rint, FLOAT, gpu=(0, 0, 1)),
    unary("round-nearest-afz", numerics.round_nearest_afz, FLOAT, flops=3, gpu=(1, 2, 1)),
    unary(SQRT, np.sqrt, FLOAT, flops=4, ulp=0.5, domain=(0.0, 16.0), gpu=(4, 6, 1)),
    unary(RSQRT, numerics.rsqrt, FLOAT, flops=6, ulp=2.0, domain=(1e-3, 16.0), gpu=(7, 14, 2)),
    unary("cbrt", np.cbrt, FLOAT, flops=14, ulp=2.0, gpu=(7, 5, 3)),
    unary(EXPONENTIAL, np.exp, FLOAT, flops=9, ulp=2.0, gpu=(6, 3, 1)),
    unary("exponential-minus-one", np.expm1, FLOAT, flops=12, ulp=3.0, gpu=(16, 11, 2)),
    unary(LOG, np.log, FLOAT, flops=10, ulp=2.0, domain=(1e-3, 16.0), gpu=(15, 13, 0)),
    unary("log-plus-one", np.log1p, FLOAT, flops=12, ulp=3.0, domain=(-0.9, 16.0), gpu=(16, 15, 0)),
    unary(TANH, np.tanh, FLOAT, flops=14, ulp=3.0, gpu=(9, 6, 2)),
    unary(LOGISTIC, numerics.logistic, FLOAT, flops=14, ulp=4.0, gpu=(10, 11, 2)),
    unary(ERF, numerics.erf, FLOAT, flops=14, ulp=3.0, domain=(-4.0, 4.0), gpu=(9, 18, 1)),
    unary("sine", np.sin, FLOAT, flops=14, ulp=2.0, gpu=(12, 20, 1)),
    unary("cosine", np.cos, FLOAT, flops=14, ulp=2.0, gpu=(12, 20, 1)),
    unary("tan", np.tan, FLOAT, flops=18, ulp=4.0, domain=(-1.5, 1.5), gpu=(13, 20, 2)),
    unary(IS_FINITE, np.isfinite, FLOAT, c=templates("st_is_finite_{s}({0})"), gpu=(1, 2, 0)),
    unary(
        CONVERT,
        numerics.convert,
        ANY,
        c=templates(*["st_convert_{s}_{to}({0})"] * 3),
    ),
    unary(
        BITCAST_CONVERT,
        _copied,
        ANY,
        flops=0,
        c=templates(*["st_bitcast_{from}_{to}({0})"] * 3),
    ),
    unary(
        REDUCE_PRECISION,
        numerics.reduce_precision,
        FLOAT,
        flops=4,
        gpu=(0, 12, 0),
        c=templates(
            "st_convert_{t}_{to}(st_reduce_precision_{t}({0}, {exponent_bits}, {mantissa_bits}))"
        ),
        attributes=("exponent_bits", "mantissa_bits"),
    ),
    binary(ADD, numerics.add, ANY, c=infix("+", ADD, "({0} | {1})"), identity=zero, ulp=0.5),
    binary(SUBTRACT, numerics.subtract, NUMBER, c=infix("-", SUBTRACT), ulp=0.5),
    binary(
        MULTIPLY,
        numerics.multiply,
        ANY,
        c=infix("*", MULTIPLY, "({0} & {1})"),
        identity=one,
        ulp=0.5,
    ),
    binary(
        DIVIDE,
        numerics.divide,
        NUMBER,
        flops=4,
        gpu=(5, 7, 1),
        ulp=0.5,
        c=templates("({0} / {1})", function_template("divide", 2)),
    ),
    binary(REMAINDER, numerics.remainder, NUMBER, flops=12, gpu=(23, 43, 4)),
    binary(POWER, numerics.power, NUMBER, flops=24, ulp=4.0, domain=(0.1, 4.0), gpu=(44, 44, 5)),
    binary(MAXIMUM, numerics.maximum, ANY, identity=lowest, gpu=(0, 3, 0)),
    binary(MINIMUM, numerics.minimum, ANY, identity=highest, gpu=(0, 3, 0)),
    binary(AND, numerics.bit_and, BITS, c=templates("", *["({0} & {1})"] * 2), identity=ones),
    binary(OR, numerics.bit_or, BITS, c=templates("", *["({0} | {1})"] * 2), identity=zero),
    binary(XOR, numerics.bit_xor, BITS, c=templates("", *["({0} ^ {1})"] * 2), identity=zero),
    binary(SHIFT_LEFT, numerics.shift_left, INTEGER),
    binary(SHIFT_RIGHT_LOGICAL, numerics.shift_right_logical, INTEGER),
    binary(SHIFT_RIGHT_ARITHMETIC, numerics.shift_right_arithmetic, INTEGER),
    binary("atan2", numerics.atan2, FLOAT, flops=24, ulp=4.0, gpu=(20, 40, 2)),
    binary(
        COMPARE,
        numerics.compare,
        ANY,
        c=templates(*["({0} {op} {1})"] * 3),
        gpu=(0, 2, 0),
        attributes=("direction", "type"),
    ),
    elementwise(
        SELECT,
        numerics.select,
        ANY,
        arity=3,
        c=templates(*[function_template("select", 3)] * 3),
        gpu=(0, 1, 0),
    ),
    elementwise(CLAMP, numerics.clamp, NUMBER, arity=3, flops=2, gpu=(0, 6, 0)),
)


_OTHERS = (
    plain(PARAMETER, "structure", 0, "number"),
    plain(TUPLE, "structure", None),
    plain(GET_TUPLE_ELEMENT, "structure", 1, "index"),
    plain(OPTIMIZATION_BARRIER, "structure", 1),
    plain("after-all", "structure", None),
    plain("add-dependency", "structure", 2),
    plain("domain", "structure", 1, "domain"),
    plain(CONSTANT, "constant", 0, "value", "ratio"),
    plain(IOTA, "constant", 0, "iota_dimension"),
    plain(RESHAPE, "movement", 1),
    plain(BITCAST, "movement", 1),
    plain(BROADCAST, "movement", 1, "dimensions"),
    plain(TRANSPOSE, "movement", 1, "dimensions"),
    plain(SLICE, "movement", 1, "slice"),
    plain(PAD, "movement", 2, "padding"),
    plain(CONCATENATE, "movement", None, "dimensions"),
    plain(REVERSE, "movement", 1, "dimensions"),
    plain(CHECK, "check", 2, "message", flops=1),
    plain(REDUCE, "reduce", None, "dimensions", "to_apply", flops=1),
    plain(
        GATHER,
        "lookup",
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
    plain(
        SCATTER,
        "scatter",
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
        flops=1,
    ),
    plain(DYNAMIC_SLICE, "lookup", None, "dynamic_slice_sizes"),
    plain(DYNAMIC_UPDATE_SLICE, "update", None),
    plain(SORT, "indexed", None, "dimensions", "is_stable", "to_apply", flops=16),
    plain(TOPK, "indexed", 1, "k", "largest", flops=16),
    plain(REDUCE_WINDOW, "scan", None, "window", "to_apply", flops=4),
    plain(SELECT_AND_SCATTER, "indexed", 3, "window", "select", "scatter", flops=8),
    plain(
        DOT,
        "library",
        2,
        "lhs_batch_dims",
        "rhs_batch_dims",
        "lhs_contracting_dims",
        "rhs_contracting_dims",
        "operand_precision",
    ),
    plain(
        CONVOLUTION,
        "library",
        2,
        "window",
        "dim_labels",
        "feature_group_count",
        "batch_group_count",
        "operand_precision",
    ),
    plain(TRIANGULAR_SOLVE, "library", 2, "left_side", "lower", "unit_diagonal", "transpose_a"),
    plain(CHOLESKY, "library", 1, "lower"),
    plain(FFT, "library", 1, "fft_type", "fft_length"),
    plain(MAP, "composite", None, "dimensions", "to_apply"),
    plain(BATCH_NORM_TRAINING, "composite", 3, "epsilon", "feature_index"),
    plain(BATCH_NORM_INFERENCE, "composite", 5, "epsilon", "feature_index"),
    plain(BATCH_NORM_GRAD, "composite", 5, "epsilon", "feature_index"),
    plain(CALL, "control", None, "to_apply"),
    plain(FUSION, "control", None, "kind", "calls"),
    plain(WHILE, "control", 1, "condition", "body"),
    plain(CONDITIONAL, "control", None, "branch_computations"),
    plain(RNG, "random", None, "distribution", "unique"),
    plain(RNG_BIT_GENERATOR, "random", 1, "algorithm"),
    plain("rng-get-and-update-state", "random", 0, "delta", "unique"),
    plain(SET_DIMENSION_SIZE, "opaque", 2, "dimensions"),
    plain(GET_DIMENSION_SIZE, "opaque", 1, "dimensions"),
    plain("dynamic-reshape", "opaque", None),
    plain(
        CUSTOM_CALL, "opaque", None, "custom_call_target", "api_version", "backend_config", "unique"
    ),
    *(
        plain(name, "opaque", None, "text", "unique")
        for name in """
        infeed outfeed send send-done recv recv-done all-reduce all-gather all-to-all
        reduce-scatter collective-permute partition-id replica-id complex real imag
        stochastic-convert async-start async-update async-done
        """.split()
    ),
)

OPCODES: Mapping[str, Opcode] = {record.name: record for record in (*_ELEMENTWISE, *_OTHERS)}
"""Every opcode that may be imported. An opcode outside is refused as unknown."""

REDUCERS: frozenset[str] = frozenset(n for n, r in OPCODES.items() if r.identity is not None)
"""Opcodes a monoid reduction may apply."""

DECISIONS: frozenset[str] = frozenset(
    {COMPARE, SIGN, IS_FINITE, FLOOR, "ceil", "round-nearest-even", "round-nearest-afz"}
)
"""Opcodes whose result jumps where their float operand crosses a threshold."""

POINTWISE = frozenset({"elementwise", "check"})
"""Kinds whose result's element comes from the same element of each operand."""
STITCHABLE_KINDS: frozenset[str] = POINTWISE | {
    "movement",
    "lookup",
    "update",
    "scatter",
    "scan",
    "reduce",
    "constant",
}


def record(name: str) -> Opcode:
    """The record of opcode `name`. Raises KeyError for an opcode outside the table."""
    return OPCODES[name]


def c_template(name: str, dtype: str, cuda: bool = False) -> str:
    """The C (or CUDA) expression of an elementwise opcode for operands of `dtype`."""
    entry = OPCODES[name]
    kind = template_kind(dtype)
    return entry.cuda.get(kind, entry.c[kind]) if cuda else entry.c[kind]


def compute(
    name: str,
    operands: Sequence[Array],
    dtype: str,
    attributes: Mapping[str, Any] | None = None,
) -> Array:
    """Elementwise `name` on storage arrays, rounded to `dtype`, denormals flushed.

    Narrow floats are computed in float32 and rounded once. Shapes must broadcast.
    """
    target = DTYPES[dtype].numpy
    if name == BITCAST_CONVERT:
        return bitcast(operands[0], target)
    wide = [working(np.asarray(operand)) for operand in operands]
    with np.errstate(all="ignore"):
        if name == CONVERT:
            return numerics.flush(numerics.convert(wide[0], target))
        return round_to_dtype(_apply(name, wide, attributes or {}), dtype, Precision.STORAGE)


def compute_wide(
    name: str,
    operands: Sequence[Array],
    operand_dtypes: Sequence[str],
    dtype: str,
    attributes: Mapping[str, Any] | None = None,
) -> Array:
    """`compute` with every float held in float64 (hlo/ir/precision.py says what is still
    rounded)."""
    source, target = operand_dtypes[0], DTYPES[dtype].numpy
    if name == BITCAST_CONVERT:
        return widen(bitcast(operands[0].astype(DTYPES[source].numpy), target), dtype, _WIDE)
    with np.errstate(all="ignore"):
        if name == CONVERT and source != dtype:
            narrow = numerics.convert(operands[0], target)
            return widen(numerics.flush(narrow), dtype, _WIDE)
        if name == CONVERT:
            return operands[0]
        return round_to_dtype(_apply(name, operands, attributes or {}), dtype, _WIDE)


_WIDE = Precision.FLOAT64


def _apply(name: str, operands: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    entry = OPCODES[name]
    if entry.numpy is None:
        raise ValueError(f"{name} is not elementwise")
    extra = {key: attributes[key] for key in entry.attributes if key in attributes}
    return np.asarray(entry.numpy(*operands, **extra))


def bitcast(x: Array, target: np.dtype[Any]) -> Array:
    """The same bits as another type; the last dimension appears or goes when widths differ."""
    x = np.asarray(x, order="C")
    if x.dtype.itemsize == target.itemsize:
        return x.view(target)
    if x.dtype.itemsize > target.itemsize:
        return np.asarray(x[..., None], order="C").view(target)
    return x.view(target)[..., 0]
