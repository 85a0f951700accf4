"""One script run untouched and stitched: it must end alike, and print alike."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import lean
from tests.inject.jobs import python_of
from tests.jobs import judge as judges

RELATIVE = 1e-4
"""Of printed figures: sums in another order, several steps on."""


def same_end(
    script: str, *arguments: str, version: str = "2.21", folder: Path, columns: slice = slice(None)
) -> dict[str, Any]:
    """The stitched run's summary, after its exit code and the lines it printed (`columns` of each)
    have been held against the untouched run's, and a step was stitched."""
    command = [python_of(version), str(judges.SCRIPTS / script), *arguments]
    plain = subprocess.run(
        command, env=lean.environment(), capture_output=True, text=True, timeout=600
    )
    settings = {"STITCH_CONTROL": "0", "PYTHONPATH": str(judges.ROOT)}
    settings |= {"STITCH_CACHE": str(folder / "cache"), "STITCH_KEY": str(folder / "key")}
    stitch = [sys.executable, "-m", "stitchcore.cli", "run", "--wait", "--json", "--store"]
    stitched = subprocess.run(
        [*stitch, str(folder / "store"), "--", *command],
        env=lean.environment(**settings), capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert stitched.returncode == plain.returncode, stitched.stderr
    *printed, told = stitched.stdout.splitlines()
    expected = plain.stdout.splitlines()
    assert len(printed) == len(expected)
    for ours, theirs in zip(printed, expected, strict=True):
        alike(ours.split()[columns], theirs.split()[columns])
    summary: dict[str, Any] = json.loads(told)
    assert "stitched" in {step["status"] for step in summary["steps"]}, summary
    return summary


def alike(ours: list[str], theirs: list[str]) -> None:
    """Equal words; numbers as near as two right runs are."""
    assert len(ours) == len(theirs)
    for mine, wanted in zip(ours, theirs, strict=True):
        try:
            number = float(wanted)
        except ValueError:
            assert mine == wanted
        else:
            assert float(mine) == pytest.approx(number, rel=RELATIVE, abs=1e-6)
