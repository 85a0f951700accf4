"""A transposed operand costs its loop no vectors: what has a stride moves in loops of its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stitchcore.codegen import c
from stitchcore.codegen.c_strided_copies import staged
from stitchcore.device.host import host_device
from stitchcore.loop_ir.interpreter import interpret
from stitchcore.loop_ir.nodes import Kernel, Loop
from stitchcore.loop_ir.printer import parse_kernel
from stitchcore.loop_ir.visitor import statements
from stitchcore.runtime.cpu_kernel import CpuKernel
from stitchcore.toolchain.c_compiler import compile_c

TEXT = """kernel turned({symbols}) {{
  input in0: f32[{lanes}, 5]
  output out0: f32[5, {lanes}]
  output out1: f32[{lanes}, 5]
  phase {{
    section task0 < 5 {{
      accumulator a0: f32 = add
      lanes lane0 in 0 .. {lanes} {{
        let v0: f32 = in0[lane0, task0]
        let v1: f32 = exponential:f32(v0)
        accumulate a0 = add(v1)
        out0[task0, lane0] = v1
        out1[lane0, task0] = v1
      }}
      combine a0 = add over group
      lanes lane1 in 0 .. {lanes} {{
        let v2: f32 = out0[task0, lane1]
        let v3: f32 = divide:f32(v2, a0)
        out0[task0, lane1] = v3
      }}
    }}
  }}
}}
"""


def turned(lanes: int | str) -> Kernel:
    """Softmax of the columns of a matrix, the exponentials also written back as columns."""
    symbols = lanes if isinstance(lanes, str) else ""
    return parse_kernel(TEXT.format(lanes=lanes, symbols=symbols))


def first_loop(kernel: Kernel) -> Loop:
    body = kernel.phases[0].sections[0].body
    return next(one for one in statements(body) if isinstance(one, Loop))


def run(kernel: Kernel, lanes: int, bindings: dict[str, int]) -> None:
    library = compile_c(c.render([kernel]), host_device())
    assert not library.scalar_loops, library.scalar_loops
    x = np.random.default_rng(0).standard_normal((lanes, 5)).astype(np.float32)
    found = CpuKernel(library.data, kernel).run([x], bindings, threads=1)
    expected = interpret(kernel, [x], bindings)
    np.testing.assert_allclose(found[0], expected[0], rtol=4e-6)
    np.testing.assert_allclose(found[1], expected[1], rtol=4e-6)


@pytest.mark.parametrize("lanes", [37, 1024, 3000])
def test_columns_are_vectors_and_right(lanes: int) -> None:
    kernel = turned(lanes)
    apart = staged(first_loop(kernel), {"task0": (0, 4), "lane0": (0, lanes - 1)})
    assert len(apart.loads) == len(apart.stores) == 1
    run(kernel, lanes, {})


@pytest.mark.parametrize("lanes", [5, 1024, 2500])
def test_symbolic_columns_too(lanes: int) -> None:
    run(turned("n"), lanes, {"n": lanes})


def test_what_the_loop_itself_changes_stays_in_it() -> None:
    kernel = turned(64)
    loop = first_loop(kernel)
    load, *between, along, across = loop.body
    read_back = replace(load, value=replace(load.value, buffer=across.buffer))  # type: ignore[union-attr,arg-type]
    for body in ((*loop.body, across), (*loop.body, read_back)):
        assert not staged(replace(loop, body=tuple(body)), {}).stores
    assert not staged(replace(loop, body=(read_back, *between, along, across)), {}).loads


def test_a_copy_stays_one_loop() -> None:
    loop = first_loop(turned(64))
    assert not staged(replace(loop, body=(loop.body[0], loop.body[-1])), {})


def test_a_turned_mask_costs_no_vectors() -> None:
    """An array of _Bool would: gcc makes no masks of it."""
    kernel = parse_kernel(
        """kernel masked() {
  input in0: pred[64, 5]
  input in1: f32[5, 64]
  output out0: f32[5, 64]
  phase {
    section task0 < 5 {
      lanes lane0 in 0 .. 64 {
        let v0: pred = in0[lane0, task0]
        let v1: f32 = in1[task0, lane0]
        let v2: f32 = exponential:f32(v1)
        let v3: f32 = select:f32(v0, v2, v1)
        out0[task0, lane0] = v3
      }
    }
  }
}
"""
    )
    assert staged(first_loop(kernel), {}).loads
    library = compile_c(c.render([kernel]), host_device())
    assert not library.scalar_loops, library.scalar_loops
    random = np.random.default_rng(0)
    mask, x = random.random((64, 5)) < 0.5, random.standard_normal((5, 64)).astype(np.float32)
    [out] = CpuKernel(library.data, kernel).run([mask, x], {}, threads=1)
    np.testing.assert_allclose(out, np.where(mask.T, np.exp(x), x), rtol=1e-6)
