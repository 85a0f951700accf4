"""Interleaved timing: ratios follow the work, intervals hold the truth."""

from __future__ import annotations

import numpy as np
import pytest

from stitchcore.verify.timing import LEAST_ROUNDS, compare, paired_ratio


def test_ratio_of_equal_distributions_is_one_within_its_interval() -> None:
    random = np.random.default_rng(1)
    left, right = random.lognormal(0, 0.1, (2, 200))
    ratio = paired_ratio(left, right)
    assert ratio.low <= 1 <= ratio.high
    assert ratio.low < ratio.value < ratio.high


def test_a_slower_contestant_is_seen() -> None:
    random = np.random.default_rng(2)
    base = random.lognormal(0, 0.05, 100)
    ratio = paired_ratio(base * 1.2, base * random.lognormal(0, 0.01, 100))
    assert ratio.low > 1.15


def test_compare_interleaves_and_counts() -> None:
    order: list[str] = []
    result = compare(
        {"a": lambda: order.append("a"), "b": lambda: order.append("b")},
        rounds=4,
        minimum_seconds=0.0,
    )
    assert order[4:] == ["a", "b"] * 4  # after two warm-up calls of each
    assert len(result.seconds["a"]) == 4
    assert result.median("a") > 0


@pytest.mark.parametrize(("after", "rounds"), [(0, LEAST_ROUNDS), (9, 2 * LEAST_ROUNDS), (99, 15)])
def test_what_is_settled_is_not_measured_further(after: int, rounds: int) -> None:
    """But never by fewer rounds than an interval says anything of."""
    result = compare(
        {"a": lambda: None, "b": lambda: None},
        minimum_seconds=0.0,
        settled=lambda so_far: len(so_far.seconds["a"]) >= after,
    )
    assert len(result.seconds["a"]) == len(result.seconds["b"]) == rounds


def test_nothing_to_compare_is_an_error() -> None:
    with pytest.raises(ValueError, match="no measurements"):
        paired_ratio([], [])
