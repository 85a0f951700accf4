"""What lets a result in types of few digits lie off: where it is rounded, and where it is not."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from stitchcore.hlo.text.parser import parse
from stitchcore.verify.tolerance import between, input_units, unit

UPDATE = """HloModule update

ENTRY main {
  weight = f32[64,16] parameter(0)
  gradient = bf16[64,16] parameter(1)
  factor = f32[64,16] parameter(2)
  count = s32[64,16] parameter(3)
  short = bf16[64,16] convert(weight)
  scaled = f32[64,16] multiply(factor, factor)
  read = bf16[64,16] convert(scaled)
  product = bf16[64,16] multiply(short, read)
  number = f32[64,16] convert(count)
  wide = f32[64,16] convert(gradient)
  step = f32[64,16] multiply(wide, number)
  moved = f32[64,16] subtract(weight, step)
  ROOT results = (bf16[64,16], f32[64,16]) tuple(product, moved)
}
"""

SUM = """HloModule sum

add {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] {reducer}(a, b)
}}

ENTRY main {{
  x = bf16[1024,8] parameter(0)
  zero = f32[] constant(0)
  wide = f32[1024,8] convert(x)
  total = f32[8] reduce(wide, zero), dimensions={{0}}, to_apply=add
  ROOT result = {result}[8] convert(total)
}}
"""


def test_an_input_is_what_it_is_rounded_to_on_every_way() -> None:
    """The weight is read as bfloat16, and updated as float32; the factor is only read."""
    weight, gradient, factor, count = input_units(parse(UPDATE))
    assert weight == unit("f32")
    assert gradient == factor == unit("bf16")
    assert count == unit("f32")


def test_a_sum_of_a_short_type_is_added_up_in_it() -> None:
    """Of a thousand like terms half are lost so; where the result is wider they are not, and a
    maximum rounds nothing."""
    (short,) = between(parse(SUM.format(result="bf16", reducer="add")))
    (wide,) = between(parse(SUM.format(result="f64", reducer="add")))
    added = np.asarray(0, ml_dtypes.bfloat16)
    for _ in range(1024):
        added = added + np.asarray(1, ml_dtypes.bfloat16)
    assert 1024 - float(added) > 0.5 * 1024 and short * 2 * float(added) > 1024 - float(added)
    assert short < 2.1
    (largest,) = between(parse(SUM.format(result="bf16", reducer="maximum")))
    assert wide < 1e-4 and largest < 3 * unit("bf16")
