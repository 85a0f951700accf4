"""How soon a swap is judged: the native schedule and the monitor, on steps of made-up lengths."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stitchcore.inject import client, crash_breaker, plugin, reasons, step_monitor, timer
from stitchcore.inject import settings as job_settings
from stitchcore.inject.program import (
    FIRST_BLOCK,
    ORIGINAL,
    ORIGINAL_BLOCK,
    SHORT_MEAN,
    STITCHED,
    Instance,
    Program,
)
from stitchcore.inject.swap_start import Swapper

CALLS_BETWEEN_LOOKS = 5
MOST_OF_BLOCK = 4
WITHIN = 100
"""Stitched steps that a verdict may take, where there is one to be had."""


class Job:
    """A step that takes `ratio` of its time when it is stitched, and varies by `noise`."""

    def __init__(
        self, library: plugin.Plugin, store: Path, ratio: float, noise: float, seed: int
    ) -> None:
        self.library, self.ratio, self.noise = library, ratio, noise
        self.usual, self.in_caller_thread = 20e6, ratio
        self.every, self.phase, self.called = 0, 0, 0  # a pause in every so many calls
        config = job_settings.read({"STITCH_STORE": str(store), "STITCH_SESSION": f"s{seed}"})
        self.told = store / "sessions" / config.session / "events.jsonl"
        events = client.Events(config.store, config.session, lambda kind, fields: None)
        self.monitor = step_monitor.StepMonitor(config, library, events, lambda *_: None)
        self.swapper = Swapper(config, library, events, lambda *_: None, lambda *_: True)
        known = Program(f"{seed:064x}")
        known.artifact, known.settled = client.Artifact({"key": "k"}, ()), True
        step = library.new_step()
        library.schedule(step, ORIGINAL, 0, 0)
        pointers = library.step_arm(step), library.step_begun(step)
        self.instance = Instance(known, step, ORIGINAL, *pointers, can_alternate=True)
        self.random = random.Random(seed)
        self.drift = 0.0

    def run(self, calls: int, slowed: float = 1.0) -> None:
        for number in range(calls):
            arm = self.instance.arm[0]
            self.drift = 0.98 * self.drift + self.random.gauss(0, 0.01)
            usual = self.usual * (self._ratio() if arm == STITCHED else 1.0)
            took = usual * slowed * (1 + self.drift) * self.random.lognormvariate(0, self.noise)
            self.called += 1
            if self.every and self.called % self.every == self.phase:
                took += 8 * self.usual
            self.library.record_call(self.instance.step, arm, int(took), on_gpu=False)
            if number % CALLS_BETWEEN_LOOKS == 0:
                self.monitor.follow(self.instance)

    def _ratio(self) -> float:
        here = self.library._library.stitch_runs_in_caller_thread(self.instance.step)
        return self.in_caller_thread if here else self.ratio

    def swap(self) -> None:
        self.instance.program.swapped = True
        self.library.schedule(self.instance.step, STITCHED, ORIGINAL_BLOCK, FIRST_BLOCK)
        self.library.stretch(self.instance.step, SHORT_MEAN, self.random.getrandbits(62) + 1)

    def until_judged(self) -> int:
        """Stitched calls until the verdict; more than WITHIN: there was none by then."""
        while self.stitched <= WITHIN and self.instance.decided is None:
            self.run(CALLS_BETWEEN_LOOKS)
        return self.stitched

    @property
    def stitched(self) -> int:
        return self.library.passes(self.instance.step, STITCHED)


def test_a_clear_gain_is_seen_at_once(library: plugin.Plugin, tmp_path: Path) -> None:
    job = Job(library, tmp_path, ratio=0.8, noise=0.02, seed=1)
    job.swap()
    assert job.until_judged() <= 36 and job.instance.decided is True


@pytest.mark.parametrize(("ratio", "noise"), [(0.5, 0.02), (0.9, 0.1)])
def test_what_is_kept_runs_its_original_seldom(
    library: plugin.Plugin, tmp_path: Path, ratio: float, noise: float
) -> None:
    """Whether the short blocks or the longer ones brought the verdict."""
    job = Job(library, tmp_path, ratio, noise, seed=1)
    job.swap()
    job.until_judged()
    assert job.instance.decided
    job.run(10)  # the block that was due
    before = [library.calls(job.instance.step, arm) for arm in (ORIGINAL, STITCHED)]
    job.run(2000)
    after = [library.calls(job.instance.step, arm) for arm in (ORIGINAL, STITCHED)]
    original, stitched = (b - a for a, b in zip(before, after, strict=True))
    assert original <= 0.02 * stitched


def test_blocks_are_compared_when_one_has_ended(
    library: plugin.Plugin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not at each look: the job's Python waits meanwhile."""
    job = Job(library, tmp_path, ratio=0.5, noise=0.02, seed=1)
    job.swap()
    job.until_judged()
    compare, compared = timer.compare, []

    def counted(done: Sequence[plugin.Interval]) -> timer.Comparison | None:
        compared.append(done[-1].block)
        return compare(done)

    monkeypatch.setattr(timer, "compare", counted)
    job.run(2000)
    assert compared and sorted(set(compared)) == compared, "each block once"


