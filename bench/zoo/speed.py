"""`make bench-jobs`: programs of the zoo untouched, under XLA, stitched, and at their ceiling.

    python -m bench.zoo.speed [--only NAME...] [--pairs 5] [--steps 300] [--seconds 30] [--again]

The programs' own steps are repeated (repeated.py), and each run is a fresh process: untouched, XLA,
stitched, ceiling, untouched, ... The first stitched run makes the artifact and compares blocks of
both kinds of steps within one process; the timed ones find it in the store and are the product as
it comes, which takes back what it finds slower. Writes bench/results/bench_jobs.json, .md and .png.
Rows that are finished stay, on whichever machine: all of them take hours.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bench import record
from bench.zoo import figures, runs
from bench.zoo.figures import CEILING, STITCHED, UNTOUCHED, XLA, Row
from bench.zoo.judge import Run
from stitchcore.verify.timing import Ratio

TABLE = record.RESULTS / "bench_jobs.md"
REPEATED = Path(__file__).resolve().parent / "repeated.py"
KEPT = runs.ROOT / ".cache" / "zoo" / "speed"
COMPILE_SECONDS, START_SECONDS = 900.0, 120.0
"""What the first stitched run may take beside its steps, and any other one."""
PAIRS, STEPS, SECONDS = 5, 300, 30.0
LEAST_SECONDS = 5.0
"""Of a run's steps: the job's side looks at them ten times a second, so that 300 steps of 0.2 ms
end while it still has both kinds in turn, and their median is of neither."""


@dataclass(frozen=True)
class Job:
    """One program, and how long its steps are repeated."""

    program: Path
    folder: Path
    steps: int
    seconds: float

    def command(self) -> list[str]:
        return [runs.python_of(self.program), str(REPEATED), str(self.program)]

    def stitched(self, store: str) -> list[str]:
        ours = [sys.executable, "-m", "stitchcore.cli", "run", "--wait", "--json", "--store"]
        return [*ours, str(self.folder / store), "--", *self.command()]

    @property
    def settings(self) -> dict[str, str]:
        """Of `stitch run`."""
        places = {"STITCH_CACHE": "cache", "STITCH_KEY": "key"}
        made = {name: str(self.folder / place) for name, place in places.items()}
        return {"PYTHONPATH": str(runs.ROOT), **made}

    def run(
        self,
        name: str,
        command: Sequence[str],
        environ: Mapping[str, str],
        beside: float = START_SECONDS,
    ) -> Run:
        """A run, which may take so many seconds beside its steps. Raises runs.Failed."""
        folder = self.folder / name
        times = {"ZOO_LEAST": min(LEAST_SECONDS, self.seconds), "ZOO_SECONDS": self.seconds}
        repeating = {name: f"{seconds:g}" for name, seconds in times.items()}
        repeating["ZOO_STEPS"] = str(self.steps)
        runs.run(command, folder, {**environ, **repeating}, 2 * self.seconds + beside)
        return runs.read(folder)


@dataclass
class Arm:
    """What timed runs of one arm left."""

    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    summaries: list[Mapping[str, Any]] = field(default_factory=list)


def measure(name: str, program: Path, pairs: int, steps: int, seconds: float) -> Row:
    """The program's row; whatever goes wrong is told in it."""
    folder = KEPT / name
    shutil.rmtree(folder, ignore_errors=True)
    try:
        return _measured(Job(program, folder, steps, seconds), pairs)
    except runs.Failed as error:
        return Row(name, note=str(error))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _measured(job: Job, pairs: int) -> Row:
    half = {**job.settings, "STITCH_CONTROL": "0.5"}
    cold = job.run("cold", job.stitched("store"), half, COMPILE_SECONDS)
    _, summary = runs.summed_up(cold.printed)
    _, compile_seconds = runs.reports(job.folder / "store" / "artifacts")
    missing: dict[str, str] = {}
    if why := _make_ceiling(job):
        missing[CEILING] = why
    arms: dict[str, tuple[Sequence[str], Mapping[str, str]]] = {
        UNTOUCHED: (job.command(), {}),
        XLA: (job.command(), runs.XLA),
        STITCHED: (job.stitched("store"), job.settings),
        CEILING: (job.stitched("ceiling"), {**job.settings, "STITCH_CONTROL": "0"}),
    }
    found: defaultdict[str, Arm] = defaultdict(Arm)
    code: int | None = None
    for pair in range(pairs):
        for arm, (command, environ) in arms.items():
            if arm in missing:
                continue
            try:
                made = job.run(f"{arm}{pair}", command, environ)
                code = made.code if code is None else code
                _add(found[arm], made, code, job.folder / f"{arm}{pair}")
            except runs.Failed as error:
                if arm in (UNTOUCHED, STITCHED):
                    raise runs.Failed(f"{arm}: {error}") from error
                missing[arm] = str(error)
                found.pop(arm, None)
    steps = summary.get("steps", ())
    ends = found[STITCHED].summaries
    return figures.row(
        job.program.stem,
        figures.Runs(
            {arm: of.seconds for arm, of in found.items()},
            {arm: of.processor for arm, of in found.items()},
            {arm: of.peaks for arm, of in found.items()},
        ),
        missing=missing,
        steps=min(count for of in found.values() for count in of.steps),
        training=any(step["kind"] == "training" for step in steps),
        within=_within(steps),
        saved=statistics.median(map(_saved, ends)),
        left=Counter(reason for end in ends for reason in _left(end)),
        operations=sum(step["kernels_before"] for step in steps),
        launches=sum(step["kernels_after"] for step in steps),
        kernels=sum(map(_kernels, (job.folder / "store").glob("artifacts/*/manifest.json"))),
        compile_seconds=compile_seconds,
        promised=_promised(job.folder / "store" / "artifacts"),
        machine=record.processor(),
    )


