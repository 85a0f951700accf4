"""The judge itself: it must see what losses hide, and forgive what float32 cannot help."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.jobs import judge as judges


def record(losses: list[float]) -> judges.Record:
    return judges.Record(Path("."), tuple(losses), (), 0)


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {f"variable_{i:03d}_w": random.standard_normal((64, 32)) for i in range(3)}


def rounded(arrays: dict[str, np.ndarray], ulps: float = 0.0) -> dict[str, np.ndarray]:
    return {name: (a * (1 + ulps * 2**-23)).astype(np.float32) for name, a in arrays.items()}


def test_float32_rounding_passes(arrays: dict[str, np.ndarray]) -> None:
    judged = judges.state_after_one_step(rounded(arrays, 1), rounded(arrays), arrays)
    assert all(one.passed and one.elementwise.informative for one in judged.values())


def test_a_wrong_gradient_fails(arrays: dict[str, np.ndarray]) -> None:
    ours = rounded(arrays)
    ours["variable_001_w"] = ours["variable_001_w"] * np.float32(1.5)
    judged = judges.state_after_one_step(ours, rounded(arrays), arrays)
    assert [name for name, one in judged.items() if not one.passed] == ["variable_001_w"]


def test_one_wrong_element_fails(arrays: dict[str, np.ndarray]) -> None:
    ours = rounded(arrays)
    ours["variable_002_w"][5, 7] += np.float32(1e-4)
    judged = judges.state_after_one_step(ours, rounded(arrays), arrays)
    assert not judged["variable_002_w"].passed


def test_a_small_bias_fails(arrays: dict[str, np.ndarray]) -> None:
    """Every element off by a few units in the last place: too small for the largest error alone."""
    theirs = rounded(arrays)
    judged = judges.state_after_one_step(rounded(arrays, 24), theirs, arrays)
    assert not any(one.passed for one in judged.values())


def test_other_arrays_are_an_error(arrays: dict[str, np.ndarray]) -> None:
    ours = rounded(arrays)
    ours.pop("variable_000_w")
    with pytest.raises(ValueError, match="different arrays"):
        judges.state_after_one_step(ours, rounded(arrays), arrays)


def test_losses_apart() -> None:
    assert judges.losses_apart([1.0, 2.0], [1.0, 2.0]) == 0.0
    assert judges.losses_apart([1.0, 2.0], [1.0, 2.02]) == pytest.approx(0.02 / 2.02)
    assert judges.losses_apart([1.0], [1.0, 2.0]) == float("inf")
    assert judges.losses_apart([], []) == float("inf")
    assert not judges.losses_apart([1.0, 1.0], [1.0, float("nan")]) <= 1e9  # nan passes no bar


def test_losses_bar_is_never_below_the_first_tolerance() -> None:
    same, other = record([1.0, 0.5]), record([1.0, 0.6])
    assert judges.losses_bar(same, same) == judges.FIRST_TOLERANCE
    assert judges.losses_bar(same, other) == pytest.approx(0.1 / 0.6)
