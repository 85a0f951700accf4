"""Rows that choose alike have loops of their own, without what they do not choose."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from stitchcore.codegen import c
from stitchcore.codegen.c_row_cases import LEAST_CONDITIONS
from stitchcore.device.records import DEVICES
from stitchcore.hlo.ir import builder
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.dim import Dim, symbol
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.hlo.ir.module import Module
from stitchcore.schedule.pipeline import schedule
from tests.schedule.agree import check
from tests.schedule.modules import apply, draw_inputs, module_of, parameter, whole


def gradient(size: int, stride: int, count: int, channels: int = 16, batch: Dim = 2) -> Module:
    """What `count` x `count` windows of a pooling give back to the elements that they are of."""
    source = parameter(0, (batch, count, count, channels))
    low = (size - stride) // 2
    extent = count * stride
    total: Instruction | None = None
    for i, j in itertools.product(range(size), repeat=2):
        padding = [(0, 0, 0), *(_back(at - low, extent, count, stride) for at in (i, j)), (0, 0, 0)]
        weighted = apply(op.MULTIPLY, source, builder.splat(1.0 + 3 * i + j, source))
        part = builder.pad(weighted, builder.constant(0.0, "f32"), padding)
        total = part if total is None else apply(op.ADD, total, part)
    assert total is not None
    return module_of([total], [source])


def _back(low: int, extent: int, count: int, stride: int) -> tuple[int, int, int]:
    return low, extent - low - ((count - 1) * stride + 1), stride - 1


def text(module: Module) -> str:
    return c.render([schedule(whole(module), module, DEVICES["cpu-x86-64-v3"], "kernel")])


@pytest.mark.parametrize(("size", "stride"), [(2, 2), (3, 2), (3, 3)])
def test_the_common_cases_of_a_gradient(size: int, stride: int) -> None:
    module = gradient(size, stride, 6)
    assert "_case ==" in text(module)
    pattern = whole(module)
    check(pattern, module, draw_inputs(pattern, 0), compiled=True)


def test_windows_that_are_wholly_inside_choose_nothing() -> None:
    """Every element has its share of all windows but at the edges: nothing is left out."""
    module = gradient(3, 1, 9)
    assert "_case" not in text(module)
    pattern = whole(module)
    check(pattern, module, draw_inputs(pattern, 0), compiled=True)


def test_a_case_loads_what_it_chooses_only() -> None:
    first = text(gradient(2, 2, 20)).split("_case ==", 1)[1].split("} else {")[0]
    assert first.count("in0[") == 1


def test_what_is_known_for_all_rows_is_a_case_of_all() -> None:
    """Strides of two meet four cases: no row is left to choose by lanes."""
    assert "_mask" not in text(gradient(2, 2, 20))
    assert "_mask" in text(gradient(3, 2, 20))


def test_rows_of_unknown_number() -> None:
    module = replace(gradient(3, 2, 6, batch=symbol("n")), symbols=("n",))
    pattern = whole(module)
    check(pattern, module, draw_inputs(pattern, 0, {"n": 2}), {"n": 2}, compiled=True)


def test_few_conditions_are_chosen_by() -> None:
    x = parameter(0, (2, 20, 20, 16))
    padded = builder.pad(
        x, builder.constant(0.0, "f32"), [(0, 0, 0), (1, 0, 1), (0, 1, 1), (0, 0, 0)]
    )
    module = module_of([apply(op.NEGATE, padded)], [x])
    assert LEAST_CONDITIONS > 1
    assert "_case" not in text(module)
