"""The opcode table: complete records, one place for names, and meanings at the edges."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stitchcore
from stitchcore.hlo.ir import attributes, numerics
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.shape import DTYPES

PACKAGE = Path(stitchcore.__file__).parent
ELEMENTWISE = [record for record in op.OPCODES.values() if record.kind == "elementwise"]


def test_records_are_complete() -> None:
    for record in op.OPCODES.values():
        assert_complete(record)


def assert_complete(record: op.Opcode) -> None:
    assert record.dtypes and record.dtypes <= set(DTYPES)
    assert record.flops >= 0 and record.ulp >= 0 and record.domain[0] < record.domain[1]
    special = {"number", "value", "ratio", "unique", "text", "message", "branch_computations"}
    for name in record.attributes:
        assert name in attributes.CODECS or name in attributes.COMPUTATIONS | special
    if record.kind == "elementwise":
        assert record.numpy is not None and record.arity in (1, 2, 3)
        kinds = {"integer" if DTYPES[d].kind[-6:] == "signed" else DTYPES[d].kind
                 for d in record.dtypes}  # fmt: skip
        assert kinds <= set(record.c), "a C template for every kind of dtype"


@pytest.mark.parametrize("name", sorted(op.REDUCERS))
def test_identity_is_neutral(name: str) -> None:
    record = op.record(name)
    assert record.identity is not None
    for dtype in sorted(record.dtypes):
        values = np.array([0, 1, 2, 3, 100]).astype(DTYPES[dtype].numpy)
        neutral = np.asarray(record.identity(dtype)).astype(DTYPES[dtype].numpy)
        assert np.array_equal(op.compute(name, [values, neutral], dtype), values), dtype
        assert np.array_equal(op.compute(name, [neutral, values], dtype), values), dtype


_WORDS_WITH_OTHER_MEANINGS = frozenset(
    # attribute names and fields of HLO text, the element type of tuples, and English
    {"select", "scatter", "slice", "domain", "constant", "add", "map", "reduce", "parameter"}
    | {"pad", "tuple", "check"}
)


def test_opcode_names_are_spelled_in_the_table_only() -> None:
    """Elsewhere in the compiler core a string that is an opcode's name must be a constant's."""
    spelled: list[str] = []
    for folder in ("hlo", "fusion", "schedule", "loop_ir", "codegen"):
        paths = list((PACKAGE / folder).rglob("*.py"))
        assert paths, folder
        for path in paths:
            if path.name in ("opcodes.py",):
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and node.value in op.OPCODES:
                    if node.value not in _WORDS_WITH_OTHER_MEANINGS:
                        spelled.append(f"{path.name}:{node.lineno} {node.value!r}")
    assert spelled == []


_int32 = st.integers(-(2**31), 2**31 - 1)


def _wrap(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


@given(_int32, _int32)
def test_integer_division_truncates(x: int, y: int) -> None:
    quotient, rest = _apply(op.DIVIDE, x, y), _apply(op.REMAINDER, x, y)
    if y == 0:
        assert (quotient, rest) == (-1, x)
    else:
        expected = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        assert (quotient, rest) == (_wrap(expected), _wrap(x - expected * y))


@given(_int32, st.integers(-40, 40))
def test_shifts_beyond_the_width(x: int, amount: int) -> None:
    inside = 0 <= amount < 32
    assert _apply(op.SHIFT_LEFT, x, amount) == (_wrap(x << amount) if inside else 0)
    logical = _wrap((x % 2**32) >> amount) if inside else 0
    assert _apply(op.SHIFT_RIGHT_LOGICAL, x, amount) == logical
    arithmetic = x >> amount if inside else (-1 if x < 0 else 0)
    assert _apply(op.SHIFT_RIGHT_ARITHMETIC, x, amount) == arithmetic


@given(st.integers(-9, 9), st.integers(-3, 8))
def test_integer_power(x: int, y: int) -> None:
    if y >= 0:
        expected = _wrap(x**y)
    else:
        expected = {1: 1, -1: -1 if y % 2 else 1}.get(x, 0)
    assert _apply(op.POWER, x, y) == expected


def _apply(name: str, x: int, y: int) -> int:
    arrays = [np.array([value], np.int32) for value in (x, y)]
    return int(op.compute(name, arrays, "s32")[0])


@given(st.integers(0, 2**32 - 1))
def test_bit_counts(x: int) -> None:
    value = np.array([x], np.uint32)
    assert op.compute("popcnt", [value], "u32")[0] == x.bit_count()
    assert op.compute("count-leading-zeros", [value], "u32")[0] == 32 - x.bit_length()


def test_float_to_integer_follows_the_cpu() -> None:
    """TensorFlow's rule (measured): cvtt's INT_MIN out of range, low bits below 32 bits."""
    x = np.array([1e20, -1e20, np.nan, 3.9, -3.9, 300, -3], np.float32)
    low = -(2**31)
    assert op.compute(op.CONVERT, [x], "s32").tolist() == [low, low, low, 3, -3, 300, -3]
    assert op.compute(op.CONVERT, [x[3:]], "u8").tolist() == [3, 253, 44, 253]
    assert op.compute(op.CONVERT, [x[:3]], "s64").tolist() == [-(2**63)] * 3
    big = np.array([2.0**63, 2.0**64 - 2**40], np.float64)
    assert op.compute(op.CONVERT, [big], "u64").tolist() == [2**63, 2**64 - 2**40]


def test_nan_wins_in_maximum_and_clamp() -> None:
    x = np.array([np.nan, 1, np.nan], np.float32)
    y = np.array([1, np.nan, np.nan], np.float32)
    assert np.isnan(op.compute(op.MAXIMUM, [x, y], "f32")).all()
    assert np.isnan(op.compute(op.MINIMUM, [x, y], "f32")).all()


def test_denormals_are_flushed_with_their_sign() -> None:
    tiny = np.array([1e-40, -1e-40, 1.2e-38], np.float32)
    doubled = op.compute(op.ADD, [tiny, tiny], "f32")
    assert doubled.tolist()[:2] == [0.0, 0.0] and doubled[2] > 0
    assert np.signbit(op.compute(op.MULTIPLY, [tiny[1:2], np.ones(1, np.float32)], "f32"))[0]
    assert op.compute(op.ADD, [np.array([1e-7], np.float16)] * 2, "f16")[0] != 0


def test_half_types_round_once() -> None:
    bf16 = DTYPES["bf16"].numpy
    x = np.array([1.0, 256.0]).astype(bf16)
    y = np.array([2.0**-9, 1.0]).astype(bf16)
    total = op.compute(op.ADD, [x, y], "bf16")
    assert total.dtype == bf16 and total.astype(float).tolist() == [1.0, 256.0]


@pytest.mark.parametrize("record", ELEMENTWISE, ids=lambda r: r.name)
def test_storage_agrees_with_float64(record: op.Opcode) -> None:
    """Within the record's tolerance (numpy's own functions are not all correctly rounded)."""
    if "f32" not in record.dtypes or record.name in (op.BITCAST_CONVERT, op.REDUCE_PRECISION):
        return
    rng = np.random.default_rng(7)
    operands = [rng.uniform(*record.domain, 4096).astype(np.float32)
                for _ in range(record.arity or 0)]  # fmt: skip
    if record.name == op.SELECT:
        operands[0] = operands[0] > 0
    dtype = "pred" if record.name in (op.COMPARE, op.IS_FINITE) else "f32"
    given_attributes = {"direction": "LT"} if record.name == op.COMPARE else {}
    narrow = op.compute(record.name, operands, dtype, given_attributes)
    sources = ["pred" if o.dtype == bool else "f32" for o in operands]
    wide_operands = [o.astype(np.float64) if o.dtype != bool else o for o in operands]
    wide = op.compute_wide(record.name, wide_operands, sources, dtype, given_attributes)
    if dtype == "pred":
        assert np.array_equal(narrow, wide)
        return
    spacing = np.spacing(np.abs(wide).astype(np.float32)).astype(np.float64)
    error = np.abs(narrow.astype(np.float64) - wide) / spacing
    assert error.max() <= record.ulp + 0.5 + 1e-6


def test_a_lookup_takes_the_first_operand_and_is_stitchable() -> None:
    lookups = {record.name for record in op.OPCODES.values() if record.kind == "lookup"}
    assert lookups == {op.GATHER, op.DYNAMIC_SLICE}
    updates = {record.name for record in op.OPCODES.values() if record.kind == "update"}
    assert updates == {op.DYNAMIC_UPDATE_SLICE}
    scatters = {record.name for record in op.OPCODES.values() if record.kind == "scatter"}
    assert scatters == {op.SCATTER}
    scans = {record.name for record in op.OPCODES.values() if record.kind == "scan"}
    assert scans == {op.REDUCE_WINDOW}
    assert {"lookup", "update", "scatter", "scan"} < op.STITCHABLE_KINDS
    assert "indexed" not in op.STITCHABLE_KINDS


def test_reduce_precision() -> None:
    x = np.array([1.00390625, 1e39, 1e-30, np.inf, 65520.0], np.float64)
    rounded = numerics.reduce_precision(x, 5, 10)
    assert rounded.tolist() == [1.00390625, np.inf, 0.0, np.inf, np.inf]


def test_total_order() -> None:
    x = np.array([-np.nan, -np.inf, -1, -0.0, 0.0, 1, np.inf, np.nan], np.float32)
    assert (np.diff(numerics.total_order(x).astype(np.int64)) > 0).all()
