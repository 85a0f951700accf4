"""Kernels whose sections share functions: right and free of races under every schedule."""

from __future__ import annotations

import re

import numpy as np
import pytest

from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.schedule.pipeline import schedule
from tests.emulator import kernels
from tests.emulator.launch import Order, Schedule
from tests.emulator.program import compile_text
from tests.emulator.test_fuzz import TINY
from tests.emulator.twins import DEVICE
from tests.schedule.agree import assert_close, collapsed
from tests.schedule.modules import (
    apply,
    broadcast,
    draw_inputs,
    module_of,
    parameter,
    reduce,
    whole,
)
from tests.schedule.twins import toy

RUNS = [
    (Schedule(), 3),
    (Schedule(Order.REVERSE), 1),
    (Schedule(Order.RANDOM, 1, preempt=True), 5),
]


def updated(value: Instruction) -> Instruction:
    return apply(op.ADD, apply(op.MULTIPLY, value, value), value)


def normalized(value: Instruction) -> Instruction:
    """Rows less their largest element."""
    shape = value.shape.static
    return apply(op.SUBTRACT, value, broadcast(reduce(value, (1,), op.MAXIMUM), shape, (0,)))


def summed(value: Instruction) -> Instruction:
    return reduce(value, (0,), op.ADD)


@pytest.mark.parametrize(
    ("function", "shapes", "fewer"),
    [
        (updated, [(64,), (96,), (33,), (130,), (1,), (97,)], 3),
        (normalized, [(7, 20), (12, 20), (1, 20), (3, 20)], 1),
        (normalized, [(7, 8), (12, 8), (1, 8)], 1),
        (summed, [(40, 9), (60, 9), (40, 9)], 1),
    ],
    ids=["elements", "rows", "short rows", "columns"],
)
def test_sections_that_share_a_function_are_right(
    function: object, shapes: list[tuple[int, ...]], fewer: int
) -> None:
    assert callable(function)
    given = [parameter(number, shape) for number, shape in enumerate(shapes)]
    module = module_of([function(one) for one in given], given)
    pattern = whole(module)
    inputs = draw_inputs(pattern, 0)
    with toy(TINY):
        kernel = schedule(pattern, module, DEVICE, "kernel", verify=True)
    text = kernels.rendered([kernel])
    sections = sum(len(phase.sections) for phase in kernel.phases)
    assert len(re.findall(r"^ST_INLINE", text, re.MULTILINE)) <= sections - fewer
    assert "st_find" in text
    program = compile_text(text)
    first: list[bytes] = []
    for order, blocks in RUNS:
        made = kernels.run(kernel, program, collapsed(kernel, inputs, {}), {}, order, blocks=blocks)
        assert not made.findings, list(map(str, made.findings))
        of = [inputs[pattern.inputs.index(source(value))] for value in pattern.outputs]
        assert_close(made.outputs, [reference(function, one) for one in of], kernel)
        outputs = [array.tobytes() for array in made.outputs]
        assert outputs == (first := first or outputs)


def source(value: Instruction) -> Instruction:
    """The parameter that a value is made of."""
    while value.operands:
        value = value.operands[0]
    return value


def reference(function: object, given: np.ndarray) -> np.ndarray:
    if function is updated:
        return given * given + given
    if function is summed:
        return given.astype(np.float64).sum(axis=0).astype(np.float32)
    return given - given.max(axis=1, keepdims=True)
