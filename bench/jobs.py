"""`python -m bench.jobs [SCRIPT...]`: real training scripts, untouched against stitched.

Two measurements of speed. *Within one run* blocks of stitched steps alternate with blocks of the
original step (STITCH_CONTROL=0.5), so that both meet the same machine: the ratio and its 95 %
interval are the job's own, over pairs of neighbouring blocks. *Between runs* processes alternate,
each from the same initial variables: what the hook itself costs is in it, and the machine's drift.
Scripts of XLA_SCRIPTS also run with their step under `jit_compile=True`, as a third process of each
pair. Rows of earlier runs stay where they are not measured again, each with the machine it is from.
Prints the bars beside what was measured: speed, losses over the whole run, memory, bytes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench import record
from stitchcore.verify.timing import Ratio, paired_ratio
from tests.jobs import judge as judges

SCRIPTS = (
    "mlp_function",
    "transformer_fit",
    "cnn_fit",
    "lstm_lm",
    "tf1_session",
    "recommender",
    "accumulate_cond",
    "fit_jit",
    "tf1_ref",
)
XLA_SCRIPTS = ("mlp_function",)
"""Scripts that take `--jit`."""

WITHIN_STEPS = 200
WARM_STEPS = 10
"""Steps left out of a run's figure: tracing, first page faults."""


@dataclass(frozen=True)
class Row:
    """One script. Seconds are medians of run medians; None without pairs of runs, for the run that
    makes the artifact is no warm one. Ratios above 1 mean stitched is faster.

    `within` compares blocks of one run, `speedup` runs, `xla` untouched runs with runs under XLA;
    None where none could be measured.
    `losses_apart` and `losses_bar` are of the whole run (tests/jobs/judge.py).
    """

    script: str
    optimizer: str
    seconds: float | None
    stitched_seconds: float | None
    within: Ratio | None
    speedup: Ratio | None
    losses_apart: float
    losses_bar: float
    memory_ratio: float
    bytes_share: float
    stitched: bool
    note: str = ""
    xla: Ratio | None = None
    machine: str = field(default_factory=record.processor)


def step_seconds(record: judges.Record) -> float:
    return float(np.median(record.seconds[WARM_STEPS:]))


def within_one_run(record: judges.Record) -> Ratio | None:
    """The speed-up that the job itself measured, of the graph with the most stitched steps."""
    measured = [step for step in record.summary.get("steps", []) if step["speedup"] is not None]
    if not measured:
        return None
    return Ratio(*max(measured, key=lambda step: step["steps"])["speedup"])


def measure(job: judges.Job, steps: int, pairs: int, folder: Path) -> Row:
    """Alternate untouched and stitched runs. The first stitched run makes the artifact; without
    pairs it and the first untouched one are all there is, and only `within` is a comparison."""
    base = folder / f"{job.script}-{job.optimizer}"
    first = judges.untouched(job, base / "first", steps)
    start = ["--checkpoint", str(first.out / "initial.npz")]
    threads = judges.thread_counts(job, base, steps, start, (1,))
    cold = judges.stitched(job, base / "cold", steps, base / "store", start)
    alternating = judges.stitched(
        job, base / "within", WITHIN_STEPS, base / "store", start, {"STITCH_CONTROL": "0.5"}
    )
    plain, stitched = ([], []) if pairs else ([first], [cold])
    compiled: list[judges.Record] = []
    for pair in range(pairs):
        plain.append(judges.untouched(job, base / f"plain{pair}", steps, start))
        stitched.append(
            judges.stitched(job, base / f"stitched{pair}", steps, base / "store", start)
        )
        if job.script in XLA_SCRIPTS:
            under_xla = [*start, "--jit"]
            compiled.append(judges.untouched(job, base / f"xla{pair}", steps, under_xla))
    before = [step_seconds(record) for record in plain]
    after = [step_seconds(record) for record in stitched]
    ran = bool(judges.stitched_steps(stitched[-1]))
    apart = max(judges.losses_apart(record.losses, plain[0].losses) for record in stitched)
    peaks = [float(np.median([record.peak_bytes for record in runs])) for runs in (stitched, plain)]
    return Row(
        job.script,
        job.optimizer,
        float(np.median(before)) if pairs else None,
        float(np.median(after)) if pairs else None,
        within_one_run(alternating),
        paired_ratio(before, after) if pairs else None,
        apart,
        judges.losses_bar([plain[0], *threads]),
        peaks[0] / peaks[1],
        judges.bytes_share(base / "store"),
        ran,
        "" if ran else "; ".join(stitched[-1].lines)[:300],
        paired_ratio(before, [step_seconds(one) for one in compiled]) if compiled else None,
    )


