"""Programs that nobody tuned the product to: under `stitch run` they end as untouched, with every
line they print, random numbers included, and a step of theirs is stitched."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import lean

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).resolve().parent / "programs"
SCRIPTS = {path.stem: path for path in sorted(PROGRAMS.rglob("*.py"))}
SECONDS = 300

ROUNDING = 1e-3
"""Programs print four digits or so, and sums may take another order."""

UNSEEDED = {"clone_cycle": slice(-1, None)}
"""Words of a line to compare where the others differ from run to run without the product too."""


def run(program: str, store: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPTS[program])]
    settings = {"PYTHONPATH": str(ROOT)}
    if store is not None:
        ours = [sys.executable, "-m", "stitchcore.cli", "run", "--wait", "--json"]
        command = [*ours, "--store", str(store / "store"), "--", *command]
        settings |= {"STITCH_CACHE": str(store / "cache"), "STITCH_KEY": str(store / "key")}
    return subprocess.run(
        command,
        env=lean.environment(**settings),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def same(mine: str, other: str) -> bool:
    """Whether two words are the same number but for rounding, or the same text."""
    try:
        one, two = float(mine), float(other)
    except ValueError:
        return mine == other
    return math.isclose(one, two, rel_tol=ROUNDING)


def differences(program: str, mine: str, other: str) -> list[tuple[str, str]]:
    """Pairs of lines that differ."""
    part = UNSEEDED.get(program, slice(None))
    lines, others = mine.splitlines(), other.splitlines()
    found = []
    for one, two in zip(lines, others, strict=False):
        words, expected = one.split()[part], two.split()[part]
        if len(words) != len(expected) or not all(map(same, words, expected)):
            found.append((one, two))
    longer = max(lines, others, key=len)[min(len(lines), len(others)) :]
    return found + [(line, "") if longer is lines else ("", line) for line in longer]


def test_a_difference_is_seen() -> None:
    assert not differences("gan", "step 3 0.5001\n", "step 3 0.5002\n")
    assert differences("gan", "step 3 0.5001\n", "step 3 0.5101\n")
    assert differences("gan", "step 3 0.5\n", "step 3 0.5\nstep 4 0.4\n") == [("", "step 4 0.4")]
    assert differences("gan", "step 3 nan\n", "step 3 0.5\n")
    assert not differences("clone_cycle", "step 0 0.7 0.31\n", "step 0 0.9 0.31\n")
    assert differences("clone_cycle", "step 0 0.7 0.31\n", "step 0 0.7 0.33\n")


@pytest.mark.slow
@pytest.mark.parametrize("program", SCRIPTS)
def test_a_program_ends_as_untouched_and_is_stitched(program: str, tmp_path: Path) -> None:
    plain = run(program)
    assert plain.returncode == 0, plain.stderr[-2000:]
    stitched = run(program, tmp_path)
    assert stitched.returncode == plain.returncode, stitched.stderr[-2000:]
    *lines, summary = stitched.stdout.splitlines()
    assert not differences(program, "\n".join(lines), plain.stdout)
    told: Mapping[str, Any] = json.loads(summary)
    steps = [step for step in told["steps"] if step["status"] == "stitched"]
    assert any(step["kernels_after"] > 0 for step in steps), (told, stitched.stderr[-2000:])
