"""Every fault on purpose in the job side, early and late in a run: the table of docs/faults.md.

    python -m bench.faults [--program NAME] [--fault NAME]

Three programs (a tf.function with random numbers of a kernel's own, a TensorFlow 1 session, Keras
fit), each fault of tests/jobs/faults.py; a failed launch once for each kernel. A job has survived
when its exit code and every line it prints are the untouched run's: losses, random numbers,
variables. Writes bench/results/faults.md and exits with 1 when one has not.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.progress import track

from bench import record
from tests.jobs import faults
from tests.jobs.faults import LATE, Outcome, Prepared


@dataclass(frozen=True)
class Row:
    """What a fault did to each program, by the call at which it happened."""

    about: str
    survived: int
    runs: int
    reasons: frozenset[str]


def occasions(fault: faults.Fault, prepared: Prepared) -> Iterator[tuple[str, int]]:
    """(fault, pass) of each run: a launch's for every kernel."""
    every = fault.name == "native:launch"
    names = [f"{fault.name}:{k}" for k in range(prepared.kernels)] if every else [fault.name]
    for name in names:
        yield name, 1
        if fault.late:
            yield name, LATE


def row(about: str, outcomes: list[tuple[Prepared, Outcome]]) -> Row:
    """The sum of a fault's runs."""
    survived = sum(outcome.survived(prepared) for prepared, outcome in outcomes)
    reasons = frozenset(outcome.reason or "-" for _, outcome in outcomes)
    return Row(about, survived, len(outcomes), reasons)


def measured(programs: list[str], names: list[str], folder: Path) -> list[Row]:
    """A row for each fault."""
    prepared = [faults.prepare(name, folder / name) for name in programs]
    chosen = [fault for fault in faults.ALL if not names or fault.name in names]
    rows = []
    for fault in track(chosen, description="faults"):
        outcomes = []
        for one in prepared:
            for name, occasion in occasions(fault, one):
                outcome = faults.run(one, name, occasion, folder)
                outcomes.append((one, outcome))
                if not outcome.survived(one):
                    print(f"{one.program.stem} {name} {occasion}: exit {outcome.code}")
                    print(outcome.errors[-1500:])
        rows.append(row(fault.about, outcomes))
    if not names:
        killed = [(one, faults.killed_worker(one, folder)) for one in prepared]
        rows.append(row("the worker is killed (SIGKILL)", killed))
    return rows


def table(rows: list[Row]) -> str:
    """Markdown of all rows and their sum."""
    lines = ["| fault | jobs survived | what the summary says |", "|---|---|---|"]
    for one in rows:
        said = ", ".join(sorted(one.reasons)).replace("-", "stitched") if one.reasons else ""
        lines.append(f"| {one.about} | {one.survived} of {one.runs} | {said} |")
    whole = sum(one.survived for one in rows), sum(one.runs for one in rows)
    return "\n".join([*lines, f"| all | {whole[0]} of {whole[1]} | |"]) + "\n"


def main() -> int:
    """Run, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", action="append", choices=faults.NAMES, default=[])
    parser.add_argument("--fault", action="append", default=[])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stitch-faults-") as folder:
        rows = measured(given.program or list(faults.NAMES), given.fault, Path(folder))
    print(table(rows))
    if not given.program and not given.fault:
        record.write_table(record.RESULTS / "faults.md", table(rows), "python -m bench.faults")
    return int(any(one.survived < one.runs for one in rows))


if __name__ == "__main__":
    raise SystemExit(main())
