"""`stitch plan MODULE`: the kernels a module would become, each with its estimate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from stitchcore.cli import common, module_pipeline
from stitchcore.compiler.stages import ModuleState
from stitchcore.device.records import Device
from stitchcore.fusion.cost import cost
from stitchcore.fusion.pattern import Estimate, Plan
from stitchcore.fusion.planners import PLANNERS
from stitchcore.fusion.text import bodies
from stitchcore.hlo.text.printer import every_name
from stitchcore.report import planners, render

COLUMNS = ("kernel", "operations>", "inputs>", "outputs>", "bytes>", "saved>", "flops>", "time>")
TRIED = ("planner", "kernels>", "estimate>", "saved, of the bound>", "planned in>")
SHOWN = 40
"""Kernels listed; --json has all."""


@click.command("plan")
@click.argument("module", type=click.Path(path_type=Path))
@click.option("--target", default=None, help="Device record; default: this machine.")
@click.option("--planner", default=None, help=f"One of: {', '.join(PLANNERS)}.")
@click.option("--html", type=click.Path(path_type=Path), help="Also write the graph as a page.")
@click.option("--dump", type=click.Path(path_type=Path), help="Folder for NN_stage.txt files.")
@common.without_option
@common.library_option
@click.option("--from", "restart", type=click.Path(path_type=Path), help="Edited NN_stage.txt.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def command(
    module: Path,
    target: str | None,
    planner: str | None,
    without: str | None,
    library: Path | None,
    html: Path | None,
    dump: Path | None,
    restart: Path | None,
    as_json: bool,
) -> None:
    """Plan MODULE (.hlo or .hlo.xz) and show its kernels with estimates."""
    output = common.Output(as_json)
    if html is not None:
        common.writable_file(html, output)
    state, seconds = module_pipeline.run(
        module,
        output,
        "schedule",
        target=target,
        planner=planner,
        without=without,
        dump=dump,
        restart=restart,
        library=library,
    )
    device = state.device
    plan = module_pipeline.plan_of(state)
    if html is not None:
        page = render.html(module_pipeline.report_of(state, str(module), seconds))
        html.write_text(page, encoding="utf-8")
    if as_json:
        output.document(document(state))
        return
    common.show_table(f"{module} for {device.target}", COLUMNS, _rows(plan, device), output.console)
    if plan.tried:
        title = "planners; the least estimate is taken"
        common.show_table(title, TRIED, _tried(plan), output.console)
    for line in summary(plan):
        common.say(line, output.console)


def document(state: ModuleState) -> dict[str, Any]:
    """The plan as plain data: estimates in bytes, operations and seconds."""
    plan = module_pipeline.plan_of(state)
    labels = every_name(plan.module)
    return {
        "target": state.device.target,
        "planner": plan.planner,
        "planners": [asdict(planner) for planner in planners.tried([plan])],
        "bound": asdict(proved) if (proved := planners.bound([plan])) else None,
        **_planned(plan, state, state.of),
        "loop_bodies": [
            {"computation": labels[body][0], **_planned(inner, state, state.inner[body])}
            for body, inner in bodies(plan).items()
        ],
    }


def _planned(plan: Plan, state: ModuleState, of: Sequence[int]) -> dict[str, Any]:
    saved = module_pipeline.saved_bytes(plan, state.device)
    return {
        "kernels": [
            {
                "name": state.kernels[of[number]].name,
                "phases": len(state.kernels[of[number]].phases),
                "instructions": len(pattern.instructions),
                "inputs": len(pattern.inputs),
                "outputs": len(pattern.outputs),
                "bytes_saved": saved[number],
                **_estimate(cost(pattern, state.device)),
            }
            for number, pattern in enumerate(plan.patterns)
        ],
        "unfused": _estimate(plan.unfused),
        "planned": _estimate(plan.planned),
        "refusals": [
            {"subject": refusal.subject, "reason": refusal.reason.value, "detail": refusal.detail}
            for refusal in plan.refusals
        ],
    }


def _estimate(estimate: Estimate) -> dict[str, Any]:
    """Its fields, with the one that could be taken for a measurement named as what it is."""
    fields = asdict(estimate)
    fields["seconds_estimated"] = fields.pop("seconds")
    return fields


def summary(plan: Plan) -> list[str]:
    """The plan in a few lines: kernels and bytes before and after, what was left out."""
    before, after = plan.unfused, plan.planned
    share = f" (-{1 - after.bytes / before.bytes:.0%})" if before.bytes else ""
    lines = [
        f"kernels {before.launches} → {after.launches}; bytes {common.bytes_text(before.bytes)} → "
        f"{common.bytes_text(after.bytes)}{share}; estimated "
        f"{common.seconds_text(before.seconds)} → {common.seconds_text(after.seconds)}"
    ]
    proved = planners.bound([plan])
    lines += [planners.bound_text(proved)] if proved else []
    inner = bodies(plan)
    if inner:
        more = sum(len(body.patterns) for body in inner.values())
        lines.append(f"{len(inner)} loop bodies and branches hold {more} more kernels")
    counted = Counter(refusal.reason.value for refusal in plan.refusals)
    lines += [f"left as it was: {count} x {reason}" for reason, count in counted.most_common()]
    return lines


def _tried(plan: Plan) -> list[tuple[object, ...]]:
    """What each planner reached. Seconds saved are those before anything is computed again."""
    proved = planners.bound([plan])
    saved = {**proved.found, "exact": proved.saved} if proved else {}
    return [
        (
            planner.planner,
            planner.kernels,
            common.seconds_text(planner.seconds),
            f"{1 - planners.gap(proved, saved[planner.planner]):.2%}" if proved else "",
            common.seconds_text(planner.took),
        )
        for planner in plan.tried
    ]


def _rows(plan: Plan, device: Device) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    saved = module_pipeline.saved_bytes(plan, device)
    for number, pattern in enumerate(plan.patterns[:SHOWN]):
        estimate = cost(pattern, device)
        rows.append(
            (
                number,
                len(pattern.instructions),
                len(pattern.inputs),
                len(pattern.outputs),
                common.bytes_text(estimate.bytes),
                common.bytes_text(saved[number]),
                f"{estimate.flops:,}",
                common.seconds_text(estimate.seconds),
            )
        )
    if len(plan.patterns) > SHOWN:
        rows.append((f"... {len(plan.patterns) - SHOWN} more", *[""] * (len(COLUMNS) - 1)))
    return rows
