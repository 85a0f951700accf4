"""No argument of any command, however wrong, ends in a traceback; text is printed as it is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from stitchcore.cli import common
from stitchcore.cli.main import COMMANDS, stitch

ROOT = Path(__file__).resolve().parents[2]
MODULE = """HloModule tiny

ENTRY main {
  x = f32[8]{0} parameter(0)
  y = f32[8]{0} add(x, x)
  ROOT z = f32[8]{0} multiply(y, x)
}
"""
OF_MODULES = ("plan", "compile", "bench", "tune")
WORDS = ("", "[cuda12]", "[/x]", ":x:", "0", "-1", "nan", "1e999", "x=", "=1", "ü\udcff", "*", "..")
"""What no option expects: markup, numbers out of range, what is no UTF-8, patterns of paths."""
PATHS = ("empty.hlo", "binary.hlo", "empty.json", "list.json", "folder.hlo", "empty.xz",
         "file/below", "missing/below.hlo", "x" * 300, "a\udcffb")  # fmt: skip
NOWHERE = ("file/below", "x" * 300)
SLOW = ("bench", "tune", "calibrate", "reproduce", "doctor")
"""Commands that measure: a place that can be written would have them work for minutes."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with files of every wrong kind; the user's own store is none of these."""
    for name in ("empty.hlo", "empty.json", "empty.xz", "file"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "binary.hlo").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "folder.hlo").mkdir()
    (tmp_path / "module.hlo").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("STITCH_")]:
        monkeypatch.delenv(name)
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    return tmp_path


def calls(name: str) -> Iterator[list[str]]:
    """Every option of a command with every wrong value, beside what it needs."""
    command = stitch.get_command(None, name)  # type: ignore[arg-type]
    assert command is not None
    good = ["module.hlo"] if name in OF_MODULES else []
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            yield from ([value] for value in (*WORDS, *PATHS) if not value.startswith("-"))
        elif not getattr(parameter, "is_flag", False):
            of_paths = isinstance(parameter.type, click.Path)
            slow = NOWHERE if of_paths else ("[/x]", "nan", "ü\udcff")
            values = slow if name in SLOW else (*WORDS, *PATHS)
            yield from ([*good, parameter.opts[-1], *[v] * parameter.nargs] for v in values)


@pytest.mark.parametrize("name", ["plan", "explain", "report", "compile", "status", "savings"])
def test_wrong_arguments_are_told_in_words(name: str, folder: Path) -> None:
    broken = []
    for arguments in calls(name):
        result = CliRunner().invoke(stitch, [name, *arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            broken.append((arguments, repr(result.exception)))
    assert not broken, broken


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_wrong_arguments_of_slow_commands_are_told_in_words(name: str, folder: Path) -> None:
    test_wrong_arguments_are_told_in_words(name, folder)


def refusal(*arguments: str) -> str:
    result = CliRunner().invoke(stitch, list(arguments))
    assert result.exit_code == 2, result.output
    return result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "module.hlo", "--html"),
        ("report", "module.hlo", "--out"),
        ("compile", "module.hlo", "--out"),
        ("tune", "module.hlo", "--out"),
        ("calibrate", "--out"),
    ],
)
@pytest.mark.parametrize("place", ["file/below", "x" * 300, "/proc/nothing/here"])
def test_a_place_that_cannot_be_written_is_told_before_any_work(
    arguments: tuple[str, ...], place: str, folder: Path
) -> None:
    (folder / "module.hlo").write_text("a module that cannot even be read")
    told = refusal(*arguments, place)
    assert place in told and "to mend it" in told and "you may write to" in told


@pytest.mark.parametrize(
    "option", [("plan", "--html"), ("report", "--out"), ("calibrate", "--out")]
)
def test_a_folder_is_no_file_to_write(option: tuple[str, str], folder: Path) -> None:
    module = [] if option[0] == "calibrate" else ["module.hlo"]
    assert "folder.hlo" in refusal(option[0], *module, option[1], "folder.hlo")


def test_a_file_that_was_there_is_kept_where_the_command_fails(folder: Path) -> None:
    kept = folder / "page.html"
    kept.write_text("somebody's")
    refusal("plan", "binary.hlo", "--html", str(kept))
    refusal("plan", "binary.hlo", "--html", str(folder / "new.html"))
    assert kept.read_text() == "somebody's" and not (folder / "new.html").exists()


@pytest.mark.parametrize("number", ["0", "-1", "nan", "many"])
def test_numbers_that_make_no_sense(number: str, folder: Path) -> None:
    for option in ("--rounds", "--threads"):
        assert option in refusal("bench", "module.hlo", option, number)
    if number != "0":  # of a gateway whose workers are elsewhere
        assert "--workers" in refusal("serve", "--workers", number)


def test_text_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    console = common.Output(as_json=False).console
    console.print("pip install 'stitchcore[cuda12]' :x: [/x]")
    console.print(common.table("[title]", ("[heading of it]",), [("[cell]",)]))
    printed = capsys.readouterr().out
    for text in ("stitchcore[cuda12]", ":x:", "[/x]", "[title]", "[heading of it]", "[cell]"):
        assert text in printed


@pytest.mark.slow
def test_a_locale_without_arrows_and_a_pipe_that_closes(folder: Path) -> None:
    command = [sys.executable, "-m", "stitchcore.cli", "plan", "module.hlo"]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'operator'}", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "kernels 2 -> 1" in done.stdout and re.search(r"\d us", done.stdout), done.stdout
    assert "\x1b" not in done.stdout + done.stderr, "colours or a spinner in a file"


def test_every_command_is_tried() -> None:
    tried = {"plan", "explain", "report", "compile", "status", "savings", *SLOW}
    assert set(COMMANDS) - tried == {"run", "serve"}, "their tests are test_run, test_serve"
