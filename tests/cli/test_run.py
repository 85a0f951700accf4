"""`stitch run` around the job: its exit code, its output, its environment, and what goes wrong.

Jobs here import no TensorFlow; tests/jobs runs real training scripts through the same command.
"""

from __future__ import annotations

import _ctypes
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from stitchcore import options as settings
from stitchcore.artifact.store import open_store
from stitchcore.cli import run_job, run_summary
from stitchcore.cli.optimize_child import Failure, Worker, worker_python
from stitchcore.cli.run import Run, _forget
from stitchcore.errors import Reason
from stitchcore.inject import crash_breaker, verdicts
from stitchcore.options import Options
from stitchcore.report import schema
from stitchcore.report.schema import ReportNode
from stitchcore.report.view import ReasonRow
from tests.waiting import RUN_SECONDS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STITCH_")}
    home = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "XDG_DATA_HOME": str(tmp_path / "data")}
    return {**kept, **home, "PYTHONPATH": str(ROOT)}


def stitch_run(env: dict[str, str], code: str, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stitchcore.cli", "run", *flags, "--", sys.executable]
    return subprocess.run(
        [*command, "-c", code], env=env, capture_output=True, text=True, timeout=RUN_SECONDS
    )


def test_the_exit_code_and_the_output_are_the_jobs(env: dict[str, str]) -> None:
    done = stitch_run(env, "import sys; print('a line'); sys.exit(7)")
    assert done.returncode == 7
    assert done.stdout == "a line\n"
    assert "nothing stitched; the command ended with exit code 7" in done.stderr
    assert "command_failed: the command ended, by an error or a signal, before" in done.stderr
    assert "not_imported" not in done.stderr, "nobody knows what it would have done"


def test_a_job_that_a_signal_ends(env: dict[str, str]) -> None:
    done = stitch_run(env, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert done.returncode == 128 + signal.SIGSEGV


LAUNCHER = """
import subprocess, sys
sys.exit(subprocess.call([sys.executable, "-c", sys.argv[1]]))
"""
CHILD = """
import ctypes, os, sys, time
ctypes.CDLL({library!r})
told = os.path.join(os.environ["STITCH_STORE"], "sessions", os.environ["STITCH_SESSION"])
for _ in range(5000):
    if os.path.exists(os.path.join(told, "events.jsonl")): sys.exit()
    time.sleep(0.05)
sys.exit(9)
"""


def test_what_a_python_program_starts_is_told_of(env: dict[str, str], tmp_path: Path) -> None:
    """The hook hides from it, and it has TensorFlow: any library will do for that here."""
    library = shutil.copy(_ctypes.__file__, tmp_path / "libtensorflow.so")
    command = [sys.executable, "-m", "stitchcore.cli", "run", "--json", "--", sys.executable]
    child = CHILD.format(library=str(library))
    done = subprocess.run(
        [*command, "-c", LAUNCHER, child],
        env=env,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    [cause] = json.loads(done.stdout.splitlines()[-1])["nothing"]
    assert cause["reason"] == "child_process" and sys.executable in cause["detail"]


def test_the_json_summary_is_the_last_line(env: dict[str, str]) -> None:
    done = stitch_run(env, "print('{not json')", "--json")
    lines = done.stdout.splitlines()
    assert lines[0] == "{not json"
    found = json.loads(lines[-1])
    assert (found["exit_code"], found["steps"]) == (0, [])


@pytest.mark.parametrize(
    ("program", "mend"),
    [("/no/such/program", "check the command"), ("train.py", "stitch run -- python train.py 9")],
)
def test_a_command_that_does_not_exist(
    program: str, mend: str, env: dict[str, str], tmp_path: Path
) -> None:
    """It is no job that `stitch report` could be asked about."""
    command = [sys.executable, "-m", "stitchcore.cli", "run", "--store", str(tmp_path / "store")]
    command += ["--", program, "9"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 127
    assert program in done.stderr and mend in done.stderr
    assert list((tmp_path / "store" / "sessions").iterdir()) == []


def test_an_unusable_store_leaves_the_job_alone(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code = "import os; print('STITCH_STORE' in os.environ, os.environ['PYTHONPATH'])"
    done = stitch_run(env, code, "--store", str(tmp_path / "file" / "store"))
    assert done.returncode == 0
    assert done.stdout == f"False {ROOT}\n"
    assert done.stderr.count("\n") == 1
    assert "store_unreadable" in done.stderr


def test_the_jobs_own_options_stay_its_own(env: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys; print(sys.argv[1:])")
    command = [sys.executable, "-m", "stitchcore.cli", "run", sys.executable, str(script)]
    done = subprocess.run(
        [*command, "--wait", "--json", "-x"], env=env, capture_output=True, text=True
    )
    assert done.stdout == "['--wait', '--json', '-x']\n"


def test_a_termination_reaches_the_job(env: dict[str, str]) -> None:
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('saved', flush=True), sys.exit(3)))\n"
        "print('up', flush=True)\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-m", "stitchcore.cli", "run", "--", sys.executable, "-c", code]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == "saved\n"
        assert process.wait(timeout=RUN_SECONDS) == 3


def test_the_environment_of_a_job() -> None:
    given = {"PYTHONPATH": "/own", "HOME": "/home/me"}
    found = run_job.environment(given, Path("/store"), "s1", "ab" * 32, 0.0)
    first, *rest = found["PYTHONPATH"].split(os.pathsep)
    assert (Path(first) / "sitecustomize.py").exists()
    assert rest == ["/own"]
    assert (found["HOME"], found["STITCH_WAIT"], found["STITCH_MODE"]) == (
        "/home/me",
        "0",
        "optimize",
    )


def test_half_a_line_of_events_waits(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    events = run_job.EventFile(path)
    assert events.read() == []
    path.write_text('{"type": "seen", "digest": "d"}\n{"type": "su')
    assert [event["type"] for event in events.read()] == ["seen"]
    with path.open("a") as file:
        file.write('bmitted", "digest": "d"}\nnot json\n[1]\n')
    assert [event["type"] for event in events.read()] == ["submitted"]


def test_a_record_tells_the_last_figures() -> None:
    record = run_job.Record()
    figures = {"baseline_ns": 2e6, "stitched_ns": 1e6, "ratio": 0.5, "interval": [0.4, 0.6]}
    for event in (
        {"type": "refused", "digest": "", "reason": "input_pipeline"},
        {"type": "submitted", "digest": "d"},
        {"type": "swap_begin", "digest": "d", "key": "k"},
        {"type": "savings", "digest": "d", "steps": 9},
        {"type": "savings", "digest": "d", "steps": 30, **figures},
    ):
        record.add(event)
    step = run_summary.of(record, Path("/nowhere")).steps[0]
    assert (step.steps, step.seconds_before) == (30, 2e-3)
    assert step.speedup == pytest.approx((2.0, 1 / 0.6, 2.5)), "time before / time after"
    assert "2 ms → 1 ms, speed-up 2.000 [1.667, 2.500]" in shown(run_summary.of(record, Path("/")))
    assert record.refusals == {"input_pipeline": 1}


WON = {"baseline_ns": 10e6, "stitched_ns": 7.5e6, "ratio": 0.75, "interval": [0.7, 0.9], "pairs": 9}
LOST = {**WON, "stitched_ns": 11e6, "ratio": 1.1, "interval": [1.05, 1.2]}
OPEN = {**WON, "interval": [0.7, 1.01]}
BESIDE = {"beside_steps": 100, "beside_ns": 15e6}


@pytest.mark.parametrize(
    ("figures", "waited", "expected", "said"),
    [
        (WON, True, ("after", 2400, 18.0, 6.0), "6.0 s lost to the job): won back after 2,400"),
        ({**WON, **BESIDE}, False, ("after", 2400, 18.0, 0.5), "0.5 s lost to the job"),
        (WON, False, ("after", 2400, 18.0, None), "(9.0 s of processors): won back after 2,400"),
        (OPEN, True, ("unknown", None, None, 6.0), "not shown to be faster"),
        (LOST, True, ("never", None, None, 6.0), "never won back"),
    ],
)
def test_when_a_compilation_is_won_back(
    figures: dict[str, Any], waited: bool, expected: tuple[Any, ...], said: str
) -> None:
    record = run_job.Record()
    record.add({"type": "swap_begin", "digest": "d", "key": "k"})
    record.add({"type": "savings", "digest": "d", "steps": 99, **figures})
    [graph] = record.of("d")
    graph.compile_seconds, graph.processor_seconds, graph.waited = 6.0, 9.0, waited
    found = run_summary.of(record, Path("/nowhere"))
    cost = found.steps[0].break_even
    assert cost is not None
    told = (cost.state, cost.steps, cost.after_seconds, cost.job_seconds)
    assert all(one == pytest.approx(other) for one, other in zip(told, expected, strict=True))
    console = Console(record=True, file=io.StringIO(), width=200)
    run_summary.show(found, console)
    assert said in console.export_text()
    json.loads(json.dumps(run_summary.document(found), allow_nan=False))


def test_what_was_in_the_store_has_nothing_to_win_back() -> None:
    record = run_job.Record()
    record.add({"type": "swap_begin", "digest": "d", "key": "k"})
    record.add({"type": "savings", "digest": "d", "steps": 99, **WON})
    assert run_summary.of(record, Path("/nowhere")).steps[0].break_even is None


def test_too_few_blocks_are_no_figure() -> None:
    record = run_job.Record()
    figures = {"baseline_ns": 2e6, "stitched_ns": 1e6, "ratio": 0.5, "interval": None, "pairs": 2}
    record.add({"type": "swap_begin", "digest": "d", "key": "k"})
    record.add({"type": "savings", "digest": "d", "steps": 9, **figures})
    found = run_summary.of(record, Path("/nowhere"))
    assert found.steps[0].speedup is None and found.steps[0].pairs == 2
    assert "too few steps to tell (2 pairs" in shown(found)
    json.loads(json.dumps(run_summary.document(found), allow_nan=False))


def test_regions_that_were_taken_back_are_told_of_their_step() -> None:
    record = run_job.Record()
    record.add({"type": "swap_begin", "digest": "d", "key": "k"})
    for region in ("r1", "r2"):
        told = {"reason": "wrong_result", "detail": f"{region}: 2 instead of 1", "region": region}
        record.add({"type": "refused", "digest": "d", **told})
    record.add({"type": "refused", "digest": "d", "reason": "guard_failed", "detail": "a size"})
    found = run_summary.of(record, Path("/nowhere"))
    assert found.steps[0].status == "stitched"
    assert found.steps[0].refusals == {"wrong_result": 2}
    assert "left as it was: 2 x wrong_result" in shown(found)
    assert "in part as it was: guard_failed (a size)" in shown(found)
    told = {"reason": "guard_failed", "detail": "r3: a size", "region": "r3"}
    record.add({"type": "refused", "digest": "d", **told})
    found = run_summary.of(record, Path("/nowhere"))  # told of few calls, then of the region
    assert found.steps[0].refusals == {"wrong_result": 2, "guard_failed": 1}
    assert found.refusals == {"wrong_result": 2, "guard_failed": 1}
    assert "in part" not in shown(found)


def test_peak_memory_of_both_is_told() -> None:
    record = run_job.Record()
    peaks = {"of": "resident", "stitched": 1100 * 2**20, "untouched": 1000 * 2**20, "ratio": 1.1}
    record.add({"type": "swap_begin", "digest": "d", "key": "k"})
    record.add({"type": "memory", "digest": "d", "key": "k", "time": 1.0, **peaks})
    back = {"reason": "memory", "detail": "1.100 times"}
    record.add({"type": "rolled_back", "digest": "d", "key": "k", **back})
    found = run_summary.of(record, Path("/nowhere"))
    assert run_summary.document(found)["steps"][0]["memory"] == peaks
    text = shown(found)
    assert "runs as it was, memory (1.100 times): a step would hold more memory" in text
    assert "peak resident memory 0.977 GiB → 1.07 GiB (+10 %)" in text


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (
            {"caller_thread": True, "detail": "", "pool_ns": 3.92e6, "caller_ns": 2.5e6},
            "runs in the thread that calls it: 2.5 ms a step, 3.92 ms in TensorFlow's threads",
        ),
        (
            {"caller_thread": False, "detail": "", "pool_ns": 2.5e6, "caller_ns": 3.92e6},
            "runs in TensorFlow's threads: 2.5 ms a step, 3.92 ms in the thread that calls it",
        ),
        (
            {"caller_thread": False, "detail": "PyFunc may wait for others, or ask Python"},
            "runs in TensorFlow's threads: PyFunc may wait for others, or ask Python",
        ),
    ],
)
def test_where_a_step_runs_is_told(told: dict[str, Any], said: str) -> None:
    record = run_job.Record()
    record.add({"type": "swap_begin", "digest": "d", "key": "k"})
    record.add({"type": "executor", "time": 1.0, "digest": "d", **told})
    found = run_summary.of(record, Path("/nowhere"))
    assert run_summary.document(found)["steps"][0]["executor"] == told
    assert f"  {said}\n" in shown(found)


SHARES = {"matrix": 0.5, "memory": 0.25, "executor": 0.125, "input": 0.0, "other": 0.125}


def parted(*more: dict[str, Any]) -> run_summary.Summary:
    record = run_job.Record()
    record.add({"type": "swap_begin", "digest": "d", "key": "k"})
    for arm, call in (("original", 0.8), ("stitched", 1.0)):
        told = {"arm": arm, "call": call, "calls": 3, "shares": SHARES}
        record.add({"type": "parts", "digest": "d", **told})
    for event in more:
        record.add(event)
    return run_summary.of(record, Path("/nowhere"))


def test_the_parts_of_a_step_add_up_to_it() -> None:
    """Of the step as it was compared; what lies between calls is input and Python."""
    step = parted({"type": "savings", "digest": "d", "steps": 99, **WON}).steps[0]
    assert sum(part.before for part in step.parts) == pytest.approx(step.seconds_before)
    assert sum(part.after or 0 for part in step.parts) == pytest.approx(step.seconds_after)
    before = {part.name: part.before for part in step.parts}
    assert before["matrix work"] == pytest.approx(4e-3)
    assert before["input and Python"] == pytest.approx(2e-3)
    assert step.speedup_bound == pytest.approx(10 / 7), "10 ms without 2 and 1"
    text = shown(run_summary.Summary((step,), {}))
    assert "matrix work               4 ms  40% →  3.75 ms  50%" in text
    assert "a speed-up of 1.429 at most, were memory-intensive work and executor gone" in text
    assert max(map(len, text.splitlines()[1:7])) <= 80


def test_parts_of_a_step_that_was_never_compared() -> None:
    """By its median, and before alone where nothing of it ran stitched."""
    end = {"digest": "d", "original_ns": 4e6, "stitched_ns": None}
    step = parted({"type": "end", "counters": {}, "steps": [end]}).steps[0]
    assert {part.name: part.before for part in step.parts}["matrix work"] == pytest.approx(1.6e-3)
    assert all(part.after is None for part in step.parts)
    assert "→" not in shown(run_summary.Summary((step,), {})).splitlines()[1]
    assert parted().steps[0].parts == (), "no step was timed"


def test_a_step_is_of_its_process() -> None:
    """Replicas have one graph, and a figure each."""
    record = run_job.Record()
    for number, stitched in ((7, 5e6), (8, 8e6)):
        record.add({"type": "started", "process": number, "tf": "2.21.0", "command": "train.py"})
        record.add({"type": "swap_begin", "process": number, "digest": "d", "key": "k"})
        figures = {**WON, "stitched_ns": stitched, "ratio": stitched / 10e6}
        record.add({"type": "savings", "process": number, "digest": "d", "steps": 9, **figures})
    found = run_summary.of(record, Path("/nowhere"))
    assert [(step.process, step.seconds_after) for step in found.steps] == [(7, 5e-3), (8, 8e-3)]
    lines = shown(found).splitlines()
    assert [line for line in lines if "process" in line] == [
        " process 7: train.py", " process 8: train.py"
    ]  # fmt: skip
    assert "10 ms → 5 ms" in lines[1] and any("10 ms → 8 ms" in line for line in lines[3:])


def test_a_number_that_begins_once_more_is_another_process() -> None:
    """And each has the rank that it was given."""
    record = run_job.Record()
    for number, rank in ((7, ""), (8, "worker 1"), (7, "1")):
        told = {"tf": "2.21.0", "command": "train.py", "rank": rank}
        record.add({"type": "started", "process": number, **told})
        record.add({"type": "swap_begin", "process": number, "digest": "d", "key": "k"})
    found = run_summary.of(record, Path("/nowhere"))
    assert [one.rank for one in found.processes] == ["", "worker 1", "1"]
    assert [one.steps for one in found.processes] == [(0,), (1,), (2,)]
    text = shown(found)
    assert " process 8 (rank worker 1): train.py\n" in text and text.count("step d") == 3


def test_a_process_without_a_step_says_why() -> None:
    """Where another has one; a process that has no TensorFlow is none of them."""
    record = run_job.Record()
    for number in (7, 8):
        record.add({"type": "started", "process": number, "tf": "2.21.0", "command": "train.py"})
    record.add({"type": "swap_begin", "process": 8, "digest": "d", "key": "k"})
    record.add({"type": "refused", "process": 9, "digest": "", "reason": "child_process"})
    found = run_summary.of(record, Path("/nowhere"))
    text = shown(found)
    assert [one.number for one in found.processes] == [7, 8] and not found.nothing
    assert "process 7: train.py: no step\n  eager: " in text and "process 8: train.py\n" in text


def test_the_job_has_ended_when_all_its_processes_have() -> None:
    record = run_job.Record()
    for number in (7, 8):
        record.add({"type": "started", "process": number, "tf": "2.21.0"})
    assert not record.ended
    for number, ended in ((7, False), (8, True)):
        record.add({**END, "process": number})
        assert record.ended == ended


def test_what_runs_in_part_as_it_was_says_so() -> None:
    """As where tf.data builds a step anew that Python calls as well."""
    record = run_job.Record()
    record.add({"type": "swap_begin", "digest": "d", "key": "k"})
    told = {"reason": "unmeasured", "detail": "TensorFlow builds its graph anew"}
    record.add({"type": "refused", "digest": "d", **told})
    found = run_summary.of(record, Path("/nowhere"))
    assert "  in part as it was: unmeasured (TensorFlow builds its graph anew)\n" in shown(found)
    record.add({"type": "disabled", "digest": "d", "key": "k", **told})
    text = shown(run_summary.of(record, Path("/nowhere")))
    assert "runs as it was, unmeasured" in text and "in part" not in text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("width", [80, 160])
def test_on_a_terminal_lines_end_between_words(width: int) -> None:
    """And what follows stands further in; a path stays whole, and a log has one line of each."""
    row = ReasonRow("library_call", "it is a matrix product " * 5, "", 3, 9, ("a/b (MatMul)",) * 9)
    path = "/" + "long/" * 40 + "report.html"
    step = replace(parted().steps[0], left=(row,), report=path, detail="why " * 30, reason="memory")
    summary = run_summary.Summary((step,), {})
    console = Console(record=True, file=Terminal(), width=width)
    run_summary.show(summary, console)
    lines = console.export_text().splitlines()
    assert max(len(line) for line in lines if path not in line) <= width
    assert any(line.strip() == path for line in lines)
    wrapped = [line for line in lines if line.startswith("      ")]
    assert wrapped, "what follows stands further in"
    plain = Console(record=True, file=io.StringIO(), width=width)
    run_summary.show(summary, plain)
    assert f"  report: {path}" in plain.export_text().splitlines()


def shown(summary: run_summary.Summary) -> str:
    console = Console(record=True, file=io.StringIO(), width=200)
    run_summary.show(summary, console)
    return console.export_text()


STARTED = {"type": "started", "tf": "2.21.0"}
END = {"type": "end", "counters": {}, "steps": []}
FEW = {"reason": "few_calls", "digest": "d", "detail": "inference, called 2 times"}


@pytest.mark.parametrize(
    ("events", "reason", "told"),
    [
        ((), "not_imported", "`stitch run -- python train.py`"),
        ((STARTED, END), "eager", "@tf.function"),
        ((STARTED, END, {"type": "exited", "code": 1}), "command_failed", "exit code 1"),
        ((FEW, END),
         "few_calls", "(inference, called 2 times)"),
        (({"reason": "unsupported_version", "detail": "TensorFlow 2.12"},),
         "unsupported_version", "(TensorFlow 2.12)"),
        (({"reason": "xla_not_lifted"}, END), "xla_not_lifted", "jit_compile=True"),
    ],
)  # fmt: skip
def test_a_run_without_a_step_says_why_and_what_to_do(
    events: tuple[dict[str, Any], ...], reason: str, told: str
) -> None:
    record = run_job.Record()
    for event in events:
        record.add({"type": "refused", "digest": "", **event})
    found = run_summary.of(record, Path("/nowhere"))
    assert [cause.reason for cause in found.nothing] == [reason]
    text = shown(found)
    assert f"{reason}: " in text and told in text and "what to do: " in text
    assert run_summary.document(found)["nothing"][0]["mend"]


def test_a_command_that_failed_is_told_before_what_was_refused() -> None:
    """In each of its processes too, and in the session as `stitch explain` reads it."""
    record = run_job.Record()
    for event in (STARTED, {**FEW, "type": "refused"}, END, {"type": "exited", "code": 1}):
        record.add({"type": "started", "process": 7, **event})
    found = run_summary.of(record, Path("/nowhere"))
    for causes in (found.nothing, found.processes[0].nothing):
        assert [cause.reason for cause in causes] == ["command_failed", "few_calls"]


def test_the_operations_that_cost_most_are_named(tmp_path: Path) -> None:
    nodes = tuple(
        ReportNode(f"n{n}", "MatMul", reason="library_call", bytes=n * 1024) for n in range(9)
    )
    record = run_job.Record()
    record.add({"type": "swap_begin", "digest": "d", "key": "k"})
    folder = tmp_path / "artifacts" / "k"
    folder.mkdir(parents=True)
    (folder / "report.json").write_bytes(schema.encode(schema.Report("graph d", "cpu", nodes)))
    left = run_summary._left(folder)
    assert [row.count for row in left] == [9] and left[0].bytes == 36 * 1024
    assert left[0].operations == tuple(f"n{n} (MatMul, {n} KiB)" for n in (8, 7, 6))
    step = replace(run_summary.of(record, tmp_path).steps[0], left=left)
    text = shown(run_summary.Summary((step,), {}))
    assert "left to TensorFlow: 9 x library_call, 36 KiB a step: it is a matrix product" in text
    assert "most: n8 (MatMul, 8 KiB), n7" in text


HERE = Options(Path(), Path(), Path()).signature


def test_an_answer_under_other_settings_is_asked_again(tmp_path: Path) -> None:
    """Another planner, or a mechanism left out, never gets what was made without."""
    store = open_store(str(tmp_path))
    other = Options(Path(), Path(), Path(), without=("remote",)).signature
    for name, made_under in (("here", HERE), ("other", other)):
        store.answer(name, {"status": "ready", "key": "k", "settings": made_under})
    _forget(store, HERE, everything=False)
    assert store.list("answers") == ("here.json",)


def test_what_an_edited_stage_became_is_of_one_run(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.answer("a" * 64, {"status": "ready", "key": "k", "edited": True})
    store.answer("b" * 64, {"status": "refused", "reason": "parse_error", "edited": True})
    store.answer("c" * 64, {"status": "ready", "key": "k"})
    _forget(store, HERE, everything=False)
    assert [store.read_answer(name * 64) is None for name in "abc"] == [True, True, False]


def test_an_answer_of_other_code_is_asked_again(tmp_path: Path) -> None:
    """A mended compiler never answers with what the old one made or refused."""
    store = open_store(str(tmp_path))
    store.answer("a" * 64, {"status": "ready", "key": "k"})
    store.answer("b" * 64, {"status": "refused", "reason": "region_too_small"})
    store.answer("c" * 64, {"status": "ready", "key": "k"})
    for name in "ab":
        old = {**(store.read_answer(name * 64) or {}), "code": "0" * 64}
        store.write(json.dumps(old).encode(), "answers", f"{name * 64}.json")
    _forget(store, HERE, everything=False)
    assert store.list("answers") == (f"{'c' * 64}.json",)


def test_answers_that_a_new_run_asks_again(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    answers = {
        "ready": {"status": "ready", "key": "k"},
        "pending": {"status": "pending"},
        "dead": {"status": "refused", "reason": "worker_failed"},
        "small": {"status": "refused", "reason": "region_too_small"},
    }
    for name, answer in answers.items():
        store.answer(name, answer)
    _forget(store, HERE, everything=False)
    assert store.list("answers") == ("ready.json", "small.json")
    _forget(store, HERE, everything=True)
    assert store.list("answers") == ()


def fake_python(folder: Path, code: str) -> str:
    """A program in place of the worker's Python."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{code}'\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def worker(tmp_path: Path) -> Callable[..., Failure | bool]:
    def run(code: str, options: Options, target: str = "cpu-x86-64-v3") -> Failure | bool:
        python, log = fake_python(tmp_path, code), tmp_path / "worker.log"
        child = Worker(target, options, log, False, python)
        child.ask("digest")
        while (ended := child.poll()) is None:
            time.sleep(0.05)
        return ended

    return run


def limits(tmp_path: Path, **changed: Any) -> Options:
    plain = settings.read({"HOME": str(tmp_path)})
    return replace(plain, **changed)


def test_a_worker_that_dies_is_a_failure(worker: Any, tmp_path: Path) -> None:
    ended = worker('raise SystemExit("no space left")', limits(tmp_path))
    assert ended.reason is Reason.WORKER_FAILED
    assert "no space left" in ended.detail


def test_a_worker_is_bounded_in_time(worker: Any, tmp_path: Path) -> None:
    ended = worker("import time; time.sleep(60)", limits(tmp_path, worker_seconds=0.5))
    assert ended.reason is Reason.DEADLINE


def test_a_worker_is_bounded_in_memory(worker: Any, tmp_path: Path) -> None:
    code = "import time; block = bytearray(300 * 2**20); time.sleep(60)"
    ended = worker(code, limits(tmp_path, worker_memory=2**28))
    assert ended.reason is Reason.WORKER_FAILED
    assert "GiB" in ended.detail


@pytest.mark.parametrize(("target", "seen"), [("sm_90", "GPUs 3"), ("cpu-x86-64-v3", "GPUs none")])
def test_a_worker_sees_the_gpus_of_its_target(
    target: str, seen: str, worker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all are hidden from it no artifact for one can be proved."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    code = 'import os; raise SystemExit("GPUs " + (os.environ["CUDA_VISIBLE_DEVICES"] or "none"))'
    assert seen in worker(code, limits(tmp_path), target).detail


def test_a_worker_gets_none_of_the_users_environment(
    worker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hush")
    code = 'import os; raise SystemExit(" ".join(sorted(os.environ)))'
    detail = worker(code, limits(tmp_path)).detail
    assert "SECRET_TOKEN" not in detail
    assert "PATH" in detail


def test_a_failure_of_ours_leaves_no_job_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The parent cannot start a worker: the job gets an answer and ends by itself."""
    options = limits(tmp_path, store=tmp_path)
    events = tmp_path / "sessions" / "s" / "events.jsonl"
    events.parent.mkdir(parents=True)
    events.write_text('{"type": "submitted", "digest": "d"}\n')
    answer = tmp_path / "answers" / "d.json"
    code = f"import os, time\nwhile not os.path.exists({str(answer)!r}): time.sleep(0.01)"
    process = run_job.start([sys.executable, "-c", code], os.environ)
    Run(options, "s", [sys.executable], wait=True).follow(process)  # there is no such request
    assert process.returncode == 0
    assert json.loads(answer.read_text())["reason"] == "worker_failed"
    assert "the job runs unchanged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("became", "ready"), [("submitted", 1), ("swap_begin", 0), ("rolled_back", 0), ("loading", 0)]
)
def test_an_artifact_is_for_the_next_run_where_this_one_had_none(
    became: str, ready: int, tmp_path: Path
) -> None:
    """Of two runs at once in a store one has the other's, and its own worker is late."""
    events = tmp_path / "sessions" / "s" / "events.jsonl"
    events.parent.mkdir(parents=True)
    events.write_text("".join(
        json.dumps({"type": kind, "digest": "d"}) + "\n" for kind in ("submitted", became)
    ))  # fmt: skip
    open_store(str(tmp_path)).answer("d", {"status": "ready", "key": "k"})
    run = Run(limits(tmp_path, store=tmp_path), "s", [sys.executable], wait=True)
    run._take_events()
    worker: Any = SimpleNamespace(digest="d", seconds=1.0, processor_seconds=1.0)
    run._finish(worker, True, job_runs=False)
    assert run.ready_for_next == ready


FULL = """
import json, os, sys, time
from stitchcore.inject import client, reasons
store, events = sys.argv[1:]
source = client.Folder(store, None)
assert source.answer("d") is None
source.submit("d", b"graph", {})
assert source.answer("d") is None
told = open(events, "a")
told.write(json.dumps({"type": "submitted", "digest": "d"}))
told.flush()  # a line that has not ended is not read
try:
    open(os.path.join(store, "filler"), "wb").write(bytes(2 ** 22))
except OSError:
    pass
told.write("\\n")  # into the page that it has: the disk is full before anybody answers
told.close()
while True:
    try:
        assert source.answer("d") is None
    except reasons.Refused as refused:
        sys.exit(refused.reason != "store_unreadable")
    time.sleep(0.01)
"""
"""A job that waits for the answer to a request, on a disk that is full."""


def test_a_job_waits_for_no_answer_that_cannot_be_written(
    small_disk: Path, env: dict[str, str], tmp_path: Path
) -> None:
    events = small_disk / "sessions" / "s" / "events.jsonl"
    events.parent.mkdir(parents=True)
    job = [sys.executable, "-c", FULL, str(small_disk), str(events)]
    process = run_job.start(job, env)
    Run(limits(tmp_path, store=small_disk), "s", job, wait=True).follow(process)
    assert process.returncode == 0, "told at once, by what is taken back"


FOLLOWED = """
import json, os, sys, time
events, said, end = sys.argv[1:]
def tell(**event): open(events, "a").write(json.dumps(event) + "\\n")
def until(what):
    for _ in range(20_000):
        if what(): return
        time.sleep(0.01)
    sys.exit(1)
def lives():
    try: os.kill(int(open(said).read().split()[0]), 0)
    except ProcessLookupError: return False
    return True
tell(type="started", tf="2.21.0")
until(lambda: os.path.exists(said) and open(said).read().strip())
tell(type=end, digest="d")
until(lambda: not lives())
"""
"""A job that imports TensorFlow, waits for a worker, tells `end`, and waits until it is gone."""


@pytest.mark.parametrize(("end", "asked"), [("submitted", " d"), ("ready", "")])
def test_a_worker_waits_for_the_first_request(
    end: str, asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked where there is one, and ended where the store had the answer."""
    events, said = tmp_path / "sessions" / "s" / "events.jsonl", tmp_path / "said"
    events.parent.mkdir(parents=True)
    request = tmp_path / "requests" / "d"
    request.mkdir(parents=True)
    (request / "meta.json").write_text('{"tf": "2.21.0", "target": "cpu-x86-64-v3"}')
    code = f"""import os, sys
def say(text): open("{said}", "a").write(text)
say(str(os.getpid()))
say(" " + sys.stdin.readline())"""
    python = tmp_path / "worker.py"
    python.write_text(f"#!{sys.executable}\n{code}\n")
    python.chmod(0o755)
    monkeypatch.setattr("stitchcore.cli.run.worker_python", lambda *_: str(python))
    job = [sys.executable, "-c", FOLLOWED, str(events), str(said), end]
    process = run_job.start(job, os.environ)
    Run(limits(tmp_path, store=tmp_path), "s", job, wait=True).follow(process)
    assert process.returncode == 0
    number, *given = said.read_text().split(" ", 1)
    assert number.isdigit() and "".join(given).strip() == asked.strip()


def test_a_worker_has_the_jobs_tensorflow() -> None:
    assert worker_python(["python"], "2.21.1", "2.21.0") == sys.executable
    assert worker_python(["/no/such/python"], "2.15.1", "2.21.0") is None


def test_a_missing_edited_stage_is_said_before_the_job_starts(
    env: dict[str, str], tmp_path: Path
) -> None:
    missing = tmp_path / "02_plan.txt"
    done = stitch_run({**env, "STITCH_RESTART": str(missing)}, "print('started')")
    assert done.returncode == 2
    assert done.stdout == "" and str(missing) in done.stderr


@pytest.mark.parametrize(("flags", "kept"), [((), True), (("--fresh",), False)])
def test_fresh_clears_failures_on_record(
    flags: tuple[str, ...], kept: bool, env: dict[str, str], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    crash_breaker.record_failure(str(store), "d", "key", "earlier", "kernel says no")
    (store / verdicts.FOLDER).mkdir()
    (store / verdicts.FOLDER / "d.json").write_text("{}")
    done = stitch_run(env, "pass", "--store", str(store), *flags)
    assert done.returncode == 0
    assert (crash_breaker.why_not(str(store), "d", "key") is not None) == kept
    assert (store / verdicts.FOLDER / "d.json").exists() == kept
