"""Bad input: what happened, where, why and what to do, and exit code 2."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from stitchcore.cli.main import stitch

WORKLOADS = Path(__file__).resolve().parents[1] / "workloads"
SMALL = WORKLOADS / "softmax_grad.hlo.xz"


def call(*arguments: object) -> Result:
    return CliRunner().invoke(stitch, [str(argument) for argument in arguments])


def refused(*arguments: object) -> str:
    """The message of a command that must end with code 2 and no traceback."""
    result = call(*arguments)
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    assert "to mend it" in result.stderr
    return result.stderr


@pytest.mark.parametrize("command", ["plan", "compile", "bench"])
def test_a_missing_file(command: str, tmp_path: Path) -> None:
    assert "no such file" in refused(command, tmp_path / "absent.hlo")


def test_a_truncated_archive(tmp_path: Path) -> None:
    path = tmp_path / "cut.hlo.xz"
    path.write_bytes(SMALL.read_bytes()[:-100])
    message = refused("plan", path)
    assert "xz" in message
    assert str(path) in message


def test_a_binary_file(tmp_path: Path) -> None:
    path = tmp_path / "module.hlo"
    path.write_bytes(b"\x0a\xff\xfe\x00")
    assert "not text" in refused("plan", path)


def test_truncated_text_names_the_place(tmp_path: Path) -> None:
    path = tmp_path / "cut.hlo"
    text = lzma.decompress(SMALL.read_bytes()).decode()
    path.write_text(text[: len(text) // 2])
    message = refused("plan", path)
    assert "parse_error" in message
    assert "line" in message


def test_a_wrong_element_type(tmp_path: Path) -> None:
    path = tmp_path / "typed.hlo"
    text = lzma.decompress(SMALL.read_bytes()).decode()
    path.write_text(text.replace("f32[", "f31["))
    assert "f31" in refused("plan", path)


def test_unknown_names(tmp_path: Path) -> None:
    assert "cpu-x86-64-v3" in refused("plan", SMALL, "--target", "z80")
    assert "exhaustive" in refused("plan", SMALL, "--planner", "psychic")
    told = refused("plan", SMALL, "--without", "regional,magic")
    assert "magic: no mechanism" in told and "dominant_merging" in told
    assert "03_schedule.txt" in refused("plan", SMALL, "--from", tmp_path / "notes.txt")
    assert "--dump" in refused("plan", SMALL, "--from", tmp_path / "03_schedule.txt")
    assert "lists the names" in refused("explain", "no_such_op", "--module", SMALL)
    assert "stitch run" in refused("explain", "op", "--store", tmp_path)


def test_errors_as_json(tmp_path: Path) -> None:
    result = call("plan", tmp_path / "absent.hlo", "--json")
    assert result.exit_code == 2
    assert set(json.loads(result.stdout)["error"]) == {"what", "why", "mend"}


def test_an_environment_variable_that_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STITCH_JOBS", "many")
    result = call("plan", SMALL)
    assert result.exit_code == 2
    assert "STITCH_JOBS" in result.stderr


@pytest.mark.parametrize("file", ["02_plan.txt", "03_schedule.txt", "04_emit.c"])
def test_a_truncated_stage_says_which_file_to_mend(file: str, tmp_path: Path) -> None:
    target = ("--target", "cpu-x86-64-v3", "--out", tmp_path / "out")
    assert call("compile", SMALL, "--dump", tmp_path / "dump", *target).exit_code == 0
    (tmp_path / file).write_text((tmp_path / "dump" / file).read_text()[:200])
    message = refused("compile", SMALL, "--from", tmp_path / file, *target)
    assert f"{file}:" in message and "mend the edited file" in message


def test_a_dump_that_cannot_be_written_is_said_before_any_work(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("a file of somebody's")
    assert str(taken) in refused("plan", SMALL, "--dump", taken)
    assert taken.read_text() == "a file of somebody's"
