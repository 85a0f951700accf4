"""`stitch plan MODULE`: the kernels a module would become, each with its estimate."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from stitchcore import options as settings
from stitchcore.artifact import report as reports
from stitchcore.commands import common, modules
from stitchcore.device.records import Device
from stitchcore.plan.cost import cost
from stitchcore.plan.pattern import Plan

COLUMNS = ("kernel", "operations>", "inputs>", "outputs>", "bytes>", "saved>", "flops>", "time>")
SHOWN = 40
"""Kernels listed; --json has all."""


@click.command("plan")
@click.argument("module", type=click.Path(path_type=Path))
@click.option("--target", default=None, help="Device record; default: this machine.")
@click.option("--planner", default=None, help="Planner by name.")
@click.option("--html", type=click.Path(path_type=Path), help="Also write the graph as a page.")
@click.option("--dump", type=click.Path(path_type=Path), help="Folder for NN_stage.txt files.")
@click.option("--from", "restart", type=click.Path(path_type=Path), help="Edited NN_stage.txt.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def command(
    module: Path,
    target: str | None,
    planner: str | None,
    html: Path | None,
    dump: Path | None,
    restart: Path | None,
    as_json: bool,
) -> None:
    """Plan MODULE (.hlo or .hlo.xz) and show its kernels with estimates."""
    output = common.Output(as_json)
    options = settings.of_this_process()
    device = common.device_of(target or common.host_target(), output)
    build = modules.build_options(
        options, device, output, planner=planner, dump=dump, restart=restart
    )
    state, seconds = modules.run(module, device, build, output, "schedule")
    plan = modules.plan_of(state)
    if html is not None:
        page = reports.html(modules.report_of(state, str(module), seconds))
        html.write_text(page, encoding="utf-8")
    if as_json:
        output.document(document(plan, device))
        return
    output.console.print(
        common.table(f"{module} for {device.target}", COLUMNS, _rows(plan, device))
    )
    for line in summary(plan):
        output.console.print(line)


def document(plan: Plan, device: Device) -> dict[str, Any]:
    """The plan as plain data: estimates in bytes, operations and seconds."""
    saved = modules.saved_bytes(plan, device)
    return {
        "target": device.target,
        "planner": plan.planner,
        "kernels": [
            {
                "instructions": len(pattern.instructions),
                "inputs": len(pattern.inputs),
                "outputs": len(pattern.outputs),
                "bytes_saved": saved[number],
                **asdict(cost(pattern, device)),
            }
            for number, pattern in enumerate(plan.patterns)
        ],
        "unfused": asdict(plan.unfused),
        "planned": asdict(plan.planned),
        "refusals": [[r.subject, r.reason.value, r.detail] for r in plan.refusals],
        "loop_bodies": [document(inner, device) for inner in plan.nested.values()],
    }


def summary(plan: Plan) -> list[str]:
    """The plan in a few lines: kernels and bytes before and after, what was left out."""
    before, after = plan.unfused, plan.planned
    share = f" (-{1 - after.bytes / before.bytes:.0%})" if before.bytes else ""
    lines = [
        f"kernels {before.launches} → {after.launches}; bytes {common.bytes_text(before.bytes)} → "
        f"{common.bytes_text(after.bytes)}{share}; estimated "
        f"{common.seconds_text(before.seconds)} → {common.seconds_text(after.seconds)}"
    ]
    if plan.nested:
        inner = sum(len(nested.patterns) for nested in plan.nested.values())
        lines.append(f"{len(plan.nested)} loop bodies and branches hold {inner} more kernels")
    counted = Counter(refusal.reason.value for refusal in plan.refusals)
    lines += [f"left as it was: {count} x {reason}" for reason, count in counted.most_common()]
    return lines


def _rows(plan: Plan, device: Device) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    saved = modules.saved_bytes(plan, device)
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
