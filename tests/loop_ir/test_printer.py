"""The text form round-trips, for kernels written by hand and for random ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stitchcore.hlo.ir import opcodes as op
from stitchcore.loop_ir.index import Binary, Index, Variable
from stitchcore.loop_ir.nodes import (
    Apply,
    Barrier,
    Check,
    Expression,
    FromIndex,
    If,
    InRange,
    Kernel,
    Literal,
    Load,
    Phase,
    Role,
    Scope,
    Section,
    Store,
)
from stitchcore.loop_ir.printer import TextError, parse_kernel, print_kernel
from tests.loop_ir.sample import column_sum, device, looked_up, softmax, whole_sum

X = device("x", "f32", (7, 5), Role.INPUT)
Y = device("y", "f32", (7, 5), Role.OUTPUT)
NAMES = st.sampled_from(["task", "B", "i", "min_rows"])


def indices() -> st.SearchStrategy[Index]:
    leaves = st.integers(-99, 2**40) | NAMES.map(Variable)
    return st.recursive(
        leaves,
        lambda inner: st.builds(
            Binary, st.sampled_from(["+", "*", "//", "%", "min", "max"]), inner, inner
        ),
        max_leaves=12,
    )


def expressions() -> st.SearchStrategy[Expression]:
    number = st.floats(width=32)
    leaves: st.SearchStrategy[Expression] = (
        st.builds(Literal, number, st.just("f32"))
        | st.builds(Literal, st.integers(-(2**63), 2**64 - 1), st.just("s64"))
        | st.builds(Literal, st.booleans(), st.just("pred"))
        | st.builds(Load, st.just(X), st.tuples(indices(), indices()))
        | st.builds(FromIndex, indices(), st.just("s32"))
        | st.builds(InRange, indices(), indices(), indices())
    )
    attribute = st.sampled_from(
        [
            (),
            (("direction", "LT"),),
            (
                (
                    "a",
                    (1, (2, "x}")),
                ),
                ("b", 3),
            ),
        ]
    )
    return st.recursive(
        leaves,
        lambda inner: st.builds(
            Apply,
            st.sampled_from([op.ADD, op.SELECT, "exponential-minus-one"]),
            st.lists(inner, min_size=1, max_size=3).map(tuple),
            st.just("f32"),
            attribute,
        ),
        max_leaves=8,
    )


@pytest.mark.slow
@given(expressions(), indices(), expressions(), st.sampled_from([Scope.WARP, Scope.GROUP]))
def test_random_kernels_round_trip(
    value: Expression, at: Index, condition: Expression, scope: Scope
) -> None:
    body = (
        Store(Y, (at, 0), value),
        If(condition, (Barrier(Scope.WARP), Check(condition, 3, Literal(-2, "s64")))),
    )
    section = Section("task", at, body, scope)
    kernel = Kernel("k", ("B",), (X, Y), (Phase((section,)),), errors=('a "quoted" } text',))
    assert parse_kernel(print_kernel(kernel)) == kernel


@pytest.mark.parametrize(
    "kernel", [softmax(), softmax(dtype="bf16"), column_sum(), whole_sum(9), looked_up()]
)
def test_written_kernels_round_trip(kernel: Kernel) -> None:
    text = print_kernel(kernel)
    assert parse_kernel(text) == kernel
    assert print_kernel(parse_kernel(text)) == text


def test_literals_are_equal_when_written_alike() -> None:
    assert Literal(float("nan"), "f32") == Literal(float("nan"), "f32")
    assert len({Literal(0.0, "f32"), Literal(-0.0, "f32"), Literal(0, "f32")}) == 3


def test_everything_of_a_kernel_is_in_its_text() -> None:
    kernel = replace(softmax(), aliases=((0, 0),), errors=("one",), symbols=("B", "S"))
    assert parse_kernel(print_kernel(kernel)) == kernel


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("lanes j", "lanez j", "line 10, column 9.*a statement"),
        ("x[row, j]", "q[row, j]", "name of a buffer"),
        ("accumulate most", "accumulate mast", "name of a scalar"),
        ("phase {", "phase (", "'{'"),
    ],
)
def test_errors_name_the_place(before: str, after: str, message: str) -> None:
    text = print_kernel(softmax()).replace(before, after, 1)
    with pytest.raises(TextError, match=message):
        parse_kernel(text)
