"""What commands print on a real terminal (a pty) and in a pipe: no line is wider than the terminal
and none breaks a figure, and escape codes are there where they were not declined, and there alone.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from stitchcore.cli import common
from stitchcore.report import schema as reports
from stitchcore.report.schema import ReportNode
from tests.waiting import RUN_SECONDS

ROOT = Path(__file__).resolve().parents[2]
MODULE = ROOT / "tests" / "workloads" / "softmax_grad.hlo.xz"
KEY, DIGEST = "a" * 64, "d" * 64
STITCH = (sys.executable, "-m", "stitchcore.cli")
ESCAPE = "\x1b"
DRAWN_AGAIN = ("\x1b[?25l", "\x1b[2K", "\x1b[1A")
"""The cursor is hidden, a line is cleared, the cursor goes up: a spinner."""

JOB = """
import json, os
folder = os.path.join(os.environ["STITCH_STORE"], "sessions", os.environ["STITCH_SESSION"])
shares = {"matrix": 0.5, "memory": 0.25, "executor": 0.125, "input": 0.0, "other": 0.125}
figures = {"baseline_ns": 10e6, "stitched_ns": 7.5e6, "ratio": 0.75, "interval": [0.7, 0.9]}
events = [
    {"type": "started", "process": number, "tf": "2.21.0", "rank": str(number),
     "command": "train.py " + "--with-an-option=of-some-length " * 3} for number in (1, 2)
]
for number in (1, 2):
    about = {"process": number, "digest": DIGEST, "key": KEY}
    events.append({"type": "swap_begin", "step": "training", **about})
    events.append({"type": "savings", "steps": 99, "pairs": 9, **figures, **about})
    for arm in ("original", "stitched"):
        told = {"arm": arm, "call": 0.8, "calls": 3, "shares": shares}
        events.append({"type": "parts", **told, **about})
    peaks = {"of": "resident", "untouched": 1000 * 2**20, "stitched": 1100 * 2**20, "ratio": 1.1}
    events.append({"type": "memory", **peaks, **about})
with open(os.path.join(folder, "events.jsonl"), "a") as file:
    file.write("".join(json.dumps(event) + "\\n" for event in events))
"""
"""A job of two processes that tells what the hook would."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With an artifact of which some operations were left."""
    folder = tmp_path_factory.mktemp("terminal") / "store"
    made = folder / "artifacts" / KEY
    made.mkdir(parents=True)
    names = (f"model/block_{n}/attention/with/a/long/scope/matmul_{n}" for n in range(9))
    nodes = tuple(
        ReportNode(name, "MatMul", reason="library_call", bytes=(n + 1) * 2**20)
        for n, name in enumerate(names)
    )
    report = reports.Report(f"graph {DIGEST[:12]}", "cpu-x86-64-v3", nodes)
    (made / "report.json").write_bytes(reports.encode(report))
    return folder


def command(name: str) -> list[str]:
    job = f"KEY, DIGEST = {KEY!r}, {DIGEST!r}\n{JOB}"
    given = {
        "run": ("run", "--", sys.executable, "-c", job),
        "explain": ("explain", KEY[:12]),
        "plan": ("plan", "--planner", "auto", str(MODULE)),
        "plan --help": ("plan", "--help"),
        "status": ("status", DIGEST),
    }
    return [*STITCH, *given[name]]


COMMANDS = ("run", "explain", "plan", "plan --help", "status")


def environment(store: Path, **given: str) -> dict[str, str]:
    declined = ("STITCH_", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "TERM", "PYTHONPATH")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(declined)}
    home = {"XDG_CACHE_HOME": str(store / "cache"), "XDG_DATA_HOME": str(store / "data")}
    where = {"STITCH_STORE": str(store), "PYTHONPATH": f"{ROOT}:{ROOT / 'operator'}"}
    return {**kept, **home, **where, "TERM": "xterm-256color", **given}


