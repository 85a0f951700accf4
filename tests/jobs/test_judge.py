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


def test_drift_compares_a_typical_stitched_run_with_thread_counts_and_float64() -> None:
    def runs(*moved: float) -> list[judges.Record]:
        return [record([1.0, 1.0 + one]) for one in moved]

    threads, exact = runs(0.0, 0.01, 0.02, 0.03), record([1.0, 1.01])
    alike = judges.drift(threads, threads, exact)
    assert alike.holds and alike.apart <= alike.quartile < alike.largest < 0.03
    assert not judges.drift(runs(0.05, 0.06, 0.07), threads, exact).holds, "far from both"
    beside = judges.drift(runs(0.04, 0.04), threads, exact)
    assert beside.apart < beside.largest and not beside.holds, "farther from exact than others"
    parted = judges.drift(runs(0.05, 0.05), threads, record([1.0, 1.05]))
    assert parted.exact == 0.0 and not parted.holds, "exact, and no change of threads does that"
    same = judges.drift(threads[:1], threads[:1] * 2, threads[0])
    assert same == judges.Drift(0.0, *[judges.FIRST_TOLERANCE] * 2, 0.0, judges.FIRST_TOLERANCE)
    assert not judges.drift(runs(float("nan")), threads, exact).holds
    assert not judges.drift(threads, threads, record([1.0, float("nan")])).holds
