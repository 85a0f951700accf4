"""`stitch doctor`: every finding has a state, and what is missing has a mend."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stitchcore.cli import doctor
from stitchcore.cli.main import stitch
from stitchcore.errors import Reason, Refused


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))


def findings(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and findings by subject."""
    result = CliRunner().invoke(stitch, ["doctor", "--json", *arguments])
    document = json.loads(result.stdout)
    assert document["works"] == (result.exit_code == 0)
    return result.exit_code, {one["subject"]: one for one in document["findings"]}


@pytest.mark.slow
def test_this_machine() -> None:
    code, found = findings()
    assert {one["state"] for one in found.values()} <= {"ok", "missing", "absent"}
    assert all(one["mend"] for one in found.values() if one["state"] == "missing")
    assert code == int(any(one["state"] == "missing" for one in found.values()))
    assert found["Python of the job"]["detail"].endswith(f"({sys.executable})")
    assert found["store"]["state"] == "ok"


def test_an_interpreter_that_is_not_there() -> None:
    code, found = findings("--python", "/no/such/python")
    assert code == 1
    assert found["TensorFlow and plug-in"]["state"] == "missing"


def test_a_job_without_tensorflow(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    python.chmod(0o755)
    _, found = findings("--python", str(python))
    assert found["TensorFlow and plug-in"]["state"] == "missing"
    assert "tensorflow" in found["TensorFlow and plug-in"]["mend"]


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise Refused("compiler", Reason.NO_COMPILER, "none works")

    monkeypatch.setattr(doctor.c_compiler, "find_compiler", none)
    finding = doctor._compiler()
    assert finding.state == "missing"
    assert "apt-get install gcc" in finding.mend


@pytest.mark.slow
def test_a_store_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STITCH_STORE", str(tmp_path / "file" / "store"))
    code, found = findings()
    assert code == 1
    assert found["store"]["mend"]
