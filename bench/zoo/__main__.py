"""`python -m bench.zoo [NAME...]`: every program untouched, under XLA and stitched, judged.

Writes bench/results/zoo.md. Rows that are finished stay: a run that was cut short goes on where it
stopped, and `--again` measures anew. A program that fails or hangs is a row like any other. Ends
with 1 where a program did not end as untouched.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import record
from bench.zoo import runs
from stitchcore.report.markup import seconds_text

TABLE = record.RESULTS / "zoo.md"
SHOWN = 3
"""Of the differences of a program, of the reasons in its row, of a reason's operations."""


@dataclass(frozen=True)
class Row:
    """One program. `wrong`: what the stitched run did otherwise; `note`: why nothing was judged.
    `refused`: why steps were left whole; `left`: bytes that were left in the others, by reason and
    operation. Seconds are medians of a step, None where the run did not come that far."""

    name: str
    wrong: tuple[str, ...] = ()
    note: str = ""
    same: bool = False
    stitched: int = 0
    steps: int = 0
    refused: tuple[str, ...] = ()
    left: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    saved: float = 0.0
    seconds: float | None = None
    xla: float | None = None
    stitched_seconds: float | None = None
    compile_seconds: float = 0.0
    worst: tuple[float, str] = (0.0, "")

    @property
    def as_untouched(self) -> bool:
        return not self.wrong and not self.note

    @property
    def reasons(self) -> str:
        """Why anything was left: of whole steps, then the most bytes of others."""
        moved = {reason: sum(operations.values()) for reason, operations in self.left.items()}
        total = sum(moved.values())
        most = sorted(moved, key=lambda reason: -moved[reason])[:SHOWN]
        return ", ".join([*self.refused, *(f"{r} {moved[r] / total:.0%}" for r in most)])


def measure(name: str, program: Path) -> Row:
    """The program's row; whatever goes wrong is told in it."""
    try:
        plain, ours, verdict = runs.judged(program)
    except Exception as error:  # a row, never the end of the others
        return Row(name, note=f"{type(error).__name__}: {error}")
    try:
        under_xla = runs.untouched(program, "xla", runs.XLA)
        xla = runs.step_seconds(under_xla) if under_xla.code == plain.code else None
    except runs.Failed:
        xla = None
    return Row(
        name,
        verdict.wrong,
        same=verdict.same,
        stitched=ours.stitched,
        steps=len(ours.steps),
        refused=ours.refused,
        left=ours.left,
        saved=ours.saved,
        seconds=runs.step_seconds(plain),
        xla=xla,
        stitched_seconds=runs.step_seconds(ours.run),
        compile_seconds=ours.compile_seconds,
        worst=verdict.worst,
    )


# ---- the table -----------------------------------------------------------------------------------
def text(rows: Sequence[Row]) -> str:
    ended = sum(row.as_untouched for row in rows)
    stitched = sum(row.stitched > 0 for row in rows)
    lines = [
        f"{ended} of {len(rows)} end as untouched, {stitched} have a step stitched.",
        "",
        "| program | ends as untouched | steps stitched | saved of saveable bytes | left because "
        "| untouched ms | XLA ms | stitched ms | compiled in |",
        "|---" * 9 + "|",
    ]
    for row in rows:
        ends = "yes" if row.as_untouched else "**no**"
        times = (row.seconds, row.xla, row.stitched_seconds)
        shown = " | ".join("-" if s is None else f"{s * 1e3:.2f}" for s in times)
        took = seconds_text(row.compile_seconds) if row.compile_seconds else "-"
        lines.append(
            f"| {row.name} | {ends} | {row.stitched} of {row.steps} | {row.saved:.0%} "
            f"| {row.reasons} | {shown} | {took} |"
        )
    notes = [f"- {row.name}: {row.note}" for row in rows if row.note]
    wrong = [f"- {row.name}: {what}" for row in rows for what in row.wrong[:SHOWN]]
    told = ["", *notes, *wrong] if notes or wrong else []
    return "\n".join([*lines, *told, "", *_left(rows)]) + "\n"


def _left(rows: Sequence[Row]) -> list[str]:
    """What the steps that are stitched leave to TensorFlow, over all programs, by bytes."""
    moved: defaultdict[str, Counter[str]] = defaultdict(Counter)
    programs: Counter[str] = Counter()
    for row in rows:
        programs.update(list(row.left))
        for reason, operations in row.left.items():
            moved[reason].update(operations)
    lines = [
        "Bytes that the operations left to TensorFlow move in a step, over all programs:",
        "",
        "| reason | MB | programs | operations with most of them |",
        "|---|---|---|---|",
    ]
    for reason in sorted(moved, key=lambda reason: -moved[reason].total()):
        most = ", ".join(
            f"{operation} {size / 1e6:.3g}" for operation, size in moved[reason].most_common(SHOWN)
        )
        size = moved[reason].total() / 1e6
        lines.append(f"| `{reason}` | {size:.3g} | {programs[reason]} | {most} |")
    return lines


def kept(path: Path) -> dict[str, Row]:
    """The rows of earlier runs."""
    if not path.exists():
        return {}
    rows = [msgspec.convert(told, Row) for told in json.loads(path.read_text())["rows"]]
    return {row.name: row for row in rows}


def write(rows: dict[str, Row]) -> None:
    ordered = [rows[name] for name in sorted(rows)]
    figures = {"rows": [msgspec.to_builtins(row) for row in ordered]}
    record.write_figures(record.raw(TABLE.with_suffix(".json")), figures)
    record.write_table(TABLE, text(ordered), "python -m bench.zoo")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.zoo", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--jobs", type=int, default=1, help="programs at a time")
    parser.add_argument("--again", action="store_true", help="also what has a row")
    options = parser.parse_args()
    every = runs.programs()
    unknown = sorted(set(options.names) - set(every))
    if unknown:
        parser.error(f"no program is called {', '.join(unknown)}")
    old = kept(record.raw(TABLE.with_suffix(".json")))
    rows = {name: row for name, row in old.items() if name in every}
    chosen = [name for name in options.names or every if options.again or name not in rows]
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with (
        Progress(*columns, TimeElapsedColumn(), console=console) as progress,
        ThreadPoolExecutor(options.jobs) as pool,
    ):
        task = progress.add_task("zoo", total=len(chosen))
        made = [pool.submit(functools.partial(measure, name, every[name])) for name in chosen]
        for done in as_completed(made):
            row = done.result()
            rows[row.name] = row
            write(rows)
            progress.advance(task)
            console.print(_line(row), markup=False, highlight=False)
    judged = [rows[name] for name in options.names or every if name in rows]
    return 0 if all(row.as_untouched for row in judged) else 1


def _line(row: Row) -> str:
    ends = (
        "as untouched"
        if row.as_untouched
        else "NOT AS UNTOUCHED " + "; ".join((row.note, *row.wrong[:SHOWN]))
    )
    steps = f"{row.stitched} of {row.steps} steps stitched, {row.saved:.0%} saved"
    worst = f"worst {row.worst[0]:.2f} of its bar ({row.worst[1]})"
    return f"{row.name}: {ends}; {steps}; {worst}; {row.reasons}"


if __name__ == "__main__":
    sys.exit(main())
