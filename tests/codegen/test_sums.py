"""How near sums of many equal numbers come to the truth: roundings of equal sums do not cancel."""

from __future__ import annotations

import numpy as np
import pytest

from stitchcore.compiler.stages import compile_module
from stitchcore.device.host import host_device
from stitchcore.hlo.ir import opcodes as op
from stitchcore.runtime.module import run_module
from tests.schedule.modules import apply, broadcast, module_of, parameter, reduce

VALUE = np.float32(0.99220276)


@pytest.mark.parametrize("shape", [(64, 256), (256, 128), (128, 1000)])
def test_a_sum_that_goes_on_from_row_to_row(shape: tuple[int, int]) -> None:
    """Of 16,384 squares and more. A lane that began with the sum so far would be off by 1e-5."""
    value = parameter(0, shape)
    top = broadcast(reduce(value, (1,), op.MAXIMUM), shape, (0,))
    near = apply(op.SUBTRACT, apply(op.ADD, value, value), top)  # a row at once: it waits for top
    module = module_of([reduce(apply(op.MULTIPLY, near, near), (0, 1))], [value])
    compiled = compile_module(module, host_device())
    (total,) = run_module(compiled, [np.full(shape, VALUE, np.float32)])
    wanted = float(np.float32(VALUE * VALUE)) * shape[0] * shape[1]
    assert abs(float(total) / wanted - 1) < 4e-6
