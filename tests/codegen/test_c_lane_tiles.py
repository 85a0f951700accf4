"""Lane loops around serial loops in tiles: several rows a tile only where no row minds another."""

from __future__ import annotations

import numpy as np
import pytest

from stitchcore.codegen import c
from stitchcore.codegen.c_lane_tiles import rows_together, tile_size
from stitchcore.device.host import host_device
from stitchcore.loop_ir.interpreter import interpret
from stitchcore.loop_ir.nodes import Buffer, Kernel, Loop
from stitchcore.loop_ir.printer import parse_kernel
from stitchcore.loop_ir.visitor import statements
from stitchcore.runtime.cpu_kernel import CpuKernel
from stitchcore.toolchain.c_compiler import compile_c

TEXT = """kernel product() {
  input in0: f32[20, 300]
  input in1: f32[300, 64]
  input in2: f32[21, 64]
  output out0: f32[21, 64]
  phase {
    section task0 < 1 {
      lanes lane1 in 0 .. 64 {
        out0[0, lane1] = 0.0:f32
      }
      serial row0 in 0 .. 20 {
        barrier group
        lanes lane0 in 0 .. 64 {
          accumulator r0: f32 = add
          serial step0 in 0 .. 300 {
            let v0: f32 = in1[step0, lane0]
            let v1: f32 = in0[row0, step0]
            let v2: f32 = multiply:f32(v1, v0)
            accumulate r0 = add(v2)
          }
          let v3: f32 = in2[row0, lane0]
          let v4: f32 = add:f32(r0, v3)
          out0[row0 + 1, lane0] = v4
        }
      }
    }
  }
}
"""
RUNNING = TEXT.replace("in2[row0, lane0]", "out0[row0, lane0]")
"""The same, each row added to the one before it."""


def rows_of(kernel: Kernel) -> Loop:
    body = kernel.phases[0].sections[0].body
    return next(s for s in statements(body) if isinstance(s, Loop) and s.variable == "row0")


def shared(*buffers: Buffer) -> frozenset[Buffer]:
    return frozenset(buffers)


def test_a_product_has_rows_together_where_the_first_cache_does_not_hold_a_factor() -> None:
    kernel = parse_kernel(TEXT)
    assert rows_together(rows_of(kernel), shared()) == 16
    assert rows_together(rows_of(kernel), shared(kernel.buffers[-1])) == 1
    assert rows_together(rows_of(parse_kernel(TEXT.replace("300", "64"))), shared()) == 1


def test_a_row_that_reads_the_one_before_it_stays_alone() -> None:
    assert rows_together(rows_of(parse_kernel(RUNNING)), shared()) == 1


def test_rows_with_lanes_of_their_own_stay_alone() -> None:
    other = TEXT.replace("lanes lane0 in 0 .. 64", "lanes lane0 in row0 .. 64")
    assert rows_together(rows_of(parse_kernel(other)), shared()) == 1


@pytest.mark.parametrize("text", [TEXT, RUNNING])
def test_tiles_compute_what_the_loops_say(text: str) -> None:
    kernel = parse_kernel(text)
    random = np.random.default_rng(0)
    given = [
        random.uniform(-1, 1, [int(str(d)) for d in buffer.dims]).astype(np.float32)
        for buffer in kernel.buffers[:3]
    ]
    library = compile_c(c.render([kernel]), host_device())
    (expected,) = interpret(kernel, given, {}, random)
    (found,) = CpuKernel(library.data, kernel).run(given, {}, 1)
    np.testing.assert_array_equal(found, expected)


def test_a_short_row_is_one_tile_of_known_length() -> None:
    assert tile_size(0, 100) == 100
    assert tile_size(0, 96) == 96
    assert tile_size(0, 1000) == 256
