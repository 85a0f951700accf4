"""The judging of a step: it sees what losses hide, and forgives what float32 cannot help.

The step is a small model's, in numpy: gradients rounded like a float32 library's, Adam in float32.
Each rule has mutants that must fail it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from tests.jobs import update as updates
from tests.jobs.state import State, Step, Verdict, after_one_step, least_accurate, ulp_away
from tests.jobs.update import Adam

ADAM = Adam(scale=1e-3 * np.sqrt(1e-3) / 0.1, beta_1=0.9, beta_2=0.999, epsilon=1e-8)
SHAPE = (64, 48)
COUNT = 3
TINY = (16, 7)
Arrays = dict[str, np.ndarray]


def gradients() -> list[np.ndarray]:
    """Float64 gradients, each with an element that is almost zero: there Adam divides rounding.
    The figures are those of a bias in tf1_session.py."""
    random = np.random.default_rng(0)
    made = [4e-3 * random.standard_normal(SHAPE) for _ in range(COUNT)]
    for one in made:
        one[TINY] = 7e-7
    return made


def initial() -> Arrays:
    random = np.random.default_rng(1)
    return {
        f"weight_{i:03d}": (i * random.standard_normal(SHAPE)).astype(np.float32)
        for i in range(COUNT)  # the first starts at zero, as biases do
    }


def run(gradient: list[np.ndarray], dtype: type[np.floating] = np.float32) -> Arrays:
    """The arrays after one step with these gradients, computed in `dtype`."""
    variables, slots, fetched = {}, {}, {}
    for i, (start, exact) in enumerate(zip(initial().values(), gradient, strict=True)):
        g = exact.astype(dtype)
        m, v = g * dtype(1 - ADAM.beta_1), g * g * dtype(1 - ADAM.beta_2)
        step = dtype(ADAM.scale) * m / (np.sqrt(v) + dtype(ADAM.epsilon))
        variables[f"variable_{i:03d}"] = start.astype(dtype) - step
        slots[f"slot_{2 * i + 1:03d}_m"], slots[f"slot_{2 * i + 2:03d}_v"] = m, v
        fetched[f"gradient_{i:03d}"] = g
    return {**variables, "slot_000_iteration": np.asarray(1), **slots, **fetched}


def noisy(seed: int) -> list[np.ndarray]:
    """The gradients with the error that another order of additions leaves in float32."""
    random = np.random.default_rng(seed)
    return [g + 8e-10 * random.standard_normal(SHAPE) for g in gradients()]


def judged(ours: Arrays, adam: Adam | None = ADAM) -> dict[str, State]:
    exact = run(gradients(), np.float64)
    return after_one_step(Step(ours, exact), Step(run(noisy(2)), exact), adam, initial())


def wrong(ours: Arrays, adam: Adam | None = ADAM) -> set[str]:
    return set(Verdict(judged(ours, adam)).wrong)


# ---- what must pass ----------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(3, 13))
def test_an_equally_good_step_passes(seed: int) -> None:
    assert not wrong(run(noisy(seed)))


def test_without_the_update_rule_an_equally_good_step_would_not() -> None:
    """The rule is needed: where the gradient is almost zero, its rounding moves the variable."""
    assert any(wrong(run(noisy(seed)), adam=None) for seed in range(3, 13))


def test_a_sparse_gradient_squares_its_terms() -> None:
    """Keras adds the squares of the terms of one row: the second moment is not the sum's square."""
    exact, theirs, ours = run(gradients(), np.float64), run(noisy(2)), run(noisy(3))
    for arrays in (exact, theirs, ours):
        arrays["slot_002_v"] = arrays["slot_002_v"] * arrays["slot_002_v"].dtype.type(2)
        v = arrays["slot_002_v"]
        step = v.dtype.type(ADAM.scale) * arrays["slot_001_m"] / (np.sqrt(v) + ADAM.epsilon)
        arrays["variable_000"] = (initial()["weight_000"] - step).astype(v.dtype)
    states = after_one_step(Step(ours, exact), Step(theirs, exact), ADAM, initial())
    assert not Verdict(states).wrong
    assert states["slot_002_v"].own_update is None
    ours["variable_000"][TINY] += 1e-5  # a nearly zero gradient hides this from float64's alone
    states = after_one_step(Step(ours, exact), Step(theirs, exact), ADAM, initial())
    assert set(Verdict(states).wrong) == {"variable_000"}


