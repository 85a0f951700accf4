"""`python -m bench.job_state [SCRIPT...]`: are the stitched scripts' numbers TensorFlow's?

For every (script, optimizer, TensorFlow), from one checkpoint: variables, slots and gradients after
one step under float64 judging, the losses of the first five steps, and the losses of the whole run
beside what a change of the thread count alone does to TensorFlow's, and beside float64's. Nothing
here is timed, so it may run on a busy machine. Writes bench/results/job_state.md; given some
scripts, it replaces their rows and keeps the others.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from bench import record
from tests.jobs import judge as jobs
from tests.jobs import state as states

SCRIPTS = (
    "mlp_function", "transformer_fit", "cnn_fit", "lstm_lm", "tf1_session", "recommender",
    "accumulate_cond", "fit_jit", "tf1_ref",
)  # fmt: skip
SCRIPTS_215 = ("mlp_function", "transformer_fit", "cnn_fit", "tf1_session")
THREADS = (1, 3, 4, 6)
"""Thread counts beside TensorFlow's own choice (one a processor), run where losses drift at all."""


@dataclass(frozen=True)
class Row:
    """One case. Losses are largest relative differences from the untouched run; where those of the
    whole run pass 1e-5, `drift` judges stitched and untouched runs on several numbers of threads.
    `turned` counts decisions that fell differently than in float64. `wrong` names what does not
    hold, `failure` why there is nothing to judge, `note` how else the row was measured."""

    script: str
    optimizer: str
    tensorflow: str
    arrays: int
    turned: int
    first_losses: float
    steps: int
    losses: float
    wrong: tuple[str, ...]
    drift: jobs.Drift | None = None
    failure: str = ""
    note: str = ""

    @property
    def case(self) -> tuple[str, str, str]:
        return self.tensorflow, self.script, self.optimizer

    @property
    def holds(self) -> bool:
        first = self.first_losses <= jobs.FIRST_TOLERANCE
        whole = self.drift.holds if self.drift else self.losses <= jobs.FIRST_TOLERANCE
        return first and whole and not self.wrong and not self.failure


def measure(job: jobs.Job, version: str, steps: int, base: Path) -> Row:
    """The whole runs, and what float64 needs; other thread counts where the least bar is missed."""
    plain = jobs.untouched(job, base / "plain", steps)
    start = ["--checkpoint", str(plain.out / "initial.npz")]
    stitched = jobs.stitched(
        job, base / "stitched", steps, base / "store", start, states.EVERY_STEP
    )
    verdict = states.verdict(job, base, plain, stitched)
    first = slice(jobs.FIRST_STEPS)
    apart = jobs.losses_apart(stitched.losses, plain.losses)
    drifted = None if apart <= jobs.FIRST_TOLERANCE else drift(job, base, steps, plain, stitched)
    return Row(
        job.script,
        job.optimizer,
        version,
        len(verdict.states),
        verdict.turned,
        jobs.losses_apart(stitched.losses[first], plain.losses[first]),
        len(plain.losses),
        drifted.apart if drifted else apart,
        tuple(f"{name}: {what}" for name, what in verdict.wrong.items()),
        drifted,
        "" if jobs.stitched_steps(stitched) else "not swapped in",
    )


def drift(
    job: jobs.Job, base: Path, steps: int, plain: jobs.Record, stitched: jobs.Record
) -> jobs.Drift:
    """judge.drift of this case, each arm on its own number of threads and on THREADS."""
    start = ["--checkpoint", str(plain.out / "initial.npz")]
    untouched = [plain, *jobs.thread_counts(job, base, steps, start, THREADS)]
    ours = [stitched]
    for count in THREADS:
        environ = {**states.EVERY_STEP, **jobs.on_threads(count)}
        out = base / f"stitched{count}"
        ours.append(jobs.stitched(job, out, steps, base / "store", start, environ))
    wide = jobs.untouched(job, base / "exact", steps, [*start, "--dtype", "float64"])
    return jobs.drift(ours, untouched, wide)


def failed(job: jobs.Job, version: str, why: Exception) -> Row:
    nan, why_not = float("nan"), str(why).splitlines()[-1][:300]
    return Row(job.script, job.optimizer, version, 0, 0, nan, 0, nan, (), None, why_not)


def text(rows: Sequence[Row]) -> str:
    lines = [
        "| TensorFlow | script | optimizer | arrays wrong after step 1 | decisions turned "
        "| losses of 5 steps | of a whole run | bar | from float64 | bar | holds |",
        "|---" * 11 + "|",
    ]
    for row in rows:
        bars = f"{jobs.FIRST_TOLERANCE:.1e} | – | –"
        if drift := row.drift:
            bars = f"{drift.largest:.1e} | {drift.exact:.1e} | {drift.exact_quartile:.1e}"
        lines.append(
            f"| {row.tensorflow} | {row.script} | {row.optimizer} "
            f"| {len(row.wrong)} of {row.arrays} | {row.turned} | {row.first_losses:.1e} "
            f"| {row.losses:.1e} ({row.steps} steps) | {bars} "
            f"| {'yes' if row.holds else 'NO'} |"
        )
    told = [(row, told) for row in rows for told in (row.failure, row.note) if told]
    notes = [f"- {' '.join(row.case)}: {what}" for row, what in told]
    wrong = [f"- {' '.join(row.case)}: {what}" for row in rows for what in row.wrong[:3]]
    return "\n".join([*lines, *(["", *notes, *wrong] if notes or wrong else [])]) + "\n"


def kept(path: Path) -> dict[tuple[str, str, str], Row]:
    """The rows of earlier runs, by case."""
    if not path.exists():
        return {}
    told = json.loads(path.read_text())["rows"]
    rows = [msgspec.convert(row, Row) for row in told]
    return {row.case: row for row in rows}


def write(rows: Sequence[Row], base: Path) -> None:
    figures = {"rows": [asdict(row) for row in rows]}
    record.write_figures(record.raw(base.with_suffix(".json")), figures)
    record.write_table(base.with_suffix(".md"), text(rows), "python -m bench.job_state")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.job_state", description=__doc__)
    parser.add_argument("scripts", nargs="*")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--optimizers", nargs="+", default=["adam", "sgd"])
    parser.add_argument("--tensorflow", default="2.21", help="version that --python has")
    parser.add_argument("--python", default=sys.executable, help="the jobs' interpreter")
    parser.add_argument("--out", type=Path, default=record.RESULTS / "job_state")
    options = parser.parse_args()
    every = SCRIPTS if options.tensorflow == "2.21" else SCRIPTS_215
    rows = kept(record.raw(options.out.with_suffix(".json")))
    for script in options.scripts or every:
        for optimizer in options.optimizers:
            job = jobs.Job(script, optimizer, options.python)
            with tempfile.TemporaryDirectory(prefix="stitch-state-") as folder:
                try:
                    row = measure(job, options.tensorflow, options.steps, Path(folder))
                except jobs.JobFailed as why:
                    row = failed(job, options.tensorflow, why)
            rows[row.case] = row
            write([rows[case] for case in sorted(rows)], options.out)
            print(text([row]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
