"""Runs a training script untouched and stitched, and judges the second by the first.

What is compared: every variable, optimizer slot and fetched gradient after one step against the
same script in float64 (state.py); losses of the first steps and of a whole run; peak memory;
seconds a step. Losses alone would not do: all gradients times 1.5 move an Adam loss by 6e-6 in five
steps.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests import fork_server, lean

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).resolve().parent / "scripts"
Array = np.ndarray[Any, np.dtype[Any]]

FIRST_STEPS = 5
FIRST_TOLERANCE = 1e-5
"""Largest relative difference of the first FIRST_STEPS losses, and the least bar of all others."""

MEMORY_RATIO = 1.02
PLAIN_SECONDS, STITCHED_SECONDS = 900.0, 1200.0
"""A run that takes longer hangs: the longest is a float64 one, minutes on a busy machine."""


@dataclass(frozen=True)
class Job:
    """One script with one optimizer, as `python` runs it."""

    script: str
    optimizer: str = "adam"
    python: str = sys.executable

    def command(self, out: Path, steps: int, extra: Sequence[str] = ()) -> list[str]:
        line = [self.python, str(SCRIPTS / f"{self.script}.py"), "--steps", str(steps)]
        return [*line, "--optimizer", self.optimizer, "--out", str(out), *extra]


@dataclass(frozen=True)
class Record:
    """What a run left: losses, seconds of each step, peak bytes, arrays after step 1, and ours."""

    out: Path
    losses: tuple[float, ...]
    seconds: tuple[float, ...]
    peak_bytes: int
    lines: tuple[str, ...] = ()  # what stitch wrote to stderr
    summary: Mapping[str, Any] = field(default_factory=dict)  # of `stitch run --json`
    update: Mapping[str, float] = field(default_factory=dict)  # Adam's constants (update.py)

    def arrays(self, name: str) -> dict[str, Array]:
        """The arrays of `initial`, `step1` or `decisions` (scripts/recording.py)."""
        with np.load(self.out / f"{name}.npz") as saved:
            return {key: saved[key] for key in saved.files}


class JobFailed(Exception):
    """A script ended with an error; the message has its last lines."""


def _finished(
    command: Sequence[str],
    env: Mapping[str, str],
    out: Path,
    seconds: float,
    forked: bool = False,
) -> subprocess.CompletedProcess[str]:
    out.mkdir(parents=True, exist_ok=True)
    try:
        done = (
            fork_server.run(command, env)
            if forked
            else subprocess.run(command, env=env, capture_output=True, text=True, timeout=seconds)
        )
    except subprocess.TimeoutExpired as hung:
        raise JobFailed(f"{' '.join(command)}: no end within {seconds:.0f} s") from hung
    (out / "stdout.txt").write_text(done.stdout)
    (out / "stderr.txt").write_text(done.stderr)
    if done.returncode != 0 or not (out / "run.json").exists():
        tail = "\n".join(done.stderr.splitlines()[-15:])
        raise JobFailed(f"{' '.join(command)}: exit code {done.returncode}\n{tail}")
    return done


def _record(out: Path, done: subprocess.CompletedProcess[str], summary: dict[str, Any]) -> Record:
    run = json.loads((out / "run.json").read_text())
    lines = tuple(line for line in done.stderr.splitlines() if "[stitch]" in line)
    losses = tuple(json.loads((out / "losses.json").read_text()))
    seconds = tuple(run["seconds"])
    return Record(out, losses, seconds, run["peak_bytes"], lines, summary, run["update"])


def untouched(
    job: Job,
    out: Path,
    steps: int,
    extra: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    forked: bool = False,
) -> Record:
    """Run the script as its user would; `environ` adds environment variables. A `forked` run is not
    for judging time or memory."""
    env = lean.environment(**(environ or {}))
    done = _finished(job.command(out, steps, extra), env, out, PLAIN_SECONDS, forked)
    return _record(out, done, {})


def stitched(
    job: Job,
    out: Path,
    steps: int,
    store: Path,
    extra: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Record:
    """Run the script through `stitch run`. `store` is a folder that also holds cache and key."""
    settings = {
        "STITCH_CACHE": str(store / "cache"),
        "STITCH_KEY": str(store / "signing.key"),
        "PYTHONPATH": str(ROOT),
        **(environ or {}),
    }
    ours = [sys.executable, "-m", "stitchcore.cli", "run", "--wait"]
    ours += ["--json", "--store", str(store / "store"), "--"]
    command = [*ours, *job.command(out, steps, extra)]
    done = _finished(command, lean.environment(**settings), out, STITCHED_SECONDS)
    return _record(out, done, _summary(done.stdout))


def _summary(stdout: str) -> dict[str, Any]:
    """The JSON line that `stitch run` ends with; {} where it could not even begin to stitch."""
    lines = stdout.strip().splitlines()
    return json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}


def events_of(sessions: Path) -> list[dict[str, Any]]:
    """All events of a folder of sessions. A line that is still being written is left out."""
    lines = [
        line
        for path in sessions.glob("*/events.jsonl")
        for line in path.read_text().splitlines(keepends=True)
    ]
    return [json.loads(line) for line in lines if line.endswith("\n")]


@contextmanager
def told(sessions: Path, kind: str, file: Path) -> Iterator[None]:
    """Makes `file` (a script's --until) once a job has written an event of this kind."""
    ended = threading.Event()

    def follow() -> None:
        while not ended.wait(0.1):
            if any(event["type"] == kind for event in events_of(sessions)):
                file.touch()
                return

    follower = threading.Thread(target=follow)
    follower.start()
    try:
        yield
    finally:
        ended.set()
        follower.join()


# ---- judgements --------------------------------------------------------------------------------
def losses_apart(one: Sequence[float], other: Sequence[float]) -> float:
    """Largest relative difference, step by step. Infinite when the counts differ,
    nan (which passes no bar) where a loss is."""
    if len(one) != len(other) or not one:
        return float("inf")
    a, b = np.asarray(one), np.asarray(other)
    largest = np.maximum(np.maximum(np.abs(a), np.abs(b)), 1e-30)
    return float(np.max(np.abs(a - b) / largest))  # nan where a loss is


def losses_bar(threads: Sequence[Record]) -> float:
    """How far losses may drift over a run: what another thread count does, or 1e-5. `threads` are
    untouched runs that differ in their thread count alone; the largest difference of any two
    counts, for where rounding is amplified one pair is one draw of many."""
    pairs = itertools.combinations(threads, 2)
    return max([FIRST_TOLERANCE, *(losses_apart(one.losses, two.losses) for one, two in pairs)])


@dataclass(frozen=True)
class Drift:
    """Losses of a script that amplifies rounding, where one run is one draw. `apart`: the median
    distance of a stitched run from an untouched one; `quartile` and `largest` of the distances
    between untouched runs on different numbers of threads. `exact` and `exact_quartile`: the median
    distance of a stitched run from the float64 one, and the upper quartile of untouched ones'."""

    apart: float
    quartile: float
    largest: float
    exact: float
    exact_quartile: float

    @property
    def holds(self) -> bool:
        """Typically within what a change of the thread count can do, and no farther from exact
        training than TensorFlow is: as everything else here, judged against float64."""
        return self.apart <= self.largest and self.exact <= self.exact_quartile


def drift(stitched: Sequence[Record], threads: Sequence[Record], wide: Record) -> Drift:
    """Of runs on several numbers of threads each (`threads` untouched, two or more), and a run in
    float64."""

    def apart(one: Record, other: Record) -> float:
        return losses_apart(one.losses, other.losses)

    ours = [apart(one, other) for one in stitched for other in threads]
    theirs = [apart(one, other) for one, other in itertools.combinations(threads, 2)]
    exact = [apart(one, wide) for one in stitched]
    exact_theirs = [apart(one, wide) for one in threads]
    bars = (np.quantile(theirs, 0.75), max(theirs), np.quantile(exact_theirs, 0.75))
    quartile, largest, exact_quartile = (max(FIRST_TOLERANCE, float(bar)) for bar in bars)
    return Drift(float(np.median(ours)), quartile, largest, float(np.median(exact)), exact_quartile)


def on_threads(count: int) -> dict[str, str]:
    """Environment of a job on this number of threads."""
    return {"TF_NUM_INTRAOP_THREADS": str(count), "TF_NUM_INTEROP_THREADS": str(count)}


def thread_counts(
    job: Job, base: Path, steps: int, start: Sequence[str], counts: Sequence[int]
) -> list[Record]:
    """Untouched runs on these numbers of threads."""
    return [
        untouched(job, base / f"threads{count}", steps, start, on_threads(count))
        for count in counts
    ]


def bytes_share(store: Path) -> float:
    """Share of the steps' memory-intensive bytes that are inside kernels of two or more operations:
    refused operations (lookups, random numbers, sparse losses) are in the denominator."""
    expected = [
        json.loads(path.read_text())["expect"]
        for path in (store / "store" / "artifacts").glob("*/manifest.json")
    ]
    stitched = sum(one["bytes_stitched"] for one in expected)
    intensive = sum(one["bytes_intensive"] for one in expected)
    return stitched / intensive if intensive else 0.0


def stitched_steps(record: Record) -> list[Mapping[str, Any]]:
    """The graphs of a stitched run whose kernels were swapped in."""
    return [step for step in record.summary.get("steps", ()) if step["status"] == "stitched"]
