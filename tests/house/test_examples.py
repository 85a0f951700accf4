"""Every example program runs stitched, and its Job is one that the webhook would take."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests import lean

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = sorted((ROOT / "examples" / "programs").glob("*.py"))


def test_each_program_has_its_job_and_is_on_the_page() -> None:
    assert len(PROGRAMS) == 5
    page = (ROOT / "examples" / "README.md").read_text()
    for program in PROGRAMS:
        job = yaml.safe_load(program.with_suffix(".yaml").read_text())
        assert job["metadata"]["annotations"] == {"stitchcore.io/optimize": "true"}
        assert job["metadata"]["name"] == program.stem.replace("_", "-")
        [container] = job["spec"]["template"]["spec"]["containers"]
        assert container["command"][:2] == ["python", program.name]
        assert f"programs/{program.name}" in page and f"programs/{program.stem}.yaml" in page
        assert "stitch" not in program.read_text(), "a user's program knows nothing of us"


@pytest.mark.nightly
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_each_program_is_stitched(program: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorflow", reason="no TensorFlow: pip install tensorflow-cpu")
    home = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "XDG_DATA_HOME": str(tmp_path / "data")}
    stitch = [sys.executable, "-m", "stitchcore.cli", "run", "--wait", "--json", "--"]
    done = subprocess.run(
        [*stitch, sys.executable, str(program), "--steps", "60"],
        env=lean.environment(**home, PYTHONPATH=str(ROOT)), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    steps = json.loads(done.stdout.splitlines()[-1])["steps"]
    training = max(steps, key=lambda step: step["kernels_before"])
    assert training["kind"] == "training", steps
    assert training["status"] == "stitched" or training["reason"] == "slower", training
    assert training["kernels_after"] < training["kernels_before"]
