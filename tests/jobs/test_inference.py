"""Whatever is called again and again is a step: functions, signatures, sessions, `predict`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import lean, tiers
from tests.jobs import both
from tests.jobs import judge as judges
from tests.waiting import RUN_SECONDS

pytestmark = pytest.mark.slow

SCRIPT = judges.SCRIPTS / "inference.py"
WAYS = (
    ("signature", "2.21"), ("session", "2.21"), ("function", "2.21"), ("compiled", "2.21"),
    ("signature", "2.15"), ("session", "2.15"),
)  # fmt: skip
KEPT = (("signature", "2.21"), ("session", "2.15"))


@pytest.mark.parametrize(("how", "version"), tiers.nightly_but(*KEPT, of=WAYS))
def test_what_is_called_for_its_results_is_stitched(how: str, version: str, tmp_path: Path) -> None:
    summary = both.same_end(SCRIPT, how, "400", version=version, folder=tmp_path)
    [step] = summary["steps"]
    assert (step["kind"], step["status"]) == ("inference", "stitched")
    assert step["pairs"] > 0, "calls of both kinds were timed in turn"


def test_predictions_and_evaluations_are_told_apart(tmp_path: Path) -> None:
    settings = {"STITCH_CONTROL": "0"}  # whether they are faster is not asked here
    summary = both.same_end(SCRIPT, "keras", "200", folder=tmp_path, **settings)
    steps = {step["kind"]: step["status"] for step in summary["steps"]}
    assert steps == {"inference": "stitched", "evaluation": "stitched"}


def test_what_is_called_three_times_is_left_alone_and_told_so(tmp_path: Path) -> None:
    stitch = [sys.executable, "-m", "stitchcore.cli", "run", "--wait", "--json"]
    job = [sys.executable, str(SCRIPT), "function", "3"]
    done = subprocess.run(
        [*stitch, "--store", str(tmp_path), "--", *job],
        env=lean.environment(STITCH_KEY=str(tmp_path / "key")),
        capture_output=True, text=True, timeout=RUN_SECONDS,
    )  # fmt: skip
    summary = json.loads(done.stdout.splitlines()[-1])
    assert (summary["steps"], summary["refusals"]) == ([], {"few_calls": 1}), done.stderr
    assert not (tmp_path / "requests").exists() or not list((tmp_path / "requests").iterdir())
