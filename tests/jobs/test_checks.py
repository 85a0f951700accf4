"""A step that fails on its data fails as the untouched one does, and leaves no variable changed.

The script's whole step is one kernel that checks labels and updates every variable.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import lean
from tests.jobs import judge as judges
from tests.waiting import RUN_SECONDS

SCRIPT = judges.SCRIPTS / "wrong_label.py"
WRONG = re.compile(
    r"Received a label value of (-?\d+) which is outside the valid range of \[0, 600\)"
)

pytestmark = pytest.mark.slow


def run(command: list[str], **extra: str) -> tuple[str, str]:
    done = subprocess.run(
        [*command, sys.executable, str(SCRIPT)],
        env=lean.environment(**extra), capture_output=True, text=True, timeout=RUN_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Any, Path]:
    """What the untouched run says, the stitched one, its summary, and the store."""
    pytest.importorskip("tensorflow", reason="no TensorFlow: pip install tensorflow-cpu")
    folder = tmp_path_factory.mktemp("checks")
    plain, _ = run([])
    command = [sys.executable, "-m", "stitchcore.cli", "run", "--wait", "--json", "--store"]
    settings = {"STITCH_CONTROL": "0", "PYTHONPATH": str(judges.ROOT)}
    settings |= {"STITCH_CACHE": str(folder / "cache"), "STITCH_KEY": str(folder / "key")}
    stitched, _ = run([*command, str(folder / "store"), "--"], **settings)
    *_, told, summary = stitched.splitlines()
    return json.loads(plain), json.loads(told), json.loads(summary), folder / "store"


def test_the_whole_step_is_stitched(runs: tuple[Any, Any, Any, Path]) -> None:
    plain, told, summary, _ = runs
    [step] = [step for step in summary["steps"] if step["status"] == "stitched"]
    assert step["kernels_after"] <= 2
    assert told["errors"] == plain["errors"], "told as of the user's operation, word for word"


def test_errors_are_tensorflows(runs: tuple[Any, Any, Any, Path]) -> None:
    plain, told, _, _ = runs
    ours, theirs = ([(kind, WRONG.findall(text)) for kind, text in side["errors"]]
                    for side in (told, plain))  # fmt: skip
    assert ours == theirs == [("InvalidArgumentError", ["-4"]), ("InvalidArgumentError", ["602"])]


def test_no_variable_moves_and_training_goes_on(runs: tuple[Any, Any, Any, Path]) -> None:
    plain, told, _, _ = runs
    assert told["moved"] == plain["moved"] == [[0.0] * 4] * 2
    assert len(told["losses"]) == 10
    np.testing.assert_allclose(told["losses"], plain["losses"], rtol=1e-5)


def test_the_datas_fault_does_not_disable_stitching(runs: tuple[Any, Any, Any, Path]) -> None:
    store = runs[3]
    assert not list((store / "breaker").glob("*"))