@pytest.mark.slow
def test_a_gain_among_noise_is_seen_within_a_hundred_steps(
    library: plugin.Plugin, tmp_path: Path
) -> None:
    """A tenth, of steps that vary by as much."""
    jobs = [Job(library, tmp_path, ratio=0.9, noise=0.1, seed=seed) for seed in range(60)]
    for job in jobs:
        job.swap()
        job.until_judged()
    kept = [job for job in jobs if job.instance.decided is True]
    assert len(kept) >= 54
    assert all(job.instance.decided is not False for job in jobs)


def test_of_no_difference_nothing_is_said_too_often(library: plugin.Plugin, tmp_path: Path) -> None:
    """The interval's 95 %, though it is looked at again and again."""
    jobs = [Job(library, tmp_path, ratio=1.0, noise=0.1, seed=seed) for seed in range(60)]
    for job in jobs:
        job.swap()
        job.until_judged()
        assert job.instance.comparison is not None
        assert job.instance.comparison.pairs >= timer.MINIMUM_PAIRS
    assert sum(job.instance.decided is not None for job in jobs) <= 6


@pytest.mark.parametrize("every", [3, 4, 6, 8, 10, 12])
def test_what_a_job_does_now_and_then_is_neither_arms(
    library: plugin.Plugin, tmp_path: Path, every: int
) -> None:
    """An epoch's end in every so many calls, whichever: with equal blocks one arm's each time."""
    for ratio in (0.8, 1.2):
        verdicts = []
        for phase in range(every):
            job = Job(library, tmp_path, ratio, noise=0.03, seed=phase)
            job.every, job.phase = every, phase
            job.swap()
            job.until_judged()
            verdicts.append(job.instance.decided)
        assert (ratio > 1) not in verdicts, "none is wrong"
        assert verdicts.count(None) <= 1


