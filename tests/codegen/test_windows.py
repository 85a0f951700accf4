"""Pooling written with slices is vectors: gradients of windows that reach beyond the operand."""

from __future__ import annotations

import pytest

from stitchcore.codegen import c
from stitchcore.device.records import DEVICES
from stitchcore.hlo.ir import builder
from stitchcore.hlo.ir.attributes import WindowDim
from stitchcore.hlo.ir.instruction import computation
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.transforms.expand import expand
from stitchcore.schedule.pipeline import schedule
from stitchcore.toolchain.c_compiler import compile_c
from tests.hlo.test_expand_window import counts, pooling_gradient
from tests.schedule.agree import check
from tests.schedule.modules import draw_inputs, whole
from tests.tiers import slow_but


@pytest.mark.parametrize("target", ["cpu-x86-64-v3", "cpu-x86-64-v4"])
@pytest.mark.parametrize(("stride", "low"), slow_but((2, 1), of=[(1, 1), (2, 0), (2, 1)]))
@pytest.mark.parametrize("direction", ["GE", "LE"])
def test_the_choice_of_a_padded_window_is_vectors(
    target: str, stride: int, low: int, direction: str
) -> None:
    operand = builder.parameter(0, "f32", (2, 8, 8, 32))
    side = WindowDim(3, stride, low, 1)
    window = (WindowDim(1), side, side, WindowDim(1))
    source = builder.parameter(1, "f32", counts(operand, window))
    root = pooling_gradient(operand, source, window, direction)
    module = expand(Module("m", computation([operand, source], root))).module
    pattern = whole(module)
    kernel = schedule(pattern, module, DEVICES[target], "kernel", verify=True)
    library = compile_c(c.render([kernel]), DEVICES[target])
    assert not library.scalar_loops, library.scalar_loops
    if target == "cpu-x86-64-v3":
        check(pattern, module, draw_inputs(pattern, 0), compiled=True)
