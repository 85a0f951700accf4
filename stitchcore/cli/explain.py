"""`stitch explain`: why an operation was refused, or why two are not in one kernel.

Of a module (`--module`) the plan is made anew and the rule is named. Of a job, the artifact's
report is read, and the plan of a region asked again: of the newest artifact in the store, of the
one whose key begins with `--artifact`, or of all that a session used (`--session`). Names are those
of the script, or their last parts.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
import msgspec

from stitchcore import options as settings
from stitchcore.cli import common, module_pipeline
from stitchcore.cli.run_job import EventFile, Record
from stitchcore.device.records import Device
from stitchcore.errors import Refusal, Refused
from stitchcore.fusion import explain as why
from stitchcore.fusion.cost import cost
from stitchcore.fusion.explain import SOURCE, Explanation, Place
from stitchcore.fusion.pattern import Feasibility, Pattern, Plan
from stitchcore.fusion.planners import PLANNERS
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.hlo.text.printer import names
from stitchcore.optimize import explain as jobs
from stitchcore.report import schema as reports
from stitchcore.report.reasons import meaning
from stitchcore.report.schema import Report, ReportModule
from stitchcore.schedule.pipeline import choices, feasible, schedule

LISTED = 8
"""Names listed where several operations are meant."""


@dataclass(frozen=True)
class Job:
    """One graph of a job: its report, and the modules of regions with several kernels."""

    report: Report
    modules: Mapping[str, ReportModule]


@click.command("explain")
@click.argument("first", required=False)
@click.argument("second", required=False)
@click.option("--pair", nargs=2, metavar="A B", help="The two operations, as options.")
@click.option("--module", type=click.Path(path_type=Path), help="A .hlo or .hlo.xz file.")
@click.option("--target", default=None, help="Device record; default: this machine.")
@click.option("--planner", default=None, help=f"Of a module: {', '.join(PLANNERS)}.")
@click.option("--store", type=click.Path(path_type=Path), default=None, help="Store of the job.")
@click.option("--artifact", default="", help="First digits of an artifact's key.")
@click.option("--session", default=None, help="A session's name or folder, or its first digits.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def command(
    first: str | None,
    second: str | None,
    pair: tuple[str, str] | None,
    module: Path | None,
    target: str | None,
    planner: str | None,
    store: Path | None,
    artifact: str,
    session: str | None,
    as_json: bool,
) -> None:
    """Explain where operation FIRST ended or, with SECOND, why the two are not in one kernel."""
    output = common.Output(as_json)
    if pair:
        first, second = pair
    if first is None:
        common.fail(output, "explain", "no operation is named", "name one, two, or --pair A B")
    if module is not None:
        _of_module(module, target, planner, first, second, output)
        return
    where = (store or settings.of_this_process().store).absolute()
    graphs = _session(where, session, output) if session else _newest(where, artifact, output)
    _of_job(graphs, first, second, output)


# ---- of a module -------------------------------------------------------------------------------
def _of_module(
    path: Path,
    target: str | None,
    planner: str | None,
    first: str,
    second: str | None,
    output: common.Output,
) -> None:
    state, _ = module_pipeline.run(path, output, "plan", target=target, planner=planner)
    plan = module_pipeline.plan_of(state)
    values = [_instruction(plan, name, path, output) for name in (first, second) if name]
    if len(values) == 1:
        _show_places([_with_choices(plan, values[0], state.device)], output)
        return
    _show(why.explain(plan, values[0], values[1], state.device, cost, _schedulable(plan)), output)


def _with_choices(plan: Plan, value: Instruction, device: Device) -> Place:
    """Where `value` ended, and what the scheduler chose for it there."""
    ended = why.place(plan, value)
    chosen = (
        f"kernel {number}: {choice}"
        for number in ended.kernels
        for kept, choice in choices(plan.patterns[number], plan.module, device)
        if kept is value
    )
    return replace(ended, choices=tuple(chosen))


def _instruction(plan: Plan, name: str, path: Path, output: common.Output) -> Instruction:
    found = why.find(plan.module, name)
    if not found:
        origins = {origin for sources in plan.module.provenance.values() for origin in sources}
        known = sorted({*names(plan.module).values(), *origins})
        mend = "`stitch plan --dump DIR` lists the names"
        close = difflib.get_close_matches(name.removeprefix("%"), known, jobs.NEAR, 0.6)
        common.fail(output, name, f"not in {path}", _near(close, mend))
    return found[0]


def _near(close: Sequence[str], otherwise: str) -> str:
    return f"did you mean {', '.join(close)}? Otherwise: {otherwise}" if close else otherwise


def _schedulable(plan: Plan) -> Feasibility:
    """Whether the scheduler takes a pattern, by asking it."""

    def ask(pattern: Pattern, device: Device) -> Refusal | None:
        try:
            schedule(pattern, plan.module, device, "explain")
        except Refused as refused:
            return refused.refusal
        return feasible(pattern, device)

    return ask


# ---- of a job ----------------------------------------------------------------------------------
def _newest(store: Path, prefix: str, output: common.Output) -> list[Job]:
    folders = sorted(
        (path for path in store.glob(f"artifacts/{prefix}*/report.json")),
        key=lambda path: path.stat().st_mtime,
    )
    if not folders:
        where = f"{store}/artifacts/{prefix}*"
        common.fail(output, where, "no report there", "run `stitch run -- python train.py` first")
    return [_read(folders[-1].parent, output)]


def _session(store: Path, session: str, output: common.Output) -> list[Job]:
    """The artifacts that a session used, one per graph."""
    folder = Path(session)
    if not (folder / "events.jsonl").exists():
        events = sorted(store.glob(f"sessions/{session}*/events.jsonl"))
        if not events:
            known = sorted(path.parent.name for path in store.glob("sessions/*/events.jsonl"))
            mend = f"sessions there: {', '.join(known[-LISTED:]) or 'none'}"
            common.fail(output, f"session {session}", f"not in {store}/sessions", mend)
        folder = events[-1].parent
    record = Record()
    for event in EventFile(folder / "events.jsonl").read():
        record.add(event)
    home = folder.parent.parent
    keys = dict.fromkeys(graph.key for graph in record.graphs.values() if graph.key)
    jobs_ = [
        _read(home / "artifacts" / key, output)
        for key in keys
        if (home / "artifacts" / key / "report.json").exists()
    ]
    if not jobs_:
        causes = {f"{g.reason} {g.detail}".strip() for g in record.graphs.values() if g.reason}
        causes |= {f"{count} x {reason}" for reason, count in record.refusals.items()}
        reason = "; ".join(sorted(causes)) or "no training step was seen"
        mend = "nothing was built, so there is no report to explain from; see the reasons"
        common.fail(output, f"session {folder.name}", reason, mend)
    return jobs_


def _read(folder: Path, output: common.Output) -> Job:
    try:
        report = reports.decode((folder / "report.json").read_bytes())
        stored = folder / reports.MODULES
        return Job(report, reports.decode_modules(stored.read_bytes()) if stored.exists() else {})
    except (msgspec.DecodeError, OSError) as error:
        common.fail(output, str(folder), str(error), "`stitch run --fresh` builds it again")


def _of_job(graphs: Sequence[Job], first: str, second: str | None, output: common.Output) -> None:
    job = next((graph for graph in graphs if jobs.find(graph.report, first)), graphs[0])
    positions = [_positions(job.report, name, output) for name in (first, second) if name]
    if len(positions) == 1:
        _show_places([jobs.place(job.report, position) for position in positions[0]], output)
        return
    for name, several in zip((first, second), positions, strict=True):
        if len(several) > 1:
            listed = [jobs.place(job.report, position).name for position in several[:LISTED]]
            more = f" and {len(several) - LISTED} more" if len(several) > LISTED else ""
            why_ = f"{len(several)} operations have this name: {', '.join(listed)}{more}"
            common.fail(output, str(name), why_, "name one of them in full")
    first_position, second_position = positions[0][0], positions[1][0]
    _show(jobs.explain(job.report, job.modules, first_position, second_position), output)


def _positions(report: Report, name: str, output: common.Output) -> list[int]:
    found = jobs.find(report, name)
    if not found:
        mend = _near(jobs.near(report, name), "report.html lists the operations")
        common.fail(output, name, f"no such operation in {report.title}", mend)
    return found


# ---- output ------------------------------------------------------------------------------------
def _line(place: Place) -> str:
    if place.kernels:
        return f"{place.name} ({place.opcode}): kernel {', '.join(map(str, place.kernels))}"
    if place.reason == SOURCE:
        return f"{place.name} ({place.opcode}): {place.detail or 'no work of its own'}"
    because = ": ".join(filter(None, (meaning(place.reason), place.detail)))
    line = f"{place.name} ({place.opcode}): left as it was, {place.reason}"
    return line + (f" ({because})" if because else "")


def _show_places(places: list[Place], output: common.Output) -> None:
    if output.as_json:
        output.document([{**asdict(place), "meaning": meaning(place.reason)} for place in places])
    for place in () if output.as_json else places:
        for line in (_line(place), *(f"  {choice}" for choice in place.choices)):
            output.console.print(line, soft_wrap=True)


def _show(explanation: Explanation, output: common.Output) -> None:
    if output.as_json:
        document: dict[str, Any] = asdict(explanation)
        output.document(document)
        return

    def say(line: str) -> None:
        output.console.print(line, soft_wrap=True)

    say(_line(explanation.first))
    say(_line(explanation.second))
    if explanation.together:
        say("One kernel holds both.")
        return
    reason = f"{explanation.reason}: " if explanation.reason else ""
    say(f"Not in one kernel. {reason}{explanation.detail}")
    if explanation.path:
        say("through " + " → ".join(explanation.path))
    for difference in explanation.differences:
        say(f"  they differ: {difference}")