def test_pauses_that_are_the_stitched_steps_own_count() -> None:
    """Garbage that they leave, and is picked up now and then; one alone is chance."""
    steps = [plugin.Interval(1000, n // 3 % 2, n % 3, n // 3, 1) for n in range(60)]
    own = [step._replace(nanoseconds=9000 if step.block % 4 == 1 else 1000) for step in steps]
    assert timer.pause(timer.blocks(own)) == float("inf")
    chance = [step._replace(nanoseconds=9000 if step.block == 9 else 1000) for step in steps]
    assert timer.pause(timer.blocks(chance)) == timer.PAUSE * 1000
    jobs = [step._replace(nanoseconds=9000 if step.block % 8 < 2 else 1000) for step in steps]
    assert timer.pause(timer.blocks(jobs)) < 9000, "original ones have them as often"


def test_what_the_steps_beside_the_compiler_took_is_told(
    library: plugin.Plugin, tmp_path: Path
) -> None:
    job = Job(library, tmp_path, ratio=0.8, noise=0.01, seed=1)
    job.run(40, slowed=1.5)
    job.instance.swapped_late = True
    job.swap()
    job.run(100)
    job.monitor.report_savings([job.instance])
    (said,) = [
        event
        for event in map(json.loads, job.told.read_text().splitlines())
        if event["type"] == "savings"
    ]
    assert said["beside_steps"] == 40 and said["beside_ns"] == pytest.approx(30e6, rel=0.2)
    assert said["baseline_ns"] == pytest.approx(20e6, rel=0.2)


@dataclass
class Failing:
    """A plug-in of which kernels have failed, and of which each step has made `calls` passes."""

    calls: int
    told: list[plugin.Failure]

    def failures(self) -> list[plugin.Failure]:
        return self.told

    def passes(self, step: int, arm: int) -> int:
        return self.calls


KEY = "abcdefabcdef"


@pytest.fixture
def failing(tmp_path: Path) -> Callable[..., tuple[list[step_monitor.Fault], Program]]:
    """What the monitor finds of a step of two regions, of one kernel, and the step's program."""

    def found(calls: int, *failures: plugin.Failure) -> tuple[list[step_monitor.Fault], Program]:
        config = job_settings.read({"STITCH_STORE": str(tmp_path), "STITCH_SESSION": "s"})
        native: Any = Failing(calls, list(failures))
        events = client.Events(config.store, config.session, lambda kind, fields: None)
        monitor = step_monitor.StepMonitor(config, native, events, lambda *_: None)
        program = Program("d" * 64)
        regions = [{"name": name, "add": [{"name": f"{name}/k"}]} for name in ("r1", "r2")]
        program.artifact = client.Artifact({"key": KEY, "patch": {"regions": regions}}, ())
        program.kernels = frozenset(("kernel",))
        instance = Instance(program, 0, ORIGINAL, None, None, can_alternate=True)
        assert monitor.charge([program]) == []  # no kernel's own fault
        faults = monitor.faults([program], [instance])
        assert monitor.faults([program], [instance]) == []  # told once
        return faults, program

    return found


def unfit(region: str, times: int) -> plugin.Failure:
    node = f"call/stitch/{KEY}/{region}/k"  # of a function that was put into another
    return plugin.Failure("kernel", node, f"{plugin.GUARD}input 0 has another shape", times)


def test_only_the_region_that_does_not_fit_is_left_out(
    failing: Callable[..., tuple[list[step_monitor.Fault], Program]],
) -> None:
    """The other one has the same kernel, and fits."""
    [fault], program = failing(100, unfit("r2", 50))
    assert (fault.region, fault.reason, fault.lasting) == ("r2", reasons.GUARD_FAILED, True)
    assert program.left_out == {"r2": reasons.GUARD_FAILED} and program.failure is None


def test_what_fits_in_most_calls_stays_and_is_told(
    failing: Callable[..., tuple[list[step_monitor.Fault], Program]],
) -> None:
    [fault], program = failing(100, unfit("r2", 49), unfit("r1", 7))
    assert not fault.lasting and program.left_out == {}


def test_a_region_that_did_not_fit_may_be_found_wrong(
    failing: Callable[..., tuple[list[step_monitor.Fault], Program]], tmp_path: Path
) -> None:
    """And is left out at the next start too, as what did not fit is not."""
    wrong = plugin.Failure("kernel", f"stitch/{KEY}/r1/k", f"{plugin.WRONG}2 instead of 1", 1)
    faults, program = failing(
        10, unfit("r1", 1), unfit("r2", 10), wrong._replace(node=unfit("r1", 1).node)
    )
    assert program.left_out == {"r1": reasons.WRONG_RESULT, "r2": reasons.GUARD_FAILED}
    assert [fault.lasting for fault in faults] == [True, True]
    known = crash_breaker.left_out(str(tmp_path), "d" * 64, KEY)
    assert known == {"r1": "2 instead of 1"}


def in_turns(library: plugin.Plugin, store: Path, here: float, there: float, seed: int = 1) -> Job:
    """A job whose stitched steps take `here` of their time in the caller's thread, `there` in the
    pool, and run in turn in both."""
    job = Job(library, store, there, noise=0.05, seed=seed)
    job.in_caller_thread, job.instance.place = here, plugin.IN_TURNS
    library.place(job.instance.step, plugin.IN_TURNS)
    job.swap()
    return job


@pytest.mark.parametrize("every", [4, 8, 12])
def test_a_place_is_chosen_beside_what_a_job_does_now_and_then(
    library: plugin.Plugin, tmp_path: Path, every: int
) -> None:
    """With equal blocks it was always one place's, the wrong one in half of the cases."""
    places = []
    for seed in range(3):
        for phase in range(every):
            job = in_turns(library, tmp_path, 0.7, 0.8, seed=13 * seed + phase)
            job.every, job.phase = every, phase
            job.until_judged()
            places.append(job.instance.place)
    assert places.count(plugin.CALLER_THREAD) >= 0.85 * len(places)
    assert places.count(plugin.POOL) <= 0.1 * len(places)


@pytest.mark.parametrize(("here", "there"), [(0.7, 0.8), (0.8, 0.7), (0.8, 1.6), (1.6, 0.8)])
def test_a_step_runs_where_it_is_quicker(
    library: plugin.Plugin, tmp_path: Path, here: float, there: float
) -> None:
    job = in_turns(library, tmp_path, here, there)
    while job.instance.place == plugin.IN_TURNS and job.stitched <= WITHIN:
        job.run(1)
    chosen = plugin.CALLER_THREAD if here < there else plugin.POOL
    assert job.instance.place == chosen
    assert job.stitched <= 2 * MOST_OF_BLOCK * (timer.PLACE_PAIRS + 2)
    job.until_judged()
    assert job.instance.decided is True and job.stitched <= WITHIN
    assert job.instance.comparison is not None
    assert job.instance.comparison.ratio == pytest.approx(min(here, there), rel=0.06)
    [said] = events(job, "executor")
    assert said["caller_thread"] == (here < there)
    assert said["caller_ns"] / said["pool_ns"] == pytest.approx(here / there, rel=0.15)


def test_what_is_slower_in_both_goes_back(library: plugin.Plugin, tmp_path: Path) -> None:
    """Nothing more is waited for where the pairs of the quicker show it."""
    job = in_turns(library, tmp_path, 1.5, 1.6)
    assert job.until_judged() <= 2 * MOST_OF_BLOCK * (timer.PLACE_PAIRS + 2) + CALLS_BETWEEN_LOOKS
    assert job.instance.program.reason == reasons.SLOWER


def test_long_steps_stay_tensorflows(library: plugin.Plugin, tmp_path: Path) -> None:
    job = in_turns(library, tmp_path, 0.7, 0.8)
    job.usual = 60e6
    assert job.until_judged() <= WITHIN // 2 and job.instance.decided is True
    assert job.instance.place == plugin.POOL
    [said] = events(job, "executor")
    assert said["detail"] == "its steps are long"


def test_of_two_places_alike_nothing_is_said_too_often(
    library: plugin.Plugin, tmp_path: Path
) -> None:
    """Though the pairs by which one of them is chosen count."""
    jobs = [in_turns(library, tmp_path, 1.0, 1.0, seed) for seed in range(60)]
    for job in jobs:
        job.until_judged()
    assert sum(job.instance.decided is not None for job in jobs) <= 6


@given(st.integers(0, 1), st.lists(st.integers(1, 4), min_size=1, max_size=12))
def test_blocks_tell_where_they_ran(library: plugin.Plugin, first: int, lengths: list[int]) -> None:
    """Whatever the lengths of blocks, and whichever arm begins."""
    step = library.new_step()
    library.place(step, plugin.IN_TURNS)
    runs_here = library._library.stitch_runs_in_caller_thread
    ran: dict[int, bool] = {}
    for number, length in enumerate(lengths):
        arm = (first + number) % 2
        for _ in range(length):
            here = bool(runs_here(step))
            library.record_call(step, arm, 1, on_gpu=False)
            if arm == STITCHED:
                assert ran.setdefault(number, here) == here, "a block is of one place"
    _, intervals = library.read(step, 0)
    for here in (False, True):
        stitched = {i.block - 1 for i in timer.placed(intervals, here) if i.arm == STITCHED}
        assert stitched == {number for number, place in ran.items() if place == here}
        original = {i.block for i in timer.placed(intervals, here) if i.arm == ORIGINAL}
        assert original >= {number for number in stitched if number > 0}
    in_order = [place for _, place in sorted(ran.items())]
    assert all(first != second for first, second in pairwise(in_order))
    for place in (plugin.POOL, plugin.CALLER_THREAD):
        library.place(step, place)
        assert bool(runs_here(step)) == (place == plugin.CALLER_THREAD)


def events(job: Job, kind: str) -> list[dict[str, Any]]:
    told = [json.loads(line) for line in job.told.read_text().splitlines()]
    return [event for event in told if event["type"] == kind]