def _add(arm: Arm, made: Run, code: int, folder: Path) -> None:
    seconds = runs.step_seconds(made)
    if made.code != code:
        said = (folder / "stderr").read_text(encoding="utf-8", errors="replace").splitlines()
        last = next((line.strip() for line in reversed(said) if line.strip()), "")
        raise runs.Failed(f"exit code {made.code}, untouched {code} ({last[:100]})")
    if seconds is None or seconds <= 0:
        raise runs.Failed("no steps to time")
    arm.seconds.append(seconds)
    used = np.diff(np.loadtxt(folder / "out" / "processor", ndmin=1))
    arm.processor.append(float(np.median(used[len(used) // 2 :])))
    arm.steps.append(len(made.seconds))
    peak = folder / "out" / "peak"
    if peak.exists():
        arm.peaks.append(int(peak.read_text()))
    _, summary = runs.summed_up(made.printed)
    arm.summaries.append(summary)


def _make_ceiling(job: Job) -> str:
    """Makes the store of the ceiling's run; says why there is none."""
    places = [str(job.folder / name) for name in ("store", "key", "ceiling")]
    command = [sys.executable, "-m", "bench.zoo.ceiling", *places]
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        done = subprocess.run(
            command,
            env=environ,
            cwd=runs.ROOT,
            capture_output=True,
            text=True,
            timeout=COMPILE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"not made within {COMPILE_SECONDS:.0f} s"
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no output"])[-1][:100]
    return "" if any((job.folder / "ceiling").glob("artifacts/*")) else "no region is left"


def _within(steps: Sequence[Mapping[str, Any]]) -> Ratio | None:
    """Original over stitched, of the graph with the most stitched steps."""
    measured = [step for step in steps if step["speedup"] is not None]
    if not measured:
        return None
    return Ratio(*max(measured, key=lambda step: step["steps"])["speedup"])


def _saved(summary: Mapping[str, Any]) -> float:
    """Share of the saveable bytes of all optimized steps that those stitched at the end save."""
    steps = summary.get("steps", ())
    saveable = sum(step["bytes_saveable"] for step in steps)
    saved = sum(step["bytes_saved"] for step in steps if step["status"] == "stitched")
    return saved / saveable if saveable else 0.0


def _left(summary: Mapping[str, Any]) -> set[str]:
    return {step["reason"] for step in summary.get("steps", ()) if step["reason"]}


def _promised(artifacts: Path) -> float:
    """Seconds that the regions of all artifacts, timed alone, take less than TensorFlow's
    operations."""
    reports = (json.loads(path.read_text()) for path in artifacts.glob("*/report.json"))
    regions = (region for report in reports for region in report["regions"])
    return float(sum(of["seconds_before"] - of["seconds_after"] for of in regions))


def _kernels(manifest: Path) -> int:
    return len(json.loads(manifest.read_text())["kernels"])


# ---- rows ----------------------------------------------------------------------------------------
def kept(path: Path) -> dict[str, Row]:
    """The rows of earlier runs."""
    if not path.exists():
        return {}
    rows = [msgspec.convert(told, Row) for told in json.loads(path.read_text())["rows"]]
    return {row.name: row for row in rows}


def due(
    names: Sequence[str], rows: Mapping[str, Row], pairs: int, again: bool = False
) -> list[str]:
    """Those of `names` that have no row yet, or one of fewer pairs; all of them `again`. What could
    not be measured is not tried by itself a second time."""
    return [
        name
        for name in names
        if again or name not in rows or (not rows[name].note and rows[name].pairs < pairs)
    ]


def write(rows: Mapping[str, Row]) -> None:
    every = [rows[name] for name in sorted(rows)]
    told = {"rows": [msgspec.to_builtins(row) for row in every]}
    record.write_figures(TABLE.with_suffix(".json"), told)
    how = figures.how(every, len(os.sched_getaffinity(0)))
    record.write_table(TABLE, figures.text(every, how), "make bench-jobs")
    plot(figures.ordered(every), TABLE.with_suffix(".png"))


def plot(rows: Sequence[Row], path: Path) -> None:
    """Each program's ratio with its interval, the best on top."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import ScalarFormatter

    shown = [(row, found) for row in rows if (found := row.ratio) is not None]
    figure = Figure(figsize=(9, 1.2 + 0.22 * len(shown)), layout="constrained")
    axes = figure.subplots()
    for place, (_, found) in enumerate(shown):
        colour = "#9aa5b1" if figures.undecided(found) else "#2f855a"
        colour = "#c53030" if found.high < 1.0 else colour
        axes.plot([found.low, found.high], [place, place], color=colour, linewidth=1.5)
        axes.plot([found.value], [place], "o", color=colour, markersize=4)
    axes.set_yticks(range(len(shown)), [row.name for row, _ in shown], fontsize=8)
    axes.set_ylim(max(len(shown), 1) - 0.5, -0.5)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_formatter(ScalarFormatter())
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("seconds a step: the better of TensorFlow and XLA / stitched, 95 % intervals")
    figure.savefig(path, dpi=90)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.zoo.speed", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="runs of each arm")
    parser.add_argument("--steps", type=int, default=STEPS, help="at least, where seconds suffice")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of a run, at most")
    parser.add_argument("--again", action="store_true", help="also what has a row")
    options = parser.parse_args(arguments)
    every = runs.programs()
    unknown = sorted(set(options.only) - set(every))
    if unknown:
        parser.error(f"no program is called {', '.join(unknown)}")
    old = kept(TABLE.with_suffix(".json"))
    rows = {name: row for name, row in old.items() if name in every}
    commit = record.commit()  # before this run changes a file
    for name in due(options.only or list(every), rows, options.pairs, options.again):
        row = measure(name, every[name], options.pairs, options.steps, options.seconds)
        rows[name] = replace(row, commit=commit)
        write(rows)
        print(f"{name}: {row.note or row.ratio}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
