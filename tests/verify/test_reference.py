"""What a fair reference forgives, and that nothing else hides behind it."""

from __future__ import annotations

from typing import Any

import numpy as np

from stitchcore.hlo.evaluator.evaluate import evaluate
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.text.parser import parse
from stitchcore.verify.accuracy import Judgement
from stitchcore.verify.reference import judge_all, well_conditioned
from stitchcore.verify.tolerance import module_tolerances

COUNT = 400_000
Array = np.ndarray[Any, np.dtype[Any]]

NEAR_ZERO = """HloModule near_zero

ENTRY main {
  a = f32[400000] parameter(0)
  b = f32[400000] parameter(1)
  one = f32[] constant(1)
  ones = f32[400000] broadcast(one), dimensions={}
  product = f32[400000] multiply(a, b)
  difference = f32[400000] subtract(product, ones)
  ROOT quotient = f32[400000] divide(a, difference)
}
"""

DECISION = """HloModule decision

ENTRY main {
  a = f32[400000] parameter(0)
  b = f32[400000] parameter(1)
  one = f32[] constant(1)
  ones = f32[400000] broadcast(one), dimensions={}
  product = f32[400000] multiply(a, b)
  above = pred[400000] compare(product, ones), direction=GT
  minus = f32[400000] negate(a)
  ROOT chosen = f32[400000] select(above, a, minus)
}
"""


def inputs(close: int, gap: float) -> list[Array]:
    """Two factors; the product of the first `close` ones is within `gap` of 1."""
    random = np.random.default_rng(0)
    a = random.uniform(1.1, 1.9, COUNT).astype(np.float32)
    b = random.uniform(1.1, 1.9, COUNT).astype(np.float32)
    b[:close] = ((1 + gap * random.standard_normal(close)) / a[:close]).astype(np.float32)
    return [a, b]


def judged(module: Module, given: list[Array], ours: Array, theirs: Array) -> Judgement:
    exact = evaluate(module, given, {}, "float64")
    limits = module_tolerances(module)
    return judge_all(module, [ours], exact, [theirs], limits, given, {})[0]


def test_division_by_what_is_nearly_zero_is_judged_by_its_sensitivity() -> None:
    """The framework happens to be exact; ours rounds the product, as a correct kernel may."""
    module, given = parse(NEAR_ZERO), inputs(100, 1e-5)
    exact = evaluate(module, given, {}, "float64")[0]
    ours, theirs = evaluate(module, given, {})[0], exact.astype(np.float32)
    worst = np.max(np.abs(ours - exact) / np.abs(exact))
    assert worst > 1e-3  # thousands of units: rounding, seen through the division
    assert judged(module, given, ours, theirs).passed
    for position, factor in ((0, 2.0), (5000, 1.01)):  # where it is amplified, and where not
        wrong = ours.copy()
        wrong[position] *= np.float32(factor)
        assert judged(module, given, wrong, theirs).failures == 1


def test_few_decisions_may_fall_the_other_way_and_no_more() -> None:
    for close, passed in ((8, True), (400, False)):
        module, given = parse(DECISION), inputs(close, 2e-8)
        exact = evaluate(module, given, {}, "float64")[0]
        ours, theirs = evaluate(module, given, {})[0], exact.astype(np.float32)
        turned = int(np.count_nonzero(ours != theirs))
        assert turned > 0
        found = judged(module, given, ours, theirs)
        assert (found.failures, found.decisions, found.passed) == (0, turned, passed)


def test_a_decision_excuses_only_what_it_decides() -> None:
    """A wrong value is none of the two it chooses between; a wrong choice far from 1 is no
    rounding."""
    module, given = parse(DECISION), inputs(8, 2e-8)
    ours, theirs = (evaluate(module, given, {})[0] for _ in range(2))
    turned = ours.copy()
    turned[5000] = -turned[5000]
    assert judged(module, given, turned, theirs).failures == 1
    exact = evaluate(module, given, {}, "float64")[0]
    flipped = int(np.argmax(ours != exact.astype(np.float32)))
    scaled = ours.copy()
    scaled[flipped] *= np.float32(1.5)
    assert judged(module, given, scaled, exact.astype(np.float32)).failures == 1


def test_a_decision_that_a_rounding_of_the_inputs_turns_tells_nothing() -> None:
    """The larger of two sums that are equal but for their last place, and of two that are not."""
    module = parse(
        """HloModule m

ENTRY main {
  x = f32[2] parameter(0)
  y = f32[2] parameter(1)
  ROOT larger = pred[2] compare(x, y), direction=GT
}
"""
    )
    one = np.float32(1)
    inputs = [np.array([one, one]), np.array([np.nextafter(one, np.float32(0)), 0.5], np.float32)]
    exact = evaluate(module, inputs, {}, "float64")
    assert exact[0].all() and evaluate(module, inputs, {}, "storage")[0].all()
    (told,) = well_conditioned(module, exact, [0.0], inputs, {})
    assert list(told) == [False, True]