def failed(job: judges.Job, why: Exception) -> Row:
    nan = float("nan")
    note = str(why).splitlines()[-1][:300]
    return Row(job.script, job.optimizer, None, None, None, None, nan, nan, nan, 0.0, False, note)


def milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.1f}"


def text(rows: Sequence[Row]) -> str:
    lines = [
        "| script | optimizer | machine | untouched ms | stitched ms "
        "| speed-up within a run [95 %] | between runs | XLA between runs | losses apart (bar) "
        "| memory | bytes stitched |",
        "|---" * 11 + "|",
    ]
    for row in rows:
        lines.append(
            f"| {row.script} | {row.optimizer} | {row.machine} | {milliseconds(row.seconds)} "
            f"| {milliseconds(row.stitched_seconds)} | {row.within or '-'} | {row.speedup or '-'} "
            f"| {row.xla or '-'} | {row.losses_apart:.1e} ({row.losses_bar:.1e}) "
            f"| {row.memory_ratio:.3f} "
            f"| {row.bytes_share:.0%}{'' if row.stitched else ' (not swapped in)'} |"
        )
    notes = [f"- {row.script} {row.optimizer}: {row.note}" for row in rows if row.note]
    return "\n".join([*lines, *(["", *notes] if notes else [])]) + "\n"


def plot(rows: Sequence[Row], path: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print(f"no plot: pip install matplotlib to get {path.name}")
        return
    shown = [row for row in rows if row.within is not None]
    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.subplots()
    ratios = [row.within for row in shown if row.within is not None]
    heights = [ratio.value for ratio in ratios]
    spread = [[r.value - r.low for r in ratios], [r.high - r.value for r in ratios]]
    axes.bar(range(len(shown)), heights, yerr=spread, capsize=3)
    names = [f"{row.script}\n{row.optimizer}" for row in shown]
    axes.set_xticks(range(len(shown)), names, rotation=20, ha="right")
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_ylabel("untouched / stitched seconds a step")
    figure.savefig(path, dpi=110)


def kept(path: Path) -> list[Row]:
    """The rows of earlier runs."""
    if not path.exists():
        return []
    return [_row(told) for told in json.loads(path.read_text())["rows"]]


def _row(told: dict[str, Any]) -> Row:
    ratios = ("within", "speedup", "xla")
    made = {name: Ratio(**told[name]) for name in ratios if told.get(name) is not None}
    return Row(**{**told, **made})


def ordered(rows: Sequence[Row]) -> list[Row]:
    """The last row of each case: first all scripts with Adam, then with SGD."""
    last = {(row.optimizer, SCRIPTS.index(row.script)): row for row in rows}
    return [last[case] for case in sorted(last)]


def write(rows: Sequence[Row], base: Path) -> None:
    figures = {"rows": [asdict(row) for row in rows]}
    record.write_figures(record.raw(base.with_suffix(".json")), figures)
    each = "on each row's machine"
    record.write_table(base.with_suffix(".md"), text(rows), "python -m bench.jobs", each)
    plot(rows, record.raw(base.with_suffix(".png")))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.jobs", description=__doc__)
    parser.add_argument("scripts", nargs="*", default=SCRIPTS)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--pairs", type=int, default=4, help="of runs; 0: blocks of one run only")
    parser.add_argument("--optimizers", nargs="+", default=["adam", "sgd"])
    parser.add_argument("--python", default=sys.executable, help="the jobs' interpreter")
    parser.add_argument("--out", type=Path, default=record.RESULTS / "jobs")
    options = parser.parse_args()
    rows = kept(record.raw(options.out.with_suffix(".json")))
    with tempfile.TemporaryDirectory(prefix="stitch-jobs-") as folder:
        for script in options.scripts:
            for optimizer in options.optimizers:
                job = judges.Job(script, optimizer, options.python)
                try:
                    rows.append(measure(job, options.steps, options.pairs, Path(folder)))
                except judges.JobFailed as why:
                    rows.append(failed(job, why))
                print(text(rows[-1:]).splitlines()[-1], flush=True)
                write(
                    ordered(rows), options.out
                )  # a run that is cut short keeps what it has measured
    print(text(ordered(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
