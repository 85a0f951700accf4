"""A session with a lent device: in time, and going on where it ended."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.gpu.__main__ import LEFT
from bench.gpu.session import Part, parts, run


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
    assert "wrong: 9 after 0 s: no such device" in said
    assert "went wrong: wrong; left: slow" in said


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
    root = Path(__file__).resolve().parents[2]
    given = [f"GPU_PYTHON={sys.executable}", f"GPU_OUTPUT={tmp_path}", "GPU_OPTIONS=--dry-run"]
    done = subprocess.run(["make", "gpu", *given], cwd=root, capture_output=True, text=True)
    words = tmp_path / "session.txt"
    assert done.returncode == 0, done.stdout + done.stderr + words.read_text()[-3000:]
    codes = json.loads((tmp_path / "session.json").read_text())
    assert codes == {one.name: 0 for one in parts(tmp_path, sys.executable)}
    tables = {path.name for path in tmp_path.iterdir()}
    assert tables >= {"gpu.md", "gpu.json", "jobs.md", "jobs.json", "launches.json"}
    assert "stitched" in (tmp_path / "jobs.md").read_text()
