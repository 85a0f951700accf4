"""`python -m bench.job_planners [SCRIPT...]`: what each planner makes of the real training scripts.

Each script runs a few steps in `observe` mode, which gives the graphs that it sends to its worker.
Every region of them is lowered once and planned by each planner with the scheduler as judge, as a
worker does. Plans are compared by the C sources of their launches, names apart: where those are
equal in number and order, the job runs the very same code under both planners, and nothing needs to
be timed. Seconds of planning are processor time, each planner in a process of its own, so that none
profits from estimates that another one made.

With `--time`, on a quiet machine, what differs under `auto` is timed (bench/job_planners_time.py);
nothing else is done again. Writes bench/results/job_planners.md after every measurement, so
that either part may be cut short: `--time` goes on from what it finds. `--folder` keeps the graphs
and artifacts for it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path

from msgspec import convert

from bench import record
from bench.job_planners_time import Runs, Timing, regions_timed, timed
from bench.job_regions import REFUSED, Planned, in_child, lowered, planned, requests
from stitchcore.errors import Refused
from stitchcore.fusion.planners import STITCHING
from stitchcore.options import PLANNER
from tests.jobs import judge as judges

SCRIPTS = (
    "mlp_function", "transformer_fit", "cnn_fit", "lstm_lm", "tf1_session", "recommender",
    "accumulate_cond", "fit_jit", "tf1_ref", "small_step", "two_sizes",
)  # fmt: skip
"""Those of bench.jobs, and two that only tests run."""

OPTIMIZERS = ("adam", "sgd")
OTHER = "auto"
"""The planner that is timed against `PLANNER`."""


@dataclass(frozen=True)
class Side:
    """One planner in a row. Kernels are launches of a step, a region that stands in the graph
    several times counted so often; `alone` those that only `PLANNER` or only this one has.
    `apart` names the regions whose launches are not those of `PLANNER`; `code` is equal where all
    launches are."""

    code: str
    kernels: int
    estimated: float
    planning: float
    alone: tuple[int, int]
    apart: tuple[str, ...]

    @property
    def same(self) -> bool:
        return not self.apart


@dataclass(frozen=True)
class Row:
    """One script with one optimizer. `regions` are the distinct structures and how often each
    stands in the job's graphs. `failure` says why there is nothing to compare."""

    script: str
    optimizer: str
    regions: Mapping[str, int]
    sides: Mapping[str, Side]
    timing: Timing | None = None
    failure: str = ""

    @property
    def case(self) -> tuple[str, str]:
        return self.script, self.optimizer

    @property
    def differs(self) -> bool:
        """Whether a job would run other code under `auto`."""
        return OTHER in self.sides and not self.sides[OTHER].same


# ---- comparison --------------------------------------------------------------------------------
def side(one: Planned, base: Planned, uses: Mapping[str, int]) -> Side:
    """`one` beside what `PLANNER` makes of the same regions."""
    counts = [
        sum((_times(found.launches[key], uses[key]) for key in uses), Counter[str]())
        for found in (base, one)
    ]
    return Side(
        code=sha256(repr(sorted(one.launches.items())).encode()).hexdigest()[:16],
        kernels=counts[1].total(),
        estimated=sum(seconds * uses[key] for key, seconds in one.estimated.items()),
        planning=one.planning,
        alone=((counts[0] - counts[1]).total(), (counts[1] - counts[0]).total()),
        apart=tuple(key for key in uses if one.launches[key] != base.launches[key]),
    )


def _times(launches: tuple[str, ...], uses: int) -> Counter[str]:
    return Counter() if launches == REFUSED else Counter(launches * uses)


def compared(job: judges.Job, folder: Path) -> Row:
    """All planners on one job."""
    try:
        found = lowered(requests(job, folder), folder)
    except (judges.JobFailed, Refused) as why:
        return Row(job.script, job.optimizer, {}, {}, failure=str(why).splitlines()[-1][:300])
    made = {
        planner: in_child(partial(planned, found.modules, found.device, planner))
        for planner in STITCHING
    }
    sides = {name: side(one, made[PLANNER], found.uses) for name, one in made.items()}
    return Row(job.script, job.optimizer, found.uses, sides)


# ---- results -----------------------------------------------------------------------------------
def text(rows: Sequence[Row]) -> str:
    names = ", ".join(STITCHING)
    lines = [
        f"| script | optimizer | kernels: {names} | estimated ms | planning s "
        f"| same kernels as {PLANNER} | only {PLANNER} has, only {OTHER} "
        f"| {OTHER} faster: what differs | whole step |",
        "|---" * 9 + "|",
    ]
    for row in rows:
        if row.failure:
            lines.append(f"| {row.script} | {row.optimizer} | {row.failure} |" + " - |" * 6)
            continue
        sides = [row.sides[name] for name in STITCHING]
        others = [name for name in STITCHING if name != PLANNER]
        same = ", ".join(name for name in others if row.sides[name].same)
        regions, steps = _timed(row)
        lines.append(
            f"| {row.script} | {row.optimizer} | {_each(sides, 'kernels', 1, 0)} "
            f"| {_each(sides, 'estimated', 1e3, 3)} | {_each(sides, 'planning', 1, 1)} "
            f"| {same or 'none'} | {', '.join(map(str, row.sides[OTHER].alone))} "
            f"| {regions} | {steps} |"
        )
    return "\n".join([*lines, "", *summary(rows)]) + "\n"


