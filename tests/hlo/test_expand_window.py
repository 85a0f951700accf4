"""Pooling written with slices and pads: the evaluator's values, of every window that is small."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stitchcore.hlo.evaluator.evaluate import evaluate
from stitchcore.hlo.ir import builder
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.attributes import WindowDim
from stitchcore.hlo.ir.dim import symbol
from stitchcore.hlo.ir.instruction import Instruction, computation, instruction, topological
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.ir.shape import DTYPES, Shape
from stitchcore.hlo.transforms.expand import expand


def counts(operand: Instruction, window: tuple[WindowDim, ...]) -> tuple[int, ...]:
    """How many windows there are along each dimension; not positive where none fits."""
    numbers = []
    for extent, d in zip(operand.shape.static, window, strict=True):
        padded = (extent - 1) * d.lhs_dilate + 1 + d.pad_low + d.pad_high
        numbers.append((padded - ((d.size - 1) * d.rhs_dilate + 1)) // d.stride + 1)
    return tuple(numbers)  # type: ignore[arg-type]


def pooled(
    operand: Instruction, window: tuple[WindowDim, ...], reducer: str, initial: float
) -> Instruction:
    dtype = operand.shape.dtype
    return instruction(
        op.REDUCE_WINDOW,
        Shape(dtype, counts(operand, window)),
        (operand, builder.constant(initial, dtype)),
        window=window,
        to_apply=builder.monoid(reducer, dtype),
    )


def pooling_gradient(
    operand: Instruction, source: Instruction, window: tuple[WindowDim, ...], direction: str = "GE"
) -> Instruction:
    dtype = operand.shape.dtype
    left, right = builder.parameter(0, dtype), builder.parameter(1, dtype)
    chooses = builder.elementwise(op.COMPARE, left, right, direction=direction)
    return instruction(
        op.SELECT_AND_SCATTER,
        operand.shape,
        (operand, source, builder.constant(0.0, dtype)),
        window=window,
        select=computation((left, right), chooses),
        scatter=builder.monoid(op.ADD, dtype),
    )


def expanded(parameters: list[Instruction], root: Instruction) -> tuple[Module, Module, set[str]]:
    module = Module("m", computation(parameters, root))
    simplified = expand(module).module
    return module, simplified, {node.opcode for node in topological((simplified.entry.root,))}


@st.composite
def windows(draw: st.DrawFn, dilated: bool) -> tuple[tuple[int, ...], tuple[WindowDim, ...]]:
    """Extents, and a window of at most 16 elements that fits at least once."""
    dims, window, count = [], [], 1
    for _ in range(draw(st.integers(1, 3))):
        size = draw(st.integers(1, min(4, 16 // count)))
        count *= size
        d = WindowDim(
            size,
            draw(st.integers(1, 3)),
            draw(st.integers(0, size - 1)),
            draw(st.integers(0, size - 1)),
            draw(st.integers(1, 2)) if dilated else 1,
            draw(st.integers(1, 2)) if dilated else 1,
        )
        dims.append(draw(st.integers((size - 1) * d.rhs_dilate + 1, 7)))
        window.append(d)
    return tuple(dims), tuple(window)


VALUES = np.array([-np.inf, -1.5, -0.0, 0.0, 2.0, 2.0, np.inf, 7.25], np.float32)


@settings(max_examples=150)
@given(windows(dilated=True), st.sampled_from([op.MAXIMUM, op.ADD, op.MINIMUM]),
       st.sampled_from([0.0, 3.0, -np.inf]), st.integers(0, 99))  # fmt: skip
def test_a_small_window_is_slices(
    drawn: tuple[tuple[int, ...], tuple[WindowDim, ...]], reducer: str, initial: float, seed: int
) -> None:
    dims, window = drawn
    operand = builder.parameter(0, "f32", dims)
    module, slices, opcodes = expanded([operand], pooled(operand, window, reducer, initial))
    assert op.REDUCE_WINDOW not in opcodes
    values = np.random.default_rng(seed).choice(VALUES[1:6], dims)
    expected, result = evaluate(module, [values])[0], evaluate(slices, [values])[0]
    np.testing.assert_allclose(result, expected, rtol=1e-6)


@pytest.mark.slow
@settings(max_examples=150)
@given(windows(dilated=False), st.sampled_from(["GE", "LE"]), st.integers(0, 99))
def test_a_small_selection_adds_to_the_first_of_the_greatest(
    drawn: tuple[tuple[int, ...], tuple[WindowDim, ...]], direction: str, seed: int
) -> None:
    """Values repeat, so ties are common; infinities meet the padding, which never wins."""
    dims, window = drawn
    operand = builder.parameter(0, "f32", dims)
    source = builder.parameter(1, "f32", counts(operand, window))
    root = pooling_gradient(operand, source, window, direction)
    module, slices, opcodes = expanded([operand, source], root)
    assert op.SELECT_AND_SCATTER not in opcodes
    random = np.random.default_rng(seed)
    arguments = [random.choice(VALUES, dims), random.integers(1, 9, source.shape.static) / 4]
    arguments[1] = arguments[1].astype(np.float32)  # quarters: every order of adding is exact
    assert np.array_equal(evaluate(module, arguments)[0], evaluate(slices, arguments)[0])


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_nan_and_infinity_are_selected_as_by_the_opcode(value: float) -> None:
    window = (WindowDim(3, 2, 1, 1),)
    operand, source = builder.parameter(0, "f32", (7,)), builder.parameter(1, "f32", (4,))
    module, slices, _ = expanded([operand, source], pooling_gradient(operand, source, window))
    values = np.array([value, 1, value, value, -1, value, value], np.float32)
    arguments = [values, np.arange(1, 5, dtype=np.float32)]
    assert np.array_equal(evaluate(module, arguments)[0], evaluate(slices, arguments)[0])


def test_what_is_not_small_stays() -> None:
    large = builder.parameter(0, "f32", (40,))
    prefix_sums = pooled(large, (WindowDim(40, 1, 39, 0),), op.ADD, 0.0)
    assert op.REDUCE_WINDOW in expanded([large], prefix_sums)[2]
    flipped = pooled(large, (WindowDim(3, 1, 0, 0, 1, 1, True),), op.ADD, 0.0)
    assert op.REDUCE_WINDOW in expanded([large], flipped)[2]
    source = builder.parameter(1, "f32", (20,))
    strange = pooling_gradient(large, source, (WindowDim(2, 2),), "GT")
    assert op.SELECT_AND_SCATTER in expanded([large, source], strange)[2]


@pytest.mark.parametrize(
    ("turned", "size", "stays"), [(True, 3, True), (True, 2, False), (False, 3, False)]
)
def test_windows_across_the_rows_of_memory_stay_where_they_overlap(
    turned: bool, size: int, stays: bool
) -> None:
    base = builder.parameter(0, "f32", (2, 16, 8, 8))
    operand = builder.transpose(base, (0, 2, 3, 1) if turned else (0, 2, 1, 3))
    operand = builder.elementwise(op.NEGATE, operand)
    side = WindowDim(size, 2, 0, size - 2)
    window = (WindowDim(1), side, side, WindowDim(1))
    pool = pooled(operand, window, op.MAXIMUM, -np.inf)
    assert (op.REDUCE_WINDOW in expanded([base], pool)[2]) is stays
    source = builder.parameter(1, "f32", counts(operand, window))
    gradient = pooling_gradient(operand, source, window)
    assert (op.SELECT_AND_SCATTER in expanded([base, source], gradient)[2]) is turned


@pytest.mark.parametrize(("size", "width"), [(2, "s8"), (3, "s32")])
def test_what_overlapping_windows_select_is_as_wide_as_the_values(size: int, width: str) -> None:
    operand = builder.parameter(0, "f32", (8, 8))
    window = (WindowDim(size, 2, 0, size - 2),) * 2
    source = builder.parameter(1, "f32", counts(operand, window))
    _, slices, _ = expanded([operand, source], pooling_gradient(operand, source, window))
    compared = {
        side.shape.dtype
        for node in topological((slices.entry.root,))
        if node.opcode == op.COMPARE and node["direction"] == "EQ"
        for side in node.operands
    }
    assert compared == {width}


def test_an_unknown_batch_is_pooled_too() -> None:
    batch = symbol("B")
    operand = builder.parameter(0, "f32", (batch, 8))
    window = (WindowDim(1), WindowDim(2, 2))
    root = instruction(
        op.REDUCE_WINDOW,
        Shape("f32", (batch, 4)),
        (operand, builder.constant(-np.inf, "f32")),
        window=window,
        to_apply=builder.monoid(op.MAXIMUM, "f32"),
    )
    module = Module("m", computation([operand], root), ("B",))
    slices = expand(module).module
    assert op.REDUCE_WINDOW not in {n.opcode for n in topological((slices.entry.root,))}
    values = np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32)
    result = evaluate(slices, [values], {"B": 5})[0]
    assert np.array_equal(result, values.reshape(5, 4, 2).max(2))


def test_sums_of_narrow_floats_are_in_f32() -> None:
    """256 + 1 + 1 is 258 in bf16 when it is rounded once; added in bf16 it stays 256."""
    operand = builder.parameter(0, "bf16", (3,))
    _, slices, _ = expanded([operand], pooled(operand, (WindowDim(3),), op.ADD, 0.0))
    values = np.array([256, 1, 1]).astype(DTYPES["bf16"].numpy)
    assert float(evaluate(slices, [values])[0][0]) == 258.0
