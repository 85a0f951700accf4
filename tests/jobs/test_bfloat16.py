"""A job in mixed bfloat16: what is stitched is as near to float64 as the untouched step is.

TensorFlow adds bfloat16 up in bfloat16, so the two do not agree on sums of a thousand terms, and
neither is the other's expectation: float64 from the same weights is.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import lean
from tests.jobs import judge as judges
from tests.jobs.cases import python_of
from tests.waiting import RUN_SECONDS

SCRIPT = judges.SCRIPTS / "mixer_bfloat16.py"
Array = np.ndarray[Any, np.dtype[np.float64]]

pytestmark = pytest.mark.slow


def gradients(folder: Path, policy: str, *before: str, **extra: str) -> tuple[list[Array], str]:
    out = folder / f"{policy}{len(before)}.npz"
    done = subprocess.run(
        [*before, python_of("2.21"), str(SCRIPT), policy, str(out)],
        env=lean.environment(**extra), capture_output=True, text=True, timeout=RUN_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with np.load(out) as saved:
        return [saved[name] for name in saved.files], done.stdout


def test_gradients_are_as_near_to_float64_as_the_untouched_ones(tmp_path: Path) -> None:
    exact, _ = gradients(tmp_path, "float64")
    plain, _ = gradients(tmp_path, "mixed_bfloat16")
    command = [python_of("2.21"), "-m", "stitchcore.cli", "run", "--wait", "--json", "--store"]
    settings = {"STITCH_CONTROL": "0", "PYTHONPATH": str(judges.ROOT)}
    settings |= {"STITCH_CACHE": str(tmp_path / "cache"), "STITCH_KEY": str(tmp_path / "key")}
    before = [*command, str(tmp_path / "store"), "--"]
    ours, told = gradients(tmp_path, "mixed_bfloat16", *before, **settings)
    [step] = json.loads(told.splitlines()[-1])["steps"]
    assert step["status"] == "stitched" and "wrong_result" not in step["refusals"], step
    assert step["kernels_after"] < step["kernels_before"] / 10, step

    def off(made: Array, right: Array) -> float:
        return float(np.sqrt(np.mean((made - right) ** 2) / np.mean(right**2)))

    errors = [
        (off(a, right), off(b, right)) for a, b, right in zip(ours, plain, exact, strict=True)
    ]
    assert all(mine < 1.25 * theirs for mine, theirs in errors), errors
    assert any(mine < 0.25 * theirs for mine, theirs in errors)  # sums, in float32
