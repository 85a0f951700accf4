"""The wheel as a user installs it: a clean environment, outside of the repository."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from stitchcore.inject.build import library_folder

ROOT = Path(__file__).resolve().parents[2]
STEPS = 120

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    call([sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", folder, ROOT])
    [built] = folder.glob("*.whl")
    return built


def call(command: Sequence[object], **environment: str) -> str:
    """Standard output of a command that must succeed, with nothing of ours in its environment."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    proxies = {n: v for n, v in os.environ.items() if "proxy" in n.lower() or n.startswith("PIP_")}
    done = subprocess.run(
        [str(word) for word in command],
        env={**kept, **proxies, **environment}, cwd="/", capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_its_name_says_what_is_in_it(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    built = {path.name for path in library_folder().glob("*.so")}
    assert built <= {Path(name).name for name in names}
    assert "-py3-none-manylinux_2_" in wheel.name and wheel.name.endswith("_x86_64.whl")
    assert not [name for name in names if name.startswith(("tests/", "bench/"))]


def test_the_demo_is_stitched_from_a_wheel(wheel: Path, tmp_path: Path) -> None:
    """From an environment of its own: the wheel, and TensorFlow from the index."""
    python, stitch = (tmp_path / "venv" / "bin" / name for name in ("python", "stitch"))
    call([sys.executable, "-m", "venv", tmp_path / "venv"])
    call([python, "-m", "pip", "install", "--quiet", wheel, "tensorflow-cpu==2.21.*"])
    home = {"HOME": str(tmp_path / "home"), "TF_CPP_MIN_LOG_LEVEL": "3"}
    (tmp_path / "home").mkdir()
    call([stitch, "doctor"], **home)
    script = tmp_path / "train.py"
    script.write_text((ROOT / "examples" / "train_mlp.py").read_text())
    job = [python, script, "--steps", STEPS]
    told = call([stitch, "run", "--wait", "--json", "--", *job], **home)
    summary = json.loads(told.splitlines()[-1])
    [step] = summary["steps"]
    assert step["status"] == "stitched" or step["reason"] == "slower", step  # of a busy machine
    assert step["kernels_after"] < step["kernels_before"]
