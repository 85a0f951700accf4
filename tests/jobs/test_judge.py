"""The judging of losses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs import judge as judges


def record(losses: list[float]) -> judges.Record:
    return judges.Record(Path("."), tuple(losses), (), 0)


def test_losses_apart() -> None:
    assert judges.losses_apart([1.0, 2.0], [1.0, 2.0]) == 0.0
    assert judges.losses_apart([1.0, 2.0], [1.0, 2.02]) == pytest.approx(0.02 / 2.02)
    assert judges.losses_apart([1.0], [1.0, 2.0]) == float("inf")
    assert judges.losses_apart([], []) == float("inf")
    assert not judges.losses_apart([1.0, 1.0], [1.0, float("nan")]) <= 1e9  # nan passes no bar


def test_losses_bar_is_never_below_the_first_tolerance() -> None:
    same, other, third = record([1.0, 0.5]), record([1.0, 0.6]), record([1.0, 0.45])
    assert judges.losses_bar([same, same]) == judges.FIRST_TOLERANCE
    assert judges.losses_bar([same, other]) == pytest.approx(0.1 / 0.6)
    assert judges.losses_bar([same, other, third]) == pytest.approx(0.15 / 0.6)


def test_drift_compares_a_typical_stitched_run_with_typical_thread_counts() -> None:
    threads = [record([1.0, 1.0 + step]) for step in (0.0, 0.01, 0.02, 0.03)]
    typical, bar = judges.drift(threads, threads)
    assert typical <= bar < 0.03  # stricter than the largest pair
    moved = [record([1.0, one.losses[1] + 0.05]) for one in threads]
    typical, same = judges.drift(moved, threads)
    assert same == bar and typical > bar
    assert judges.drift(threads[:1], threads[:1] * 2) == (0.0, judges.FIRST_TOLERANCE)
    assert not judges.drift([record([1.0, float("nan")])], threads)[0] <= 1e9
