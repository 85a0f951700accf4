"""What bench.outcomes holds a killed job's claim against: the job's own file of steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.outcomes_watch import BATCH, FIRST, Watched, mean_interval, truth

STEPS, SWAP = 400, 300
"""Of a job; the first of them that is stitched."""


def watched(folder: Path, times: list[float]) -> Watched:
    """A job whose steps took `times` seconds, on a processor that was always busy."""
    ends = 100.0 + np.cumsum(times)
    path = folder / "job.steps"
    np.concatenate([[len(ends)], ends, np.zeros(7)]).tofile(path)
    return Watched(path, [(100.0, 0.0), (float(ends[-1]), float(np.sum(times)))])


def test_the_truth_is_what_later_steps_would_have_taken_less_what_they_took(tmp_path: Path) -> None:
    """One in four original steps takes twice as long: their mean counts, not their median."""
    times = [0.02 if step % 4 else 0.04 for step in range(SWAP)] + [0.01] * (STEPS - SWAP)
    job = watched(tmp_path, times)
    swapped = float(job.ends()[SWAP - 1])
    found = truth(job, swapped, float(job.ends()[-1]), cores=2.0)
    assert found.steps == STEPS - SWAP
    assert found.middle == pytest.approx(2 * (STEPS - SWAP) * (0.025 - 0.01), rel=1e-2)
    assert found.low <= found.middle <= found.high
    assert found.processor == pytest.approx((STEPS - SWAP) * (0.025 - 0.01), rel=5e-2)
    half = truth(job, swapped, float(job.ends()[SWAP + 49]), cores=2.0)
    assert half.steps == 50 and half.middle == pytest.approx(found.middle / 2)


def test_an_interval_covers_the_mean_as_often_as_it_says() -> None:
    """Of steps with neighbours alike (a slow stretch lasts some ten steps): 95 % of 400 runs, less
    what 400 runs scatter and short batches miss."""
    covered = 0
    for seed in range(400):
        random = np.random.default_rng(seed)
        slow = np.repeat(random.random(90) < 0.2, 10)[: 900 - FIRST]
        mean, reach = mean_interval(0.01 + 0.005 * slow + 0.001 * random.random(len(slow)))
        covered += abs(mean - (0.01 + 0.001 + 0.0005)) <= reach
    assert 0.88 <= covered / 400 <= 0.98


def test_few_steps_bound_nothing() -> None:
    assert mean_interval(np.full(10 * BATCH - 1, 0.01))[1] == np.inf
