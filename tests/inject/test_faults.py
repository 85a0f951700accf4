"""An exception anywhere in the hook: the job's losses stay its own, bit for bit, and one line says.

The job runs with a copy of the job side in which one method of the hook raises.
"""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import pytest

from tests import tiers
from tests.inject import jobs
from tests.inject.conftest import Answer

SCRIPT, STEPS = "function_step.py", 30
INJECT = jobs.BOOTSTRAP.parent
METHODS = (
    "start", "choose", "_answer", "_program", "_hand_in", "_wait", "_instance", "_arm_graph",
    "after_first_call", "_tick", "_end",
)  # fmt: skip
RAISE = 'raise RuntimeError("a fault of the test")'

pytestmark = pytest.mark.slow


def broken(folder: Path, file: str, method: str, statement: str = RAISE) -> Path:
    """A copy of the job side with `statement` in a method, within the `try` of one that must not
    raise; returns its bootstrap folder."""
    copy = folder / "inject"
    shutil.copytree(INJECT, copy, ignore=shutil.ignore_patterns("__pycache__", "native"))
    path = copy / file
    lines = path.read_text().splitlines(keepends=True)
    (found,) = (
        one
        for one in ast.walk(ast.parse("".join(lines)))
        if isinstance(one, ast.FunctionDef) and one.name == method
    )
    tries = [one for one in found.body if isinstance(one, ast.Try)]
    place = (tries[0] if tries else found).body[0]
    lines.insert(place.lineno - 1, " " * place.col_offset + statement + "\n")
    path.write_text("".join(lines))
    return copy / "bootstrap"


@pytest.mark.parametrize(
    "method",
    tiers.nightly_but("start", "after_first_call", of=METHODS),
)
def test_a_fault_leaves_the_job_alone(
    method: str, native: Path, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = jobs.untouched("2.21", SCRIPT, STEPS)
    monkeypatch.setattr(jobs, "BOOTSTRAP", broken(tmp_path, "hook.py", method))
    wait = {"wait": "0.3"} if method == "_wait" else {}
    done = jobs.run(jobs.python_of("2.21"), SCRIPT, STEPS, store=store, **wait)
    assert done.code == 0 and tuple(done.losses) == plain
    assert len(done.lines) == 1, done.lines
    assert "hook_error: RuntimeError: a fault of the test" in done.lines[0]


def test_a_watcher_that_fails_takes_the_swap_back(
    native: Path,
    store: Path,
    answered: Answer,
    public_key: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody would compare the step any more, or see that it has survived."""
    answered("2.21", SCRIPT, "good")
    statement = f"if __import__('threading').current_thread().name == 'stitch': {RAISE}"
    monkeypatch.setattr(jobs, "BOOTSTRAP", broken(tmp_path, "step_monitor.py", "follow", statement))
    count = 100
    done = jobs.run(jobs.python_of("2.21"), SCRIPT, count, 0.02, store=store, public_key=public_key)
    assert done.code == 0 and len(done.lines) == 1 and "hook_error" in done.lines[0]
    assert done.event("swap_begin") and done.event("disabled")["reason"] == "hook_error"
    (steps,) = done.event("end")["steps"]
    # Half of the steps are stitched while both are compared, and nearly all after that.
    assert steps["stitched_steps"] < 0.4 * count


def test_no_step_is_swapped_without_a_watcher(
    native: Path,
    store: Path,
    answered: Answer,
    public_key: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = jobs.untouched("2.21", SCRIPT, STEPS)
    answered("2.21", SCRIPT, "good")
    monkeypatch.setattr(jobs, "BOOTSTRAP", broken(tmp_path, "hook.py", "_tick"))
    done = jobs.run(jobs.python_of("2.21"), SCRIPT, STEPS, store=store, public_key=public_key)
    assert done.code == 0 and tuple(done.losses) == plain
    assert "swap_begin" not in done.kinds()
    assert len(done.lines) == 1 and "hook_error" in done.lines[0]