def _each(sides: Sequence[Side], name: str, factor: float, digits: int) -> str:
    return ", ".join(f"{getattr(one, name) * factor:.{digits}f}" for one in sides)


def _timed(row: Row) -> tuple[str, str]:
    """What the last two columns say."""
    if not row.differs:
        return ("the same code",) * 2
    if row.timing is None:
        return ("not timed",) * 2
    timing = row.timing
    before, after = (f"{seconds * 1e3:.3f}" for seconds in timing.seconds)
    steps = str(timing.ratio or "not timed")
    planned_ = (row.sides[PLANNER].kernels, row.sides[OTHER].kernels)
    if timing.kernels not in (None, planned_):
        steps += f" (artifacts of {timing.kernels} kernels)"
    return f"{timing.regions} ({before}, {after} ms)", steps


def summary(rows: Sequence[Row]) -> list[str]:
    """What the rows say together."""
    known = [row for row in rows if not row.failure]
    apart = [row for row in known if row.differs]
    planning = [sum(row.sides[name].planning for row in known) for name in (PLANNER, OTHER)]
    lines = [
        f"Ratios above 1: {OTHER} is faster. {len(known) - len(apart)} of {len(known)} jobs run "
        f"the same code under both. Planning of all: {PLANNER} {planning[0]:.1f} s, {OTHER} "
        f"{planning[1]:.1f} s of processor time."
    ]
    gains = [1 - row.sides[OTHER].estimated / row.sides[PLANNER].estimated for row in apart]
    if gains:
        lines.append(
            f"Where they differ the estimate of {OTHER} is {min(gains):.3%} to {max(gains):.3%} "
            "lower."
        )
    cases = {row.case for row in rows}
    every = itertools.product(SCRIPTS, OPTIMIZERS)
    missing = [" ".join(case) for case in every if case not in cases]
    if missing:
        lines.append(f"Not compared yet: {', '.join(missing)}.")
    return lines


def kept(path: Path) -> list[Row]:
    """The rows of earlier runs."""
    return convert(json.loads(path.read_text())["rows"], list[Row]) if path.exists() else []


def merged(rows: Sequence[Row], fresh: Row) -> list[Row]:
    """`rows` with `fresh` in place of that case's, in order. What was timed stays where the code
    that was timed did."""
    for row in rows:
        if row.case == fresh.case and fresh.timing is None and _code(row) == _code(fresh):
            fresh = replace(fresh, timing=row.timing)
    found = {row.case: row for row in (*rows, fresh)}
    return sorted(found.values(), key=lambda row: (SCRIPTS.index(row.script), row.optimizer))


def _code(row: Row) -> list[str]:
    return [row.sides[name].code for name in (PLANNER, OTHER) if name in row.sides]


def write(rows: Sequence[Row], base: Path) -> None:
    figures = {"rows": [asdict(row) for row in rows]}
    record.write_figures(record.raw(base.with_suffix(".json")), figures)
    record.write_table(base.with_suffix(".md"), text(rows), "python -m bench.job_planners")


def lacking(row: Row, folder: Path, pairs: int, steps: int) -> Iterator[Row]:
    """`row` after each measurement that it lacks; nothing where both planners' code is the same.
    Raises JobFailed."""
    if not row.differs:
        return
    job, planners = judges.Job(*row.case), (PLANNER, OTHER)

    def regions() -> Timing:
        found = lowered(requests(job, folder), folder)
        return regions_timed(found, row.sides[OTHER].apart, planners, folder / "cache")

    for timing in timed(job, row.timing, regions, Runs(folder, planners, steps, pairs)):
        yield replace(row, timing=timing)


def made(
    options: argparse.Namespace, known: Row | None, job: judges.Job, folder: Path
) -> Iterator[Row]:
    """The rows of one case that this run writes, each in place of the last. Raises JobFailed."""
    if not options.time:
        yield compared(job, folder)
    elif known is not None:
        yield from lacking(known, folder, options.pairs, options.steps)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.job_planners", description=__doc__)
    parser.add_argument("scripts", nargs="*", default=SCRIPTS)
    parser.add_argument("--optimizers", nargs="+", default=OPTIMIZERS)
    parser.add_argument("--time", action="store_true", help="time what differs; plan nothing anew")
    parser.add_argument("--pairs", type=int, default=4, help="of whole runs, with --time")
    parser.add_argument("--steps", type=int, default=50, help="of such a run")
    parser.add_argument("--folder", type=Path, help="for graphs and artifacts; default: a new one")
    parser.add_argument("--out", type=Path, default=record.RESULTS / "job_planners")
    options = parser.parse_args()
    rows = kept(record.raw(options.out.with_suffix(".json")))
    with tempfile.TemporaryDirectory(prefix="stitch-job-planners-") as scratch:
        base = options.folder or Path(scratch)
        for case in itertools.product(options.scripts, options.optimizers):
            folder = base / "-".join(case)
            known = next((row for row in rows if row.case == case), None)
            try:
                for row in made(options, known, judges.Job(*case), folder):
                    rows = merged(rows, row)
                    write(rows, options.out)
                    print(text([row]).splitlines()[2], flush=True)
            except judges.JobFailed as why:
                print(f"{' '.join(case)}: {why}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
