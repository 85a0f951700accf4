"""Small dots as multiplications and sums: against einsum in float64, and only where they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stitchcore.hlo.evaluator.evaluate import evaluate
from stitchcore.hlo.ir import builder
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction, computation, instruction, topological
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.ir.shape import DTYPES, Shape
from stitchcore.hlo.transforms.expand import expand

LETTERS = "abcdefgh"


def dot(left: str, right: str, extents: dict[str, int], dtype: str, result: str) -> Module:
    """The dot of two operands whose dimensions are named: in both operands and in `result` a
    batch, in both operands only contracted."""
    operands = [
        builder.parameter(n, dtype, [extents[c] for c in names])
        for n, names in enumerate((left, right))
    ]
    batch = [c for c in result if c in left and c in right]
    contracted = [c for c in left if c in right and c not in result]
    shape = Shape(dtype, tuple(extents[c] for c in result))
    product = instruction(
        op.DOT,
        shape,
        operands,
        lhs_batch_dims=tuple(map(left.index, batch)),
        rhs_batch_dims=tuple(map(right.index, batch)),
        lhs_contracting_dims=tuple(map(left.index, contracted)),
        rhs_contracting_dims=tuple(map(right.index, contracted)),
    )
    return Module("m", computation(operands, product))


def opcodes_of(root: Instruction) -> set[str]:
    return {node.opcode for node in topological((root,))}


@st.composite
def small(draw: st.DrawFn) -> tuple[str, str, str, dict[str, int]]:
    """Names of two operands and the result, in drawn orders, and extents that make it small."""
    counts = [draw(st.integers(0, 2)) for _ in range(4)]
    names = iter(LETTERS)
    batch, rows, columns, contracted = ("".join(next(names) for _ in range(n)) for n in counts)
    unit = draw(st.sampled_from((rows, columns, contracted)))
    extents = {
        c: 1 if c in unit else draw(st.integers(1, 4)) for c in batch + rows + columns + contracted
    }
    left = "".join(draw(st.permutations(batch + rows + contracted)))
    right = "".join(draw(st.permutations(batch + columns + contracted)))
    result = [c for c in left if c in batch] + [c for c in left if c in rows]
    result += [c for c in right if c in columns]
    return left, right, "".join(result), extents


@given(small(), st.sampled_from(("f32", "f64", "bf16", "f16")), st.integers(0, 99))
@settings(max_examples=200)
def test_a_small_dot_is_einsum(
    drawn: tuple[str, str, str, dict[str, int]], dtype: str, seed: int
) -> None:
    left, right, result, extents = drawn
    module = dot(left, right, extents, dtype, result)
    expanded = expand(module).module
    assert op.DOT not in opcodes_of(expanded.entry.root)
    rng = np.random.default_rng(seed)
    kind = DTYPES[dtype].numpy
    arguments = [rng.normal(size=p.shape.static).astype(kind) for p in module.entry.parameters]
    wide = [array.astype(np.float64) for array in arguments]
    expected = np.einsum(f"{left},{right}->{result}", *wide)
    (product,) = evaluate(expanded, arguments)
    assert product.dtype == kind
    # One rounding to the result's type, the sum itself in f32 or wider.
    tolerance = {"f32": 1e-6, "f64": 1e-14, "bf16": 2**-8, "f16": 2**-10}[dtype]
    magnitude = np.einsum(f"{left},{right}->{result}", *map(np.abs, wide))
    error = np.abs(product.astype(np.float64) - expected)
    assert (error <= tolerance * np.abs(expected) + 1e-6 * magnitude).all()


@pytest.mark.parametrize(
    ("extents", "dtype"), [({"a": 2, "b": 2, "c": 2}, "f32"), ({"a": 1, "b": 2, "c": 2}, "s32")]
)
def test_others_stay(extents: dict[str, int], dtype: str) -> None:
    """Two rows, two columns and two contracted elements; integers."""
    module = dot("ab", "bc", extents, dtype, "ac")
    assert op.DOT in opcodes_of(expand(module).module.entry.root)


def test_narrow_floats_are_summed_in_f32() -> None:
    """2048 ones in f16 are 2048; summed in f16 they would stop growing at 2048, so 4096 tells."""
    extents: dict[str, Any] = {"a": 1, "b": 4096, "c": 1}
    module = expand(dot("ab", "bc", extents, "f16", "ac")).module
    ones = [np.ones(p.shape.static, np.float16) for p in module.entry.parameters]
    assert evaluate(module, ones)[0].item() == 4096.0
    reduces = [n for n in topological((module.entry.root,)) if n.opcode == op.REDUCE]
    assert [n.shape.dtype for n in reduces] == ["f32"]


def test_a_result_of_no_element() -> None:
    module = expand(dot("ab", "bc", {"a": 0, "b": 3, "c": 2}, "f32", "ac")).module
    assert op.DOT not in opcodes_of(module.entry.root)