# ---- mutants -----------------------------------------------------------------------------------
def scaled_gradients() -> Arrays:
    return run([1.5 * g for g in noisy(3)])


def one_scaled_gradient() -> Arrays:
    return run([g * (1.5 if i == 1 else 1.0) for i, g in enumerate(noisy(3))])


def dropped_update() -> Arrays:
    return run(noisy(3)) | {"variable_001": initial()["weight_001"]}


def stale_first_moment() -> Arrays:
    return run(noisy(3)) | {"slot_003_m": np.zeros(SHAPE, np.float32)}


def stale_second_moment() -> Arrays:
    return run(noisy(3)) | {"slot_004_v": np.zeros(SHAPE, np.float32)}


def swapped_gradients() -> Arrays:
    g = noisy(3)
    return run([g[1], g[0], g[2]])


def swapped_variables() -> Arrays:
    good = run(noisy(3))
    return good | {"variable_000": good["variable_001"], "variable_001": good["variable_000"]}


def epsilon_inside_the_root() -> Arrays:
    """sqrt(v + eps) for sqrt(v) + eps: only nearly zero gradients tell."""
    good = run(noisy(3))
    for i in range(COUNT):
        m, v = good[f"slot_{2 * i + 1:03d}_m"], good[f"slot_{2 * i + 2:03d}_v"]
        step = np.float32(ADAM.scale) * m / np.sqrt(v + np.float32(ADAM.epsilon**2))
        good[f"variable_{i:03d}"] = initial()[f"weight_{i:03d}"] - step
    return good


def one_wrong_element() -> Arrays:
    good = run(noisy(3))
    good["variable_002"][5, 7] += np.float32(1e-6)
    return good


def wrong_where_ill_conditioned() -> Arrays:
    """As far off as the gradient's rounding might move it, but not what its own slots say."""
    good = run(noisy(3))
    good["variable_000"][TINY] += np.float32(2e-6)
    return good


def wrong_small_second_moment() -> Arrays:
    """An element of v far below the array's root mean square."""
    good = run(noisy(3))
    good["slot_002_v"][TINY] *= 2
    return good


def biased_gradients() -> Arrays:
    """Every element off by a few units in the last place, in one direction."""
    return run([g * (1 + 24 * 2.0**-23) for g in gradients()])


EVERY = {f"variable_{i:03d}" for i in range(COUNT)}
MUTANTS: list[tuple[Callable[[], Arrays], set[str]]] = [
    (scaled_gradients, {f"gradient_{i:03d}" for i in range(COUNT)}),
    (one_scaled_gradient, {"gradient_001", "slot_003_m", "slot_004_v"}),
    (dropped_update, {"variable_001"}),
    (stale_first_moment, {"slot_003_m", "variable_001"}),
    (stale_second_moment, {"slot_004_v", "variable_001"}),
    (swapped_gradients, {"gradient_000", "gradient_001", "variable_000", "variable_001"}),
    (swapped_variables, {"variable_000", "variable_001"}),
    (epsilon_inside_the_root, EVERY),
    (one_wrong_element, {"variable_002"}),
    (wrong_where_ill_conditioned, {"variable_000"}),
    (wrong_small_second_moment, {"slot_002_v", "variable_000"}),
    (biased_gradients, {f"gradient_{i:03d}" for i in range(COUNT)}),
]


@pytest.mark.parametrize(("mutant", "shown"), MUTANTS, ids=lambda one: getattr(one, "__name__", ""))
def test_a_mutant_fails(mutant: Callable[[], Arrays], shown: set[str]) -> None:
    assert shown <= wrong(mutant())


# ---- decisions ---------------------------------------------------------------------------------
def test_turned_decisions_are_bounded() -> None:
    assert not Verdict({}, turned=1, decisions=100_000).wrong
    assert Verdict({}, turned=2, decisions=100_000).wrong.keys() == {"decisions"}


def test_a_step_that_is_the_frameworks_own_was_not_judged() -> None:
    assert Verdict({}, same=True).wrong.keys() == {"step"}


