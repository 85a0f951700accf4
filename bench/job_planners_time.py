"""The timing of `python -m bench.job_planners --time`: two planners' kernels of one job.

Twice. The regions that differ run beside each other in one process, A, B, A, B: their launches as
the job would thread them, what calling them from Python costs taken off and what the framework's
executor takes for a launch put on. All else of a step is the same code, so this is what the step
gains or loses, without the step's own noise. And whole runs in turn, A, B, B, A, each planner with
an artifact of its own: what the user sees, with the machine's noise. An artifact lacks the regions
that its worker found slower than the framework's; how many kernels both have is told, for what they
lack need not be the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.job_regions import Regions
from bench.jobs import step_seconds
from bench.record import processor
from stitchcore.compiler.regions import compile_regions, program
from stitchcore.compiler.stages import BuildOptions
from stitchcore.verify.inputs import arguments, integer_limit
from stitchcore.verify.regions import SYMBOL_SIZE, on_processor
from stitchcore.verify.timing import Ratio, compare, paired_ratio
from tests.jobs import judge as judges

ROUNDS = 41
ALL_ROUNDS = 3600.0
"""No limit in seconds: the rounds of all regions are added up, one by one."""

Planners = tuple[str, str]
Seconds = NDArray[np.float64]


@dataclass(frozen=True)
class Timing:
    """One planner against another; ratios above 1 mean that the other is faster.

    `regions` compares what differs, and `seconds` is what one step spends in it. `steps` are a
    step's seconds, the medians of whole runs, by pair of runs; `kernels` those that the artifacts
    of these runs launch."""

    seconds: tuple[float, float]
    regions: Ratio
    steps: tuple[tuple[float, float], ...] = ()
    kernels: tuple[int, int] | None = None
    machine: str = field(default_factory=processor)

    @property
    def ratio(self) -> Ratio | None:
        """Of whole steps."""
        first, other = ([pair[n] for pair in self.steps] for n in range(2))
        return paired_ratio(first, other) if self.steps else None


def timed(
    job: judges.Job, known: Timing | None, regions: Callable[[], Timing], runs: Runs
) -> Iterator[Timing]:
    """`known` with what it lacks, after each measurement. Raises JobFailed."""
    if known is None:
        known = regions()
        yield known
    lacking = range(len(known.steps), runs.pairs)
    if not lacking:
        return
    kernels = runs.artifacts(job)
    for pair in lacking:
        steps = (*known.steps, runs.pair(job, pair))
        known = replace(known, steps=steps, kernels=kernels)
        yield known


def regions_timed(found: Regions, keys: Sequence[str], planners: Planners, cache: Path) -> Timing:
    """The regions `keys` under both planners, each as often as it stands in the graphs."""
    sums = [np.zeros(ROUNDS), np.zeros(ROUNDS)]
    for key in keys:
        for total, seconds in zip(sums, _region(found, key, planners, cache), strict=True):
            total += found.uses[key] * seconds
    medians = (float(np.median(sums[0])), float(np.median(sums[1])))
    return Timing(medians, paired_ratio(sums[0], sums[1]))


def _region(found: Regions, key: str, planners: Planners, cache: Path) -> list[Seconds]:
    """Seconds of each round of region `key`, by planner. Raises JobFailed where one has no kernels
    for it."""
    module, device = found.modules[key], found.device
    bindings = dict.fromkeys(module.symbols, SYMBOL_SIZE)
    limit = integer_limit(module, bindings)
    given = arguments(module.entry.parameters, bindings, 0, "positive", limit)
    calls: dict[str, Callable[[], object]] = {}
    launches: dict[str, int] = {}
    with ThreadPoolExecutor(max_workers=found.threads) as pool:
        for planner in planners:
            made = compile_regions({key: module}, device, BuildOptions(planner, cache=cache))
            if key not in made.regions:
                raise judges.JobFailed(f"region {key} under {planner}: {made.refusals[0]}")
            runner = on_processor(made, {key: program(made, key, device)})[key]
            work, idle = runner.prepared(given, bindings, pool, found.threads)
            calls |= {planner: work, f"{planner} idle": idle}
            launches[planner] = runner.launches
        times = compare(calls, ROUNDS, limit_seconds=ALL_ROUNDS).seconds
    return [
        net(times[one], times[f"{one} idle"], launches[one] * device.launch_seconds)
        for one in planners
    ]


def net(work: Seconds, idle: Seconds, launching: float) -> Seconds:
    """Seconds of each round as in a job: without Python's calls, with the executor's."""
    return np.clip(work - idle, 0.0, None) + launching


@dataclass(frozen=True)
class Runs:
    """Whole runs of a job in `folder`, `steps` steps each, with an artifact of each planner."""

    folder: Path
    planners: Planners
    steps: int
    pairs: int

    def artifacts(self, job: judges.Job) -> tuple[int, int]:
        """Makes both, where they are not there yet: how many kernels each launches in a step."""
        first, other = (self._made(job, planner) for planner in self.planners)
        return first, other

    def _made(self, job: judges.Job, planner: str) -> int:
        self._run(job, planner, "cold")
        manifests = self._store(planner).glob("store/artifacts/*/manifest.json")
        return sum(json.loads(one.read_text())["expect"]["kernels_after"] for one in manifests)

    def pair(self, job: judges.Job, number: int) -> tuple[float, float]:
        """A step's seconds under both, in turn; every other pair begins with the other one."""
        order = self.planners if number % 2 == 0 else self.planners[::-1]
        taken = {planner: self._run(job, planner, str(number)) for planner in order}
        return taken[self.planners[0]], taken[self.planners[1]]

    def _run(self, job: judges.Job, planner: str, name: str) -> float:
        out, store = self.folder / f"{planner}-{name}", self._store(planner)
        record = judges.stitched(job, out, self.steps, store, (), {"STITCH_PLANNER": planner})
        if not judges.stitched_steps(record):
            raise judges.JobFailed(f"{planner}: not stitched: {'; '.join(record.lines)[:200]}")
        return step_seconds(record)

    def _store(self, planner: str) -> Path:
        return self.folder / f"store-{planner}"
