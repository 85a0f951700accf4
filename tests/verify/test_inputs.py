"""Drawn arguments: a whole step must stay finite on them, or comparing it shows nothing."""

from __future__ import annotations

import numpy as np

from stitchcore.hlo.evaluator.evaluate import evaluate
from stitchcore.hlo.text.parser import parse
from stitchcore.verify.inputs import INTEGERS, arguments, plausible, whole_numbers

ADAM = """HloModule adam
ENTRY main {
  weight = f32[40,30] parameter(0)
  gradient = f32[40,30] parameter(1)
  moment = f32[1200] parameter(2)
  second = f32[40,30] parameter(3)
  decay = f32[] constant(0.999)
  decays = f32[40,30] broadcast(decay), dimensions={}
  kept = f32[40,30] multiply(decays, second)
  square = f32[40,30] multiply(gradient, gradient)
  sum = f32[40,30] add(kept, square)
  root = f32[40,30] sqrt(sum)
  flat = f32[40,30] reshape(moment)
  step = f32[40,30] divide(flat, root)
  ROOT new = f32[40,30] subtract(weight, step)
}
"""


def test_what_a_root_is_taken_of_is_positive_and_nothing_else() -> None:
    module = parse(ADAM)
    given = plausible(module, {}, 0)
    assert [bool((one > 0).all()) for one in given] == [False, False, True, True]
    [new] = evaluate(module, given)
    assert np.isfinite(new).all() and np.unique(new).size > 1000


LABELS = """HloModule labels
ENTRY main {
  labels = f32[40,1] parameter(0)
  scores = f32[40] parameter(1)
  known = pred[40] parameter(2)
  zero = f32[] constant(0)
  zeros = f32[40] broadcast(zero), dimensions={}
  flat = f32[40] reshape(labels)
  masked = f32[40] select(known, flat, zeros)
  classes = s64[40] convert(masked)
  doubled = f32[40] add(scores, scores)
  rounded = s32[40] convert(doubled)
  ROOT both = (s64[40], s32[40]) tuple(classes, rounded)
}
"""


def test_floats_that_become_integers_are_drawn_as_such() -> None:
    module = parse(LABELS)
    labels, scores, _ = module.entry.parameters
    assert whole_numbers(module) == {labels}
    given = arguments((labels, scores), {}, 0, whole=whole_numbers(module))
    assert given[0].dtype == np.float32 and given[0].shape == (40, 1)
    assert set(given[0].flat) == set(range(INTEGERS))
    assert (given[1] != np.trunc(given[1])).all()
