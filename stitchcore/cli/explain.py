"""`stitch explain`: what was left to TensorFlow, why an operation was, or why two are not in one
kernel.

Of a module (`--module`) the plan is made anew and the rule is named. Of a job, the artifact's
report is read, and the plan of a region asked again: of the newest artifact in the store, or of
what is named as `stored.py` says. Names of operations are those of the script, or their last parts.
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
from stitchcore.cli import common, last_job, module_pipeline, stored
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
from stitchcore.report.reasons import PAGE, meaning
from stitchcore.report.reasons import mend as mend_of
from stitchcore.report.schema import Report, ReportModule
from stitchcore.report.view import reasons
from stitchcore.schedule.pipeline import choices, feasible, schedule

LISTED = 8
"""Names listed where several operations are meant."""
MOST_LISTED = 10
"""Operations listed of a reason."""


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
@click.option("--artifact", "--graph", "artifact", default="",
              help="Key of an artifact or digest of a graph, or its first digits.")  # fmt: skip
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
    """Explain where operation FIRST ended or, with SECOND, why the two are not in one kernel.

    Without an operation: what your last job left to TensorFlow, the most bytes first. FIRST may
    also be a reason (`library_call`), or name an artifact, a graph or a session.
    """
    output = common.Output(as_json)
    if pair:
        first, second = pair
    if module is not None:
        if first is None:
            mend = "name one of the module, two, or --pair A B"
            common.fail(output, "explain --module", "no operation is named", mend)
        _of_module(module, target, planner, first, second, output)
        return
    if first is not None and second is None and meaning(first):
        _show_reason(first, output)
        return
    where = (store or settings.of_this_process().store).absolute()
    if first is not None and _is_name(first, where):
        artifact, first, second = first, second, None
    if session:
        graphs = _session(where, session, output)
    else:
        graphs = [_read(last_job.artifact(where, artifact, output), output)]
    if first is None:
        _show_left(graphs, output)
        return
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


def _is_name(text: str, store: Path) -> bool:
    """Rather than an operation, which may be called `decade`: what a command has printed."""
    if not stored.NAME.fullmatch(text):
        return False
    return len(text) >= stored.DIGITS or last_job.known(store, text)


# ---- of a job ----------------------------------------------------------------------------------
def _session(store: Path, session: str, output: common.Output) -> list[Job]:
    """The artifacts that a session used, one per graph."""
    folders = stored.sessions(store, session)
    if not folders:
        known = [path.name for path in stored.sessions(store, "")][-stored.LISTED :]
        mend = f"sessions there: {', '.join(known) or 'none'}"
        common.fail(output, f"session {session}", f"not in {store}/sessions", mend)
    folder = folders[-1]
    record = stored.record_of(folder)
    found = [folder.parent.parent / "artifacts" / key for key in stored.keys_of(record)]
    jobs_ = [_read(path, output) for path in found if (path / stored.REPORT).exists()]
    if not jobs_:
        last_job.without(folder, store, output)
    return jobs_


def _read(folder: Path, output: common.Output) -> Job:
    try:
        report = reports.decode((folder / stored.REPORT).read_bytes())
        file = folder / reports.MODULES
        return Job(report, reports.decode_modules(file.read_bytes()) if file.exists() else {})
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
def _show_reason(code: str, output: common.Output) -> None:
    known = {"reason": code, "because": meaning(code), "mend": mend_of(code)}
    if output.as_json:
        output.document({**known, "page": f"{PAGE}#{code}"})
        return
    common.say(f"{code}: {known['because']}", output.console)
    common.say(f"  what to do: {known['mend']}", output.console)
    common.say(f"  {PAGE}#{code}", output.console)


def _show_left(graphs: Sequence[Job], output: common.Output) -> None:
    """What stays TensorFlow's in each graph, by reason, the most bytes first."""
    left = [(job.report, reasons(job.report, MOST_LISTED)) for job in graphs]
    if output.as_json:
        output.document([
            {"title": report.title, "left": [asdict(row) for row in rows]} for report, rows in left
        ])  # fmt: skip
        return
    for report, rows in left:
        what = ", left to TensorFlow:" if rows else ": nothing was left to TensorFlow"
        common.say(f"{report.title}{what}", output.console)
        for row in rows:
            moved = f", {common.bytes_text(row.bytes)} a step" if row.bytes else ""
            line = f"  {row.count} x {row.reason}{moved}: {row.meaning}"
            common.say(line, output.console)
            for operation in row.operations:
                common.say(f"    {operation}", output.console)
            if row.count > len(row.operations) > 0:
                common.say(f"    and {row.count - len(row.operations)} more", output.console)
            common.say(f"    what to do: {row.mend}", output.console)


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
            common.say(line, output.console)


def _show(explanation: Explanation, output: common.Output) -> None:
    if output.as_json:
        document: dict[str, Any] = asdict(explanation)
        output.document(document)
        return

    def say(line: str) -> None:
        common.say(line, output.console)

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
