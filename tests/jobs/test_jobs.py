"""Every script through `stitch run`, judged by its untouched run. Seconds belong to bench/jobs.py.

Runs are made once for each (script, optimizer, TensorFlow) and shared by the tests. The suite must
stay short, so only LONG cases run 50 steps here and SGD runs for four scripts: `python -m
bench.jobs` runs every script with both optimizers to the end.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.jobs import judge as judges
from tests.jobs import state as states

SCRIPTS = (
    "mlp_function", "transformer_fit", "cnn_fit", "lstm_lm", "tf1_session", "recommender",
    "accumulate_cond", "fit_jit", "tf1_ref",
)  # fmt: skip
SCRIPTS_215 = ("mlp_function", "transformer_fit", "cnn_fit", "tf1_session")
CASES = [
    *((script, "adam", "2.21") for script in SCRIPTS),
    *((script, "sgd", "2.21") for script in SCRIPTS_215),
    *((script, "adam", "2.15") for script in SCRIPTS_215),
]
LONG = [("mlp_function", "adam", "2.21"), ("tf1_session", "adam", "2.21")]
STEPS = 50
SHARE = {("transformer_fit", o, "2.21"): 0.95 for o in ("adam", "sgd")}
"""Least share of memory-intensive bytes in kernels of two operations or more; others 0.80."""

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Runs:
    """One case's runs, all from the untouched run's initial variables."""

    job: judges.Job
    plain: judges.Record
    threads: list[judges.Record]  # one thread; of LONG cases
    stitched: judges.Record
    store: Path


def python_of(version: str) -> str:
    if version == "2.21":
        return sys.executable
    named = os.environ.get("STITCH_TEST_TF215_PYTHON", str(judges.ROOT / ".venv-tf215/bin/python"))
    if not Path(named).exists():
        pytest.skip(
            "no TensorFlow 2.15: run `make .venv-tf215/.installed` or set STITCH_TEST_TF215_PYTHON"
        )
    return named


@functools.cache
def _attempt(folder: Path, script: str, optimizer: str, version: str) -> Runs | Exception:
    job = judges.Job(script, optimizer, python_of(version))
    long = (script, optimizer, version) in LONG
    base = folder / f"{script}-{optimizer}-{version}"
    steps = STEPS if long else judges.FIRST_STEPS
    try:
        plain = judges.untouched(job, base / "plain", steps)
        start = ["--checkpoint", str(plain.out / "initial.npz")]
        threads = judges.thread_counts(job, base, steps, start, (1,)) if long else []
        stitched = judges.stitched(job, base / "stitched", steps, base / "store", start)
    except judges.JobFailed as failure:
        return failure
    return Runs(job, plain, threads, stitched, base / "store")


Make = Callable[[str, str, str], Runs]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Make:
    folder = tmp_path_factory.mktemp("jobs")

    def make(script: str, optimizer: str, version: str) -> Runs:
        made = _attempt(folder, script, optimizer, version)
        if isinstance(made, Exception):
            raise made
        return made

    return make


@pytest.mark.parametrize(("script", "optimizer", "version"), CASES)
def test_kernels_are_swapped_in(script: str, optimizer: str, version: str, runs: Make) -> None:
    made = runs(script, optimizer, version)
    assert judges.stitched_steps(made.stitched), made.stitched.lines


@pytest.mark.parametrize(("script", "optimizer", "version"), CASES)
def test_state_after_one_step(script: str, optimizer: str, version: str, runs: Make) -> None:
    made = runs(script, optimizer, version)
    verdict = states.verdict(made.job, made.store.parent, made.plain, made.stitched)
    assert not verdict.wrong
    assert {"variable", "slot"} <= {name.split("_")[0] for name in verdict.states}


def test_every_array_of_a_real_step_shows_a_small_change(runs: Make) -> None:
    """A mutant of a real record: each array by itself off by a factor that no loss would show."""
    made = runs("tf1_session", "adam", "2.21")
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


@pytest.mark.parametrize(("script", "optimizer", "version"), CASES)
def test_losses_of_first_steps(script: str, optimizer: str, version: str, runs: Make) -> None:
    made = runs(script, optimizer, version)
    first = slice(judges.FIRST_STEPS)
    apart = judges.losses_apart(made.stitched.losses[first], made.plain.losses[first])
    assert apart <= judges.FIRST_TOLERANCE


@pytest.mark.parametrize(("script", "optimizer", "version"), LONG)
def test_losses_of_whole_run(script: str, optimizer: str, version: str, runs: Make) -> None:
    made = runs(script, optimizer, version)
    assert len(made.plain.losses) == STEPS
    apart = judges.losses_apart(made.stitched.losses, made.plain.losses)
    assert apart <= judges.losses_bar([made.plain, *made.threads])


@pytest.mark.parametrize(("script", "optimizer", "version"), LONG)
def test_peak_memory(script: str, optimizer: str, version: str, runs: Make) -> None:
    made = runs(script, optimizer, version)
    assert made.stitched.peak_bytes <= judges.MEMORY_RATIO * made.plain.peak_bytes


@pytest.mark.parametrize(("script", "optimizer", "version"), CASES)
def test_share_of_bytes_stitched(script: str, optimizer: str, version: str, runs: Make) -> None:
    assert judges.bytes_share(runs(script, optimizer, version).store) >= SHARE.get(
        (script, optimizer, version), 0.80
    )
