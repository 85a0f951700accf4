"""Real jobs with Adam under TensorFlow 2.21, each script of tests/jobs/scripts."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.jobs import cases
from tests.jobs import judge as judges
from tests.jobs import state as states
from tests.jobs.cases import ADAM, LONG, STEPS, Case, Make

pytestmark = pytest.mark.slow
runs = cases.runs_of_session
KEPT = tuple(
    (script, "adam", "2.21") for script in ("mlp_function", "transformer_fit", "tf1_session")
)
each = pytest.mark.parametrize(
    "case",
    [case if case in KEPT else pytest.param(case, marks=pytest.mark.nightly) for case in ADAM],
    ids="-".join,
)
long = pytest.mark.parametrize("case", LONG, ids="-".join)


@each
def test_kernels_are_swapped_in(case: Case, runs: Make) -> None:
    cases.swapped(runs(case))


@each
def test_state_after_one_step(case: Case, runs: Make) -> None:
    cases.same_state(runs(case))


@each
def test_losses_of_first_steps(case: Case, runs: Make) -> None:
    cases.same_first_losses(runs(case))


@each
def test_share_of_bytes_stitched(case: Case, runs: Make) -> None:
    cases.stitched_share(runs(case), case)


def test_every_array_of_a_real_step_shows_a_small_change(runs: Make) -> None:
    """A mutant of a real record: each array by itself off by a factor that no loss would show."""
    made = runs(("tf1_session", "adam", "2.21"))
    arrays = made.stitched.arrays("step1")
    changed = {
        name: array * np.float32(1 + 1e-4) if array.dtype.kind == "f" and array.ndim else array
        for name, array in arrays.items()
    }
    mutant = made.store.parent / "mutant"
    mutant.mkdir()
    np.savez(mutant / "step1.npz", **changed)  # type: ignore[arg-type]
    record = dataclasses.replace(made.stitched, out=mutant)
    verdict = states.verdict(made.job, made.store.parent, made.plain, record)
    assert set(verdict.wrong) == {name for name in arrays if changed[name] is not arrays[name]}


@long
def test_losses_of_whole_run(case: Case, runs: Make) -> None:
    made = runs(case)
    assert len(made.plain.losses) == STEPS
    apart = judges.losses_apart(made.stitched.losses, made.plain.losses)
    assert apart <= judges.losses_bar([made.plain, *made.threads])


@long
def test_peak_memory(case: Case, runs: Make) -> None:
    made = runs(case)
    assert made.stitched.peak_bytes <= judges.MEMORY_RATIO * made.plain.peak_bytes
