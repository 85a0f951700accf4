"""How near sums of many equal numbers come to the truth: roundings of equal sums do not cancel."""

from __future__ import annotations

import numpy as np
import pytest

from stitchcore.codegen import c
from stitchcore.compiler.stages import compile_module
from stitchcore.device.host import host_device
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.text.parser import parse
from stitchcore.loop_ir.printer import parse_kernel, print_kernel
from stitchcore.runtime.module import run_module
from stitchcore.schedule.pipeline import schedule
from stitchcore.toolchain.c_compiler import compile_c
from tests.schedule.modules import apply, broadcast, module_of, parameter, reduce, whole

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


PIXELS = parse(
    """HloModule pixels, symbols={s0,s1,s2}

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}

largest {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] maximum(a, b)
}

ENTRY main {
  p = f32[s0,s1,s2,3] parameter(0)
  later = f32[s0,-1+s1,s2,3] slice(p), slice={[0:s0], [1:s1], [0:s2], [0:3]}
  square = f32[s0,-1+s1,s2,3] multiply(later, later)
  zero = f32[] constant(0)
  low = f32[] constant(-inf)
  total = f32[s0] reduce(square, zero), dimensions={1,2,3}, to_apply=sum
  most = f32[s0] reduce(later, low), dimensions={1,2,3}, to_apply=largest
  ROOT both = (f32[s0], f32[s0]) tuple(total, most)
}
"""
)


@pytest.mark.parametrize("sizes", [(2, 300, 400), (1, 500, 70), (70, 2, 9)])
def test_a_sum_of_many_rows_that_are_rows_themselves(sizes: tuple[int, ...]) -> None:
    """Of pixels, whose last axis is no vector: 1e-6 off and more, did a total grow in float32."""
    given = np.random.default_rng(0).random((*sizes, 3)).astype(np.float32)
    compiled = compile_module(PIXELS, host_device())
    bindings = dict(zip(PIXELS.symbols, sizes, strict=True))
    total, most = run_module(compiled, [given], bindings)
    wide = given[:, 1:].astype(np.float64)
    np.testing.assert_allclose(total, np.square(wide).sum((1, 2, 3)), rtol=3e-7)
    np.testing.assert_array_equal(most, given[:, 1:].max((1, 2, 3)))


def test_names_of_totals_are_a_kernels_own() -> None:
    kernels = [schedule(whole(PIXELS), PIXELS, host_device(), name) for name in ("one", "other")]
    largest = parse_kernel(print_kernel(kernels[1]).replace("= add", "= maximum"))
    text = c.render([kernels[0], largest])
    assert "_wide" in text and not compile_c(text, host_device()).scalar_loops