def on_a_terminal(name: str, columns: int, environ: dict[str, str]) -> str:
    """All that the command writes to a terminal of so many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    with subprocess.Popen(
        command(name), env=environ, stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        written = b""
        while True:
            try:
                written += os.read(ours, 65536)
            except OSError:  # the last one has closed it
                break
        process.wait(RUN_SECONDS)
    os.close(ours)
    return written.decode().replace("\r\n", "\n")


def in_a_pipe(name: str, environ: dict[str, str]) -> str:
    done = subprocess.run(
        command(name), env=environ, capture_output=True, text=True, timeout=RUN_SECONDS
    )
    return done.stdout + done.stderr


def lines_of(text: str) -> list[str]:
    """As they stand in the end: without codes, and without what was drawn over."""
    text = re.sub(r"\x1b\[\?25l.*?\x1b\[\?25h\x1b\[1A\x1b\[2K", "", text, flags=re.DOTALL)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).splitlines()


BROKEN = re.compile(
    r"\d$\n\s*(?:[KMGT]iB|B|ns|µs|ms|s|%)\b|\[[\d.]+,$\n|\d\.$\n\s*\d|\d,$\n\s*\d{3}\b",
    re.MULTILINE,
)
"""A figure that goes on in the next line."""


@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize("name", COMMANDS)
def test_lines_fit_and_figures_are_whole(name: str, width: int, store: Path) -> None:
    text = on_a_terminal(name, width, environment(store))
    lines = lines_of(text)
    paths = [line for line in lines if str(store) in line or str(ROOT) in line]
    assert lines and max(len(line) for line in lines if line not in paths) <= width, text
    assert not BROKEN.search("\n".join(lines)), text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h"), "the cursor stays hidden"


@pytest.mark.parametrize("given", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
@pytest.mark.parametrize("name", COMMANDS)
def test_no_escape_code_where_they_are_declined(
    name: str, given: dict[str, str], store: Path
) -> None:
    """And the lines still fit."""
    text = on_a_terminal(name, 80, environment(store, **given))
    assert ESCAPE not in text
    paths = [line for line in lines_of(text) if str(store) in line or str(ROOT) in line]
    assert max(len(line) for line in text.splitlines() if line not in paths) <= 80
    assert not BROKEN.search(text), text


@pytest.mark.parametrize("name", COMMANDS)
def test_in_a_pipe_there_is_text_alone(name: str, store: Path) -> None:
    assert ESCAPE not in in_a_pipe(name, environment(store))


def test_colours_in_a_log_are_no_spinner(store: Path) -> None:
    text = in_a_pipe("plan", environment(store, FORCE_COLOR="1"))
    assert "\x1b[1m" in text and not any(code in text for code in DRAWN_AGAIN)
    plain = in_a_pipe("plan", environment(store, FORCE_COLOR="1", NO_COLOR="1"))
    assert ESCAPE not in plain


def test_a_width_that_is_given_holds_in_a_pipe(store: Path) -> None:
    """Of tables; a line of text stays one line, for whoever searches in it."""
    narrow, wide = (in_a_pipe("plan", environment(store, COLUMNS=n)) for n in ("44", "160"))
    assert "kernel 0, operations 28" in narrow and "kernel 0, operations 28" not in wide
    assert any(line.startswith("kernels 14 → 1;") for line in narrow.splitlines())


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("width", range(24, 44))
def test_a_table_that_does_not_fit_is_a_text_for_each_row(width: int) -> None:
    """No figure is broken or cut, at any width."""
    out = common.Console(file=Terminal(), width=width, force_terminal=False, highlight=False)
    rows = [("a name", "1,982,976", "60.9 µs"), ("a longer name of three", "12", "1.25 ms")]
    common.show_table("", ("what", "flops>", "time>"), rows, out)
    text = out.file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    for figure in ("1,982,976", "60.9 µs", "12", "1.25 ms"):
        assert figure in text
