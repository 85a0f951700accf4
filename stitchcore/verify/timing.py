"""Interleaved timing: A, B, A, B, ... in one process, medians, and an interval for the ratio.

Machines are shared and drift, so only ratios of neighbouring measurements are trusted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BOOTSTRAP_SAMPLES = 2000

LEAST_ROUNDS = 6
"""Fewer tell nothing: each median of a sample may be its least or greatest ratio."""


@dataclass(frozen=True)
class Ratio:
    """Median of paired ratios with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class Comparison:
    """Seconds of each run, by contestant, in the order they were interleaved."""

    seconds: Mapping[str, NDArray[np.float64]]

    def median(self, name: str) -> float:
        """Median seconds of one run of `name`."""
        return float(np.median(self.seconds[name]))

    def ratio(self, numerator: str, denominator: str) -> Ratio:
        """How many times longer `numerator` takes than `denominator`."""
        return paired_ratio(self.seconds[numerator], self.seconds[denominator])


def paired_ratio(
    numerator: Sequence[float] | NDArray[np.float64],
    denominator: Sequence[float] | NDArray[np.float64],
    seed: int = 0,
) -> Ratio:
    """Median of element-wise ratios and its 95 % percentile-bootstrap interval (seconds, > 0)."""
    ratios = np.asarray(numerator, np.float64) / np.asarray(denominator, np.float64)
    if ratios.size == 0:
        raise ValueError("no measurements to compare")
    draws = np.random.default_rng(seed).integers(0, ratios.size, (BOOTSTRAP_SAMPLES, ratios.size))
    medians = np.median(ratios[draws], axis=1)
    low, high = np.percentile(medians, [2.5, 97.5])
    return Ratio(float(np.median(ratios)), float(low), float(high))


def compare(
    contestants: Mapping[str, Callable[[], object]],
    rounds: int = 15,
    minimum_seconds: float = 0.002,
    limit_seconds: float = 10.0,
    clock: Callable[[], float] = time.perf_counter,
    settled: Callable[[Comparison], bool] | None = None,
) -> Comparison:
    """Time each contestant `rounds` times in turn, after one warm-up of each.

    Calls shorter than `minimum_seconds` are repeated within a measurement and divided. Stops early,
    after at least three rounds, once `limit_seconds` have passed, and once further ones would
    change nothing (`settled`, which is asked every LEAST_ROUNDS: each look is a chance to err).
    `clock` may be the thread's own (time.thread_time) where a contestant is one thread's work:
    neighbours count less.
    """
    repeats = {name: _repeats(call, minimum_seconds) for name, call in contestants.items()}
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    began = time.perf_counter()
    for done in range(rounds):
        for name, call in contestants.items():
            start = clock()
            for _ in range(repeats[name]):
                call()
            seconds[name].append((clock() - start) / repeats[name])
        if done >= 2 and time.perf_counter() - began > limit_seconds:
            break
        if settled is not None and (done + 1) % LEAST_ROUNDS == 0:
            if settled(Comparison({name: np.asarray(values) for name, values in seconds.items()})):
                break
    return Comparison({name: np.asarray(values) for name, values in seconds.items()})


def _repeats(call: Callable[[], object], minimum_seconds: float) -> int:
    call()
    start = time.perf_counter()
    call()
    taken = max(time.perf_counter() - start, 1e-9)
    return max(1, min(1000, round(minimum_seconds / taken)))
