"""What a job has truly saved, as seen from outside of it: by its user's own clock of steps, which
knows nothing of stitching, and by the kernel's account of the process.

The script writes when each step ended into mapped memory, so that SIGKILL loses none. Up to the
swap (the moment at which the gateway was told of it, by the gateway's clock) the process runs its
original: the mean of those steps is what a step takes. Every later step has saved that less what
it took, whatever the job says of it; the sum, times the cores, is the truth that its claim is held
against. Its interval is that of the mean, from the means of batches of BATCH consecutive steps
(Law and Kelton 2000, section 9.5.3), at 95 %: what the machine's other work did to later steps is
in none of it, so a busy machine makes both sides uncertain.

The job has one core to itself. On two a process's threads either share the work or, for seconds or
for all of its life, are kept on one core by Linux while the other idles (wake-up affinity: the same
processor seconds, twice the time), as untouched jobs are too; steps before the swap then tell
nothing of those after it.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

TICK = os.sysconf("SC_CLK_TCK")
FIRST = 5
"""Steps of a process that are traced, allocate and fill caches."""
BATCH = 20
"""Steps of a batch: neighbours are not independent, batches nearly are."""
EVERY = 0.25


@dataclass
class Watched:
    """A job's file of steps; `used` are (moment, processor seconds) of its process, as the kernel
    counts them. Moments by the monotonic clock."""

    path: Path
    used: list[tuple[float, float]] = field(default_factory=list)

    def look(self, pid: int) -> None:
        """From outside, while it lives."""
        with contextlib.suppress(OSError, IndexError):
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            self.used.append((time.monotonic(), (int(stat[11]) + int(stat[12])) / TICK))

    def stop(self) -> None:
        """Tells the script that its time is up."""
        np.memmap(self.path, dtype=np.float64, mode="r+")[-1] = 1.0

    def ends(self) -> NDArray[np.float64]:
        """When each step ended."""
        held = np.fromfile(self.path, dtype=np.float64)
        return held[1 : 1 + int(held[0])]


@dataclass(frozen=True)
class Truth:
    """Core-seconds saved up to a moment, with the interval; the steps since the swap, stitched and
    original; what the kernel says was saved of its processor seconds."""

    low: float
    middle: float
    high: float
    steps: int
    processor: float


def truth(watched: Watched, swapped: float, until: float, cores: float) -> Truth:
    """What the steps from `swapped` to `until` (monotonic seconds) have saved."""
    ends = watched.ends()
    times, moments = np.diff(ends)[FIRST:], ends[1 + FIRST :]
    before = times[moments <= swapped]
    after = times[(moments > swapped) & (moments <= until)]
    mean, reach = mean_interval(before)
    each = (mean - reach, mean, mean + reach)
    low, middle, high = (float(cores * (one * len(after) - after.sum())) for one in each)
    at, spent = np.array(watched.used).T
    first, swap, last = np.interp([moments[0], swapped, until], at, spent)
    processor = (swap - first) / len(before) * len(after) - (last - swap)
    return Truth(low, middle, high, len(after), float(processor))


def mean_interval(times: NDArray[np.float64]) -> tuple[float, float]:
    """The mean of a run's steps and half the width of its 95 % interval, by batch means; infinite
    below ten batches."""
    whole = len(times) // BATCH
    if whole < 10:
        return float(times.mean()), math.inf
    batches = times[len(times) - whole * BATCH :].reshape(whole, BATCH).mean(axis=1)
    return float(times.mean()), float(1.96 * batches.std(ddof=1) / math.sqrt(whole))
