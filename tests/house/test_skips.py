"""A skip is an error unless its reason is listed; the closing line says what did not run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import pytest

def test_without_a_gpu(): pytest.skip("GPU: no_device (no CuPy)")
@pytest.mark.nightly
def test_of_the_night(): pass
@pytest.mark.slow
def test_that_passes(): pass
"""


def run(folder: Path, text: str, *arguments: str) -> tuple[int, str]:
    """The exit code and the closing line of these tests under the suite's own rules."""
    (folder / "test_it.py").write_text(TESTS + text)
    rules = ["-p", "tests.conftest", "-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *rules, f"--rootdir={folder}", *arguments, str(folder)],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    return done.returncode, done.stdout.strip().splitlines()[-1]


@pytest.mark.slow
def test_the_closing_line_says_what_did_not_run(tmp_path: Path) -> None:
    told = "1 ran, 1 (1 no GPU) skipped, 1 (1 nightly) left out"
    for processes in ([], ["--numprocesses=2"]):
        assert run(tmp_path, "", "-m", "not nightly", *processes) == (0, told)
    assert run(tmp_path, "")[1] == "2 ran, 1 (1 no GPU) skipped, none left out"


@pytest.mark.slow
def test_another_reason_to_skip_is_a_failure(tmp_path: Path) -> None:
    assert run(tmp_path, "def test_it(): pytest.skip('no compiler')")[0] == 1
    assert run(tmp_path, "pytest.importorskip('no_such_module')")[0] == 2


@pytest.mark.slow
def test_a_test_of_no_cases_is_an_error(tmp_path: Path) -> None:
    assert run(tmp_path, "@pytest.mark.parametrize('x', [])\ndef test_it(x): pass")[0] == 2
