"""Scripts through `stitch run`, judged by their untouched runs. Seconds belong to bench/jobs.py.

Runs are made once for each (script, optimizer, TensorFlow) and shared by the tests of a module; two
modules, so that two processes have work. The suite must stay short, so only LONG cases run 50 steps
here, two scripts run with SGD and three with TensorFlow 2.15: `python -m bench.job_state` judges
every script with both optimizers and both versions, to the end.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.jobs import judge as judges
from tests.jobs import state as states

SCRIPTS = (
    "mlp_function", "transformer_fit", "cnn_fit", "lstm_lm", "tf1_session", "recommender",
    "accumulate_cond", "fit_jit", "tf1_ref",
)  # fmt: skip
Case = tuple[str, str, str]
ADAM: tuple[Case, ...] = tuple((script, "adam", "2.21") for script in SCRIPTS)
OTHERS: tuple[Case, ...] = (
    *((script, "sgd", "2.21") for script in ("mlp_function", "transformer_fit")),
    *((script, "adam", "2.15") for script in ("transformer_fit", "tf1_session", "lstm_lm")),
)
LONG: tuple[Case, ...] = (("tf1_session", "adam", "2.21"),)
STEPS = 50
SHARE = {("transformer_fit", o, "2.21"): 0.95 for o in ("adam", "sgd")}
"""Least share of memory-intensive bytes in kernels of two operations or more; others 0.80."""


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
        plain = judges.untouched(job, base / "plain", steps, forked=not long)
        start = ["--checkpoint", str(plain.out / "initial.npz")]
        threads = judges.thread_counts(job, base, steps, start, (1,)) if long else []
        stitched = judges.stitched(job, base / "stitched", steps, base / "store", start)
    except judges.JobFailed as failure:
        return failure
    return Runs(job, plain, threads, stitched, base / "store")


Make = Callable[[Case], Runs]


@pytest.fixture(scope="session", name="runs")
def runs_of_session(tmp_path_factory: pytest.TempPathFactory) -> Make:
    folder = tmp_path_factory.mktemp("jobs")

    def make(case: Case) -> Runs:
        made = _attempt(folder, *case)
        if isinstance(made, Exception):
            raise made
        return made

    return make


def swapped(made: Runs) -> None:
    """Kernels were swapped in."""
    assert judges.stitched_steps(made.stitched), made.stitched.lines


def same_state(made: Runs) -> None:
    """Each array of the state is right after one step."""
    verdict = states.verdict(made.job, made.store.parent, made.plain, made.stitched)
    assert not verdict.wrong
    assert {"variable", "slot"} <= {name.split("_")[0] for name in verdict.states}


def same_first_losses(made: Runs) -> None:
    first = slice(judges.FIRST_STEPS)
    apart = judges.losses_apart(made.stitched.losses[first], made.plain.losses[first])
    assert apart <= judges.FIRST_TOLERANCE


def stitched_share(made: Runs, case: Case) -> None:
    """Most memory-intensive bytes are in kernels of two operations or more."""
    assert judges.bytes_share(made.store) >= SHARE.get(case, 0.80)