def test_each_run_is_judged_against_its_own_decisions() -> None:
    """A decision that fell differently moves whole gradients; forced, only rounding is left."""
    exact = run(gradients(), np.float64)
    turned = gradients()
    turned[0][3] += 1e-6
    moved = run(turned, np.float64)
    noise = [noise - plain for noise, plain in zip(noisy(3), gradients(), strict=True)]
    ours = run([g + off for g, off in zip(turned, noise, strict=True)])
    theirs = Step(run(noisy(2)), exact)
    free = after_one_step(Step(ours, exact), theirs, ADAM, initial())
    forced = after_one_step(Step(ours, moved), theirs, ADAM, initial())
    assert "gradient_000" in Verdict(free).wrong
    assert not Verdict(forced).wrong
    again = Step(run([1.5 * g for g in noisy(3)]), moved)
    assert Verdict(after_one_step(again, theirs, ADAM, initial())).wrong


def together(seed: int) -> list[np.ndarray]:
    """Gradients whose elements err together: a single rounding upstream, weighted."""
    random = np.random.default_rng(seed)
    return [g + 1e-8 * random.standard_normal() * (1 + 0.1 * g / 4e-3) for g in gradients()]


@pytest.mark.slow
def test_errors_of_one_rounding_are_drawn_again() -> None:
    exact = run(gradients(), np.float64)
    draws = [Step(run(together(seed)), exact) for seed in range(29, 34)]
    ours = [Step(run(together(seed)), exact) for seed in range(34, 64)]
    once = [Verdict(after_one_step(one, draws[0], ADAM, initial())).wrong for one in ours]
    again = least_accurate(draws)
    redrawn = [Verdict(after_one_step(one, again, ADAM, initial())).wrong for one in ours]
    assert sum(map(bool, redrawn)) < sum(map(bool, once)) > 0
    biased = [g + 2e-7 for g in together(34)]
    for gradient in (biased, [1.5 * g for g in together(34)]):
        mutant = Step(run(gradient), exact)
        assert set(Verdict(after_one_step(mutant, again, ADAM, initial())).wrong) >= {
            f"gradient_{i:03d}" for i in range(COUNT)
        }


def test_the_least_accurate_draw_is_chosen_by_array() -> None:
    exact = {"a": np.zeros(3), "b": np.zeros(3), "n": np.asarray(1), "e": np.zeros(0)}
    one = Step({**exact, "a": np.full(3, 2.0), "b": np.full(3, 1.0)}, exact)
    two = Step({**exact, "a": np.full(3, -1.0), "b": np.full(3, -3.0)}, exact)
    made = least_accurate([one, two])
    assert list(made.arrays) == list(exact)
    assert made.arrays["a"] is one.arrays["a"] and made.arrays["b"] is two.arrays["b"]


def test_a_start_an_ulp_away() -> None:
    given = {"w": np.array([0.0, 1.0, -3.0], np.float32), "i": np.asarray(7)}
    moved = ulp_away(given, 0)
    assert moved["i"] is given["i"] and moved["w"].dtype == np.float32 and moved["w"][0] == 0
    assert np.all(np.abs(moved["w"] - given["w"])[1:] <= np.spacing(np.abs(given["w"][1:])))
    assert np.all(moved["w"][1:] != given["w"][1:])


# ---- records that cannot be judged -------------------------------------------------------------
def test_other_arrays_are_an_error() -> None:
    ours = run(noisy(3))
    ours.pop("variable_000")
    with pytest.raises(ValueError, match="different arrays"):
        judged(ours)


@pytest.mark.parametrize("field", ["scale", "beta_1", "beta_2", "epsilon"])
def test_a_rule_that_is_not_the_runs_is_an_error(field: str) -> None:
    """Constants that do not explain the float64 run must not widen anything."""
    other = dataclasses.replace(ADAM, **{field: getattr(ADAM, field) * 0.9})
    with pytest.raises(ValueError, match="update with"):
        judged(run(noisy(3)), other)


def test_slots_in_another_order_are_an_error() -> None:
    exact = run(gradients(), np.float64)
    swapped = exact | {"slot_001_m": exact["slot_002_v"], "slot_002_v": exact["slot_001_m"] ** 2}
    with pytest.raises(ValueError, match="is not an update"):
        after_one_step(Step(exact, swapped), Step(exact, swapped), ADAM, initial())
    shapes = dict(initial(), weight_001=np.zeros(7, np.float32))
    with pytest.raises(ValueError, match="differ in shape"):
        updates.pairs(exact, shapes)
