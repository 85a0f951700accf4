"""A session with a lent device: in time, and going on where it ended."""

from __future__ import annotations

import importlib.util
import json
import pkgutil
import re
import subprocess
import sys
import time
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import bench.gpu
from bench.gpu import jobs
from bench.gpu.__main__ import LEFT
from bench.gpu.session import ABSENT, Part, parts, run
from tests.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]


def part(name: str, code: str, seconds: float = 60.0) -> Part:
    return Part(name, (sys.executable, "-c", code), seconds)


def test_what_went_well_is_not_done_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first part leaves a mark, the second has too little time, the third goes wrong."""
    mark = tmp_path / "mark"
    given = [
        part("first", f"open({str(mark)!r}, 'a').write('x')"),
        part("slow", "import time; time.sleep(60)", 0.3),
        part("wrong", "print('no such device'); raise SystemExit(9)"),
    ]
    begun = time.monotonic()
    for _ in range(2):
        assert run(given, tmp_path, begun + 60) == 1
    assert mark.read_text() == "x"
    codes = json.loads((tmp_path / "session.json").read_text())
    assert codes == {"first": 0, "slow": LEFT, "wrong": 9}
    assert "==== wrong\nno such device\n" in (tmp_path / "session.txt").read_text()
    said = capsys.readouterr().out
    assert re.search(r"wrong: 9 after \d+ s: no such device", said)
    assert "went wrong: wrong; left: slow" in said


def test_a_command_that_is_absent_does_not_end_the_session(tmp_path: Path) -> None:
    """compute-sanitizer is no part of a driver: what comes after it is run all the same."""
    absent = Part("sanitizer", ("/no/such/compute-sanitizer",), 60.0)
    begun = time.monotonic()
    assert run([absent, part("jobs", "")], tmp_path, begun + 60) == 1
    assert json.loads((tmp_path / "session.json").read_text()) == {"sanitizer": ABSENT, "jobs": 0}
    assert "/no/such/compute-sanitizer" in (tmp_path / "session.txt").read_text()


@pytest.mark.slow
def test_nothing_of_a_part_is_left_when_its_time_is_up(tmp_path: Path) -> None:
    """A child would keep the device, and the next part would share it."""
    slow = Part("slow", ("sh", "-c", "sleep 500 & echo $!; wait"), 3.0)
    assert run([slow], tmp_path, time.monotonic() + 200) == LEFT
    number = int((tmp_path / "session.txt").read_text().split()[-1])
    status = Path(f"/proc/{number}/stat")

    def ended() -> bool:
        return not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"

    wait_for(ended, "it was killed", seconds=100)


def test_a_job_that_fails_does_not_end_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ran(way: object, folder: Path, name: str, *arguments: str) -> tuple[Any, Any, Any]:
        if name == "custom_loop":
            raise RuntimeError("custom_loop.py: -11")
        made = {"figures": [1.0]}
        return made, made, {"steps": [{"status": "stitched"}], "refusals": {}}

    monkeypatch.setattr(jobs, "sees_gpu", lambda way, folder: True)
    monkeypatch.setattr(jobs, "run", ran)
    assert jobs.main(["--output", str(tmp_path)]) == 1
    lines = (tmp_path / "jobs.md").read_text().splitlines()[2:]
    assert [line.split(" | ")[1] for line in lines] == ["failed"] + ["stitched"] * (
        len(jobs.JOBS) - 1
    )
    assert "-11" in json.loads((tmp_path / "jobs.json").read_text())["jobs"][0]["failed"]


IMAGE = frozenset(
    "click fsspec httpx ml-dtypes numpy packaging prometheus-client pyyaml rich".split()
)
CARRIED = frozenset(("msgspec",))
"""Of what the project depends on: what a lent machine's Python has, and what docs/gpu.md takes
along."""
FINDER = """
import sys
class Absent:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent)
import {modules}
"""


@pytest.mark.slow
def test_a_lent_machine_has_all_that_is_imported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [
        *project["dependencies"],
        *extras["tensorflow"],
        *extras["worker"],
        *extras["operator"],
    ]
    names = {canonicalize_name(Requirement(one).name) for one in asked} - IMAGE - CARRIED
    absent = {top for top, wheels in packages_distributions().items()
              if names & set(map(canonicalize_name, wheels))}  # fmt: skip
    assert {"cryptography", "tensorflow", "celery"} <= absent
    found = {one.name for one in pkgutil.iter_modules(bench.gpu.__path__, "bench.gpu.")}
    found.remove("bench.gpu.operations")  # of TensorFlow, which travels with all it needs
    modules = ", ".join([*sorted(found), "tests.conftest", "tests.runtime.test_device"])
    code = FINDER.format(absent=sorted(absent), modules=modules)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    words = (ROOT / "docs" / "gpu.md").read_text()
    assert all(name in words for name in CARRIED)


def test_without_time_nothing_is_begun(tmp_path: Path) -> None:
    assert run([part("first", "raise SystemExit(1)")], tmp_path, time.monotonic()) == LEFT


def test_its_parts_are_commands_of_this_checkout(tmp_path: Path) -> None:
    """And the rehearsal has the same ones."""
    found, dry = parts(tmp_path, sys.executable), parts(tmp_path, sys.executable, dry=True)
    assert (found[0].name, found[-1].name) == ("tests", "bench")
    assert [one.name for one in dry] == [one.name for one in found]
    for one in (*found, *dry):
        modules = [arg for arg in one.command if arg.startswith("bench.gpu")]
        assert all(importlib.util.find_spec(module) for module in modules)


@pytest.mark.nightly
@pytest.mark.usefixtures("needs_nvrtc")
def test_make_gpu_goes_all_the_way_where_there_is_no_gpu(tmp_path: Path) -> None:
    """By make itself, in a folder of its own: every part on its stand-in, every table there."""
    given = [f"GPU_PYTHON={sys.executable}", f"GPU_OUTPUT={tmp_path}", "GPU_OPTIONS=--dry-run"]
    done = subprocess.run(["make", "gpu", *given], cwd=ROOT, capture_output=True, text=True)
    words = tmp_path / "session.txt"
    assert done.returncode == 0, done.stdout + done.stderr + words.read_text()[-3000:]
    codes = json.loads((tmp_path / "session.json").read_text())
    assert codes == {one.name: 0 for one in parts(tmp_path, sys.executable)}
    tables = {path.name for path in tmp_path.iterdir()}
    assert tables >= {"gpu.md", "gpu.json", "jobs.md", "jobs.json", "launches.json", "device.json"}
    assert "stitched" in (tmp_path / "jobs.md").read_text()
