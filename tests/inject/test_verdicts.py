"""Verdicts of earlier starts: what is remembered, when it is relied on, and how steps then run."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stitchcore.inject import plugin, reasons, swap_start, timer, verdicts
from stitchcore.inject.program import ORIGINAL, STITCHED
from tests.inject.test_verdict import Job, events

FASTER = timer.Comparison(pairs=9, original=2e6, ratio=0.7, low=0.6, high=0.8, least=0.5)
HERE = verdicts.circumstances("key", ())
FOUND = verdicts.Verdict("s1", FASTER, plugin.CALLER_THREAD)
GUARD = timer.SLOWER


def relied_on(store: Path, holds_for: dict[str, Any] = HERE, guard: float = GUARD) -> Any:
    return verdicts.rely_on(str(store), "d", holds_for, guard)


def remember(store: Path, comparison: timer.Comparison = FASTER) -> None:
    found = dataclasses.replace(FOUND, comparison=comparison)
    verdicts.remember(str(store), "d", HERE, found, GUARD)


def test_what_was_faster_is_relied_on(tmp_path: Path) -> None:
    assert relied_on(tmp_path) is None
    remember(tmp_path)
    assert relied_on(tmp_path) == dataclasses.replace(FOUND, starts=1)
    assert relied_on(tmp_path) == dataclasses.replace(FOUND, starts=2)
    verdicts.forget(str(tmp_path), "d")
    assert relied_on(tmp_path) is None


def test_under_other_circumstances_it_is_not(tmp_path: Path) -> None:
    remember(tmp_path)
    cores = [HERE["processors"][0], HERE["processors"][1] + 1]
    for other in (
        verdicts.circumstances("other artifact", ()),
        verdicts.circumstances("key", ("region",)),
        {**HERE, "processors": cores},
    ):
        assert relied_on(tmp_path, other) is None
    assert relied_on(tmp_path, guard=0.75) is None, "it would be rolled back"
    assert relied_on(tmp_path) is not None


@pytest.mark.parametrize(
    "comparison",
    [
        dataclasses.replace(FASTER, ratio=0.99, high=1.01),
        dataclasses.replace(FASTER, pairs=timer.ENOUGH_PAIRS, ratio=1.0, high=1.01),
        dataclasses.replace(FASTER, pairs=5, low=0.0, high=math.inf),
    ],
)
def test_what_is_not_shown_to_be_faster_is_compared_anew(
    tmp_path: Path, comparison: timer.Comparison
) -> None:
    remember(tmp_path)
    remember(tmp_path, comparison)
    assert relied_on(tmp_path) is None


def test_a_start_in_ten_compares_at_once(tmp_path: Path) -> None:
    remember(tmp_path)
    waits = [relied_on(tmp_path).after(0.01) for _ in range(20)]
    assert waits == [10.0] * 9 + [0.0] + [10.0] * 9 + [0.0]
    remember(tmp_path)
    assert relied_on(tmp_path).after(0.5) == pytest.approx(0.2), "as many as the user gives to it"


def test_a_store_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / verdicts.FOLDER).write_text("no folder")
    remember(tmp_path)
    verdicts.forget(str(tmp_path), "d")
    assert relied_on(tmp_path) is None


NUMBERS = st.none() | st.integers() | st.floats() | st.text(max_size=3)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(st.sampled_from([f.name for f in dataclasses.fields(FASTER)]), NUMBERS),
    st.dictionaries(st.sampled_from(["place", "starts", "session", "comparison"]), NUMBERS),
)
def test_a_damaged_record_is_none(
    tmp_path: Path, figures: dict[str, Any], others: dict[str, Any]
) -> None:
    """Or a verdict of which all figures are numbers that a summary can tell."""
    told = {**dataclasses.asdict(FOUND), "holds_for": HERE}
    told = {**told, "comparison": {**told["comparison"], **figures}, **others}
    os.makedirs(tmp_path / verdicts.FOLDER, exist_ok=True)
    (tmp_path / verdicts.FOLDER / "d.json").write_text(json.dumps(told))
    known = relied_on(tmp_path)
    if known is not None:
        numbers = dataclasses.astuple(known.comparison)
        assert all(math.isfinite(number) and number > 0 for number in numbers)
        assert known.comparison.high < 1.0 and known.place in (None, 0, 1)


# ---- steps ---------------------------------------------------------------------------------------
def calls(job: Job) -> list[int]:
    return [job.library.calls(job.instance.step, arm) for arm in (ORIGINAL, STITCHED)]


def known_before(job: Job, earlier: verdicts.Verdict = FOUND) -> None:
    """It begins as a step does of which an earlier start has found so."""
    program = job.instance.program
    assert program.artifact is not None
    holds_for = verdicts.circumstances(program.artifact.key, ())
    store = job.monitor._config.store
    verdicts.remember(store, program.digest, holds_for, earlier, GUARD)
    job.swapper.look_back(program)
    program.swapped, job.instance.first_arm = True, STITCHED
    job.swapper.start(job.instance)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(swap_start.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize("place", [None, plugin.POOL, plugin.CALLER_THREAD])
def test_a_step_that_was_faster_begins_stitched(
    library: plugin.Plugin, tmp_path: Path, clock: list[float], place: int | None
) -> None:
    job = Job(library, tmp_path, ratio=0.7, noise=0.02, seed=1)
    job.in_caller_thread = 0.7
    known_before(job, dataclasses.replace(FOUND, place=place))
    job.run(200)
    job.swapper.compare(job.instance)
    assert calls(job) == [0, 200] and job.instance.decided is None
    assert job.instance.place == place
    here = library._library.stitch_runs_in_caller_thread(job.instance.step)
    assert bool(here) == (place == plugin.CALLER_THREAD)
    job.monitor.report_savings([job.instance])
    [said] = events(job, "savings")
    assert said["measured_in"] == "s1" and said["steps"] == 200
    assert said["interval"] == [0.6, 0.8] and said["pairs"] == 9


def compared_later(library: plugin.Plugin, store: Path, clock: list[float], ratio: float) -> Job:
    """A job that relied on an earlier verdict for fifty steps, and whose step is judged then."""
    job = Job(library, store, ratio, noise=0.02, seed=1)
    known_before(job, dataclasses.replace(FOUND, place=None))
    job.run(50)
    clock[0] += verdicts.COMPARING / 0.01
    job.swapper.compare(job.instance)
    job.until_judged()
    job.monitor.report_savings([job.instance])
    assert "measured_in" not in events(job, "savings")[-1], "by this run"
    return job


def test_it_is_compared_after_a_while_and_remembered_anew(
    library: plugin.Plugin, tmp_path: Path, clock: list[float]
) -> None:
    job = compared_later(library, tmp_path, clock, 0.9)
    original, stitched = calls(job)
    assert job.instance.decided is True and 0 < original <= stitched - 50
    path = tmp_path / verdicts.FOLDER / f"{job.instance.program.digest}.json"
    record = json.loads(path.read_text())
    assert record["session"] == job.monitor._config.session and record["starts"] == 0
    assert record["comparison"]["ratio"] == pytest.approx(0.9, rel=0.05)


def test_what_is_not_faster_any_more_goes_back_and_is_forgotten(
    library: plugin.Plugin, tmp_path: Path, clock: list[float]
) -> None:
    job = compared_later(library, tmp_path, clock, 1.4)
    assert job.instance.program.reason == reasons.SLOWER
    assert not (tmp_path / verdicts.FOLDER / f"{job.instance.program.digest}.json").exists()


@pytest.mark.parametrize("setting", ["baseline", "joined", "gpu", "late", "control"])
def test_where_this_run_is_to_compare_nothing_is_looked_up(
    library: plugin.Plugin, tmp_path: Path, setting: str
) -> None:
    job = Job(library, tmp_path, ratio=0.7, noise=0.02, seed=1)
    program = job.instance.program
    told: dict[str, Any] = {"baseline": {"baseline": 50}, "control": {"control": 0.0}}
    job.swapper._config = dataclasses.replace(job.swapper._config, **told.get(setting, {}))
    program.joined = setting == "joined"
    program.target = "sm_90" if setting == "gpu" else ""
    program.refused_late = reasons.KERNEL_RANDOM_STATE if setting == "late" else None
    holds_for = verdicts.circumstances("k", ())
    verdicts.remember(str(tmp_path), program.digest, holds_for, FOUND, GUARD)
    job.swapper.look_back(program)
    assert program.earlier is None
