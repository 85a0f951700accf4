"""One program run untouched and stitched: it must end alike, and print alike."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests import lean
from tests.inject.jobs import python_of
from tests.jobs import judge as judges
from tests.waiting import RUN_SECONDS

RELATIVE, ABSOLUTE = 1e-4, 1e-6
"""Of printed figures: sums in another order, several steps on."""


def same_end(
    program: Path,
    *arguments: str,
    version: str = "2.21",
    folder: Path,
    columns: slice = slice(None),
    **settings: str,
) -> dict[str, Any]:
    """The stitched run's summary, after its exit code and the lines it printed (`columns` of each)
    have been held against the untouched run's, and a step was stitched."""
    command = [python_of(version), str(program), *arguments]
    plain = subprocess.run(
        command, env=lean.environment(), capture_output=True, text=True, timeout=RUN_SECONDS
    )
    settings |= {"PYTHONPATH": str(judges.ROOT)}
    settings |= {"STITCH_CACHE": str(folder / "cache"), "STITCH_KEY": str(folder / "key")}
    stitch = [sys.executable, "-m", "stitchcore.cli", "run", "--wait", "--json", "--store"]
    stitched = subprocess.run(
        [*stitch, str(folder / "store"), "--", *command],
        env=lean.environment(**settings), capture_output=True, text=True, timeout=RUN_SECONDS,
    )  # fmt: skip
    assert stitched.returncode == plain.returncode, stitched.stderr[-3000:]
    *printed, told = stitched.stdout.splitlines()
    assert differences(printed, plain.stdout.splitlines(), columns) == []
    summary: dict[str, Any] = json.loads(told)
    steps = [step for step in summary["steps"] if step["status"] == "stitched"]
    assert any(step["kernels_after"] > 0 for step in steps), (summary, stitched.stderr[-3000:])
    return summary


def differences(
    printed: list[str], expected: list[str], columns: slice = slice(None)
) -> list[tuple[str, str]]:
    """Pairs of lines that differ by more than two right runs do, and those that one run lacks."""
    found = []
    for ours, theirs in zip(printed, expected, strict=False):
        words, wanted = ours.split()[columns], theirs.split()[columns]
        if len(words) != len(wanted) or not all(map(_alike, words, wanted)):
            found.append((ours, theirs))
    found += [(line, "") for line in printed[len(expected) :]]
    return found + [("", line) for line in expected[len(printed) :]]


def _alike(word: str, wanted: str) -> bool:
    try:
        return math.isclose(float(word), float(wanted), rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    except ValueError:
        return word == wanted
