"""Pooling written with slices is vectors: gradients of windows that reach beyond the operand."""

from __future__ import annotations

import numpy as np
import pytest

from stitchcore.codegen import c
from stitchcore.device.records import DEVICES
from stitchcore.hlo.evaluator.evaluate import evaluate
from stitchcore.hlo.ir import builder
from stitchcore.hlo.ir.attributes import WindowDim
from stitchcore.hlo.ir.instruction import computation
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.transforms.expand import expand
from stitchcore.runtime.cpu_kernel import CpuKernel
from stitchcore.schedule.pipeline import schedule
from stitchcore.toolchain.c_compiler import compile_c
from tests.hlo.test_expand_window import counts, pooling_gradient
from tests.schedule.agree import check, collapsed
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


def test_a_case_has_the_sums_of_what_it_chooses() -> None:
    """One window, two or four reach an element; what no window adds is not added. Zeros of either
    sign among the gradients come out as they do from all nine terms."""
    operand = builder.parameter(0, "f32", (2, 16, 16, 32))
    side = WindowDim(3, 2, 0, 1)
    window = (WindowDim(1), side, side, WindowDim(1))
    source = builder.parameter(1, "f32", counts(operand, window))
    module = Module("m", computation([operand, source], pooling_gradient(operand, source, window)))
    module = expand(module).module
    pattern = whole(module)
    kernel = schedule(pattern, module, DEVICES["cpu-x86-64-v3"], "kernel", verify=True)
    text = c.render([kernel])
    first = text.split("_case ==", 1)[1].split("} else {")[0]
    assert first.count(" + v") == first.count("0x0p+0f + v") == 1
    random = np.random.default_rng(0)
    x = random.standard_normal(operand.shape.static).astype(np.float32)
    dy = random.choice(np.float32([-0.0, 0.0, -1.0, 0.5]), source.shape.static)
    given = {operand: x, source: dy}
    library = compile_c(text, DEVICES["cpu-x86-64-v3"])
    inputs = [given[value].reshape(-1) for value in pattern.inputs]
    shaped = collapsed(kernel, inputs, {})
    (found,) = CpuKernel(library.data, kernel).run(shaped, {}, 1)
    (expected,) = evaluate(module, [x, dy])
    assert found.reshape(-1).tobytes() == np.asarray(expected).reshape(-1).tobytes()
