"""`stitch explain`: why an operation was refused, or why two are not in one kernel.

Of a module (`--module`) the plan is made anew and the rule is named. Of a job, the report of its
artifact is read: the newest one in the store, or the one whose key begins with `--artifact`.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import msgspec

from stitchcore import options as settings
from stitchcore.artifact import report as reports
from stitchcore.artifact.report import Report
from stitchcore.commands import common, modules
from stitchcore.debug import explain as why
from stitchcore.debug.explain import SOURCE, Explanation, Place
from stitchcore.device.records import Device
from stitchcore.errors import Refusal, Refused
from stitchcore.plan.cost import cost
from stitchcore.plan.pattern import Feasibility, Pattern, Plan
from stitchcore.schedule.schedule import feasible, schedule


@click.command("explain")
@click.argument("first")
@click.argument("second", required=False)
@click.option("--module", type=click.Path(path_type=Path), help="A .hlo or .hlo.xz file.")
@click.option("--target", default=None, help="Device record; default: this machine.")
@click.option("--store", type=click.Path(path_type=Path), default=None, help="Store of the job.")
@click.option("--artifact", default="", help="First digits of an artifact's key.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def command(
    first: str,
    second: str | None,
    module: Path | None,
    target: str | None,
    store: Path | None,
    artifact: str,
    as_json: bool,
) -> None:
    """Explain where operation FIRST ended or, with SECOND, why the two are not in one kernel."""
    output = common.Output(as_json)
    options = settings.of_this_process()
    if module is None:
        report = _report(store or options.store, artifact, output)
        _of_report(report, first, second, output)
        return
    device = common.device_of(target or common.host_target(), output)
    build = modules.build_options(options, device, output)
    state, _ = modules.run(module, device, build, output, "plan")
    plan = modules.plan_of(state)
    values = []
    for name in filter(None, (first, second)):
        found = why.find(plan.module, name)
        if not found:
            common.fail(
                output, name, f"not in {module}", "`stitch plan --dump DIR` lists the names"
            )
        values.append(found[0])
    if len(values) == 1:
        _show_places([why.place(plan, values[0])], output)
        return
    _show(why.explain(plan, values[0], values[1], device, cost, _schedulable(plan)), output)


def _schedulable(plan: Plan) -> Feasibility:
    """Whether the scheduler takes a pattern, by asking it."""

    def ask(pattern: Pattern, device: Device) -> Refusal | None:
        try:
            schedule(pattern, plan.module, device, "explain")
        except Refused as refused:
            return refused.refusal
        return feasible(pattern, device)

    return ask


def _report(store: Path, prefix: str, output: common.Output) -> Report:
    folders = sorted(
        (path for path in store.glob(f"artifacts/{prefix}*/report.json")),
        key=lambda path: path.stat().st_mtime,
    )
    if not folders:
        where = f"{store}/artifacts/{prefix}*"
        common.fail(output, where, "no report there", "run `stitch run -- python train.py` first")
    try:
        return reports.decode(folders[-1].read_bytes())
    except msgspec.DecodeError as error:
        common.fail(output, str(folders[-1]), str(error), "optimize the job again")


def _of_report(report: Report, first: str, second: str | None, output: common.Output) -> None:
    found = []
    for name in filter(None, (first, second)):
        places = why.explain_node(report, name)
        if not places:
            common.fail(output, name, f"no such operation in {report.title}", "see report.html")
        found.append(places)
    if len(found) == 1:
        _show_places(found[0], output)
        return
    one, other = found[0][0], found[1][0]
    together = why.common_kernel((one, other))
    apart = next((place for place in (one, other) if not place.kernels), None)
    reason = apart.reason if apart else ""
    detail = "" if together else _apart(apart)
    _show(Explanation(one, other, together, reason, detail), output)


def _apart(place: Place | None) -> str:
    if place is None:
        return "each is in a kernel of its own region; the report does not hold the plan's rules"
    return f"{place.name} is in no kernel" + (f": {place.detail}" if place.detail else "")


def _line(place: Place) -> str:
    if place.kernels:
        return f"{place.name} ({place.opcode}): kernel {', '.join(map(str, place.kernels))}"
    reason = "no work of its own" if place.reason == SOURCE else f"left as it was: {place.reason}"
    return f"{place.name} ({place.opcode}): {reason}" + (
        f" ({place.detail})" if place.detail else ""
    )


def _show_places(places: list[Place], output: common.Output) -> None:
    if output.as_json:
        output.document([asdict(place) for place in places])
    for place in () if output.as_json else places:
        output.console.print(_line(place), markup=False)


def _show(explanation: Explanation, output: common.Output) -> None:
    if output.as_json:
        document: dict[str, Any] = asdict(explanation)
        output.document(document)
        return
    console = output.console
    console.print(_line(explanation.first), markup=False)
    console.print(_line(explanation.second), markup=False)
    if explanation.together:
        console.print("One kernel holds both.")
        return
    reason = f"{explanation.reason}: " if explanation.reason else ""
    console.print(f"Not in one kernel. {reason}{explanation.detail}", markup=False)
    if explanation.path:
        console.print("through " + " → ".join(explanation.path), markup=False)
