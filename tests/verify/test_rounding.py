"""The rounding of operations is allowed where it is magnified, and nothing beyond it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from stitchcore.fusion.pattern import Pattern
from stitchcore.hlo.evaluator.evaluate import evaluate
from stitchcore.hlo.text.parser import parse
from stitchcore.verify.kernel import check_kernel
from stitchcore.verify.rounding import movement

GATE = parse(
    """HloModule gate

ENTRY main {
  x = f32[4000] parameter(0)
  y = f32[4000] parameter(1)
  one = f32[] constant(1)
  ones = f32[4000] broadcast(one), dimensions={}
  t = f32[4000] tanh(x)
  s = f32[4000] add(t, ones)
  ROOT out = f32[4000] multiply(y, s)
}
"""
)
"""y (1 + tanh(x)): near x = -4 one unit of tanh is a thousandth of the result."""


def inputs() -> list[Any]:
    random = np.random.default_rng(0)
    x = np.full(4000, -4.0, np.float32) + random.uniform(0, 0.1, 4000).astype(np.float32)
    y = random.standard_normal(4000).astype(np.float32) * 1e-3
    x[7], y[7] = -4.05, 50.0
    return [x, y]


def off_by(units: float) -> bool:
    """Whether the gate passes when one element's tanh is off by so many units in the last place."""
    root = GATE.entry.root
    body = tuple(n for n in _nodes() if n.opcode != "parameter")
    pattern = Pattern(body, GATE.entry.parameters, (root,))

    def run(given: Sequence[Any]) -> list[Any]:
        [found] = evaluate(GATE, given)
        found = np.array(found)
        found[7] += np.float32(given[1][7] * units * 2.0**-23)
        return [found]

    return check_kernel(pattern, GATE, run, {}, inputs()).passed


def _nodes() -> list[Any]:
    from stitchcore.hlo.ir.instruction import topological

    return list(topological((GATE.entry.root,)))


@pytest.mark.parametrize(("units", "passes"), [(0.0, True), (1.0, True), (8.0, False)])
def test_a_unit_of_tanh_passes_and_eight_fail(units: float, passes: bool) -> None:
    assert off_by(units) is passes


def test_movement_is_the_inner_rounding() -> None:
    given = inputs()
    exact = evaluate(GATE, given, {}, "float64")
    [moved] = movement(GATE, given, {}, exact)
    inner = np.abs(given[1]) * 2.0**-23
    assert (moved >= 0.9 * inner).all() and (moved <= 6 * inner).all()


MASKED = parse(
    """HloModule masked, symbols={s0}

largest {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT m = f32[] maximum(a, b)
}

ENTRY main {
  x = f32[s0,8] parameter(0)
  given = f32[s0,8] parameter(1)
  masked = f32[s0,8] add(x, given)
  low = f32[] constant(-inf)
  most = f32[s0] reduce(masked, low), dimensions={1}, to_apply=largest
  wide = f32[s0,8] broadcast(most), dimensions={0}
  ROOT out = f32[s0,8] subtract(masked, wide)
}
"""
)
"""What a softmax takes powers of, of scores beside a mask."""


def test_what_is_lost_beside_a_mask_is_rounding_of_each_element_its_own_way() -> None:
    scores = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32)
    for mask, least, most in ((0.0, 0.0, 1e-5), (-1e9, 8.0, 1e3)):
        given = [scores, np.full((64, 8), mask, np.float32)]
        exact = evaluate(MASKED, given, {"s0": 64}, "float64")
        [moved] = movement(MASKED, given, {"s0": 64}, exact)
        assert (moved.max(1) >= least).all() and (moved <= most).all()
