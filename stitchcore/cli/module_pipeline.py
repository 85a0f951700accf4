"""Shared by `plan`, `compile`, `bench` and `explain`: a module file through the stages."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
from rich.status import Status

from stitchcore import options as settings
from stitchcore.cli import common
from stitchcore.codegen import c as emit_c
from stitchcore.codegen import cuda as emit_cuda
from stitchcore.compiler import pipeline
from stitchcore.compiler.pipeline import Dump, restartable
from stitchcore.compiler.stages import ModuleState, build_options, stages_for, unsearched
from stitchcore.device.records import Device
from stitchcore.errors import Refused
from stitchcore.fusion import candidates
from stitchcore.fusion.candidates import Role
from stitchcore.fusion.cost import cost, traffic, unfused
from stitchcore.fusion.pattern import Plan
from stitchcore.fusion.planners import PLANNERS
from stitchcore.fusion.text import bodies
from stitchcore.hlo.ir.instruction import topological
from stitchcore.hlo.text.printer import names
from stitchcore.loop_ir import scheme_counts
from stitchcore.loop_ir.printer import print_kernel
from stitchcore.report import planners
from stitchcore.report import schema as reports
from stitchcore.report.schema import NO_KERNEL, Report, ReportKernel, ReportNode
from stitchcore.toolchain.launch_bounds import Fit


def run(
    path: Path,
    output: common.Output,
    last: str,
    *,
    target: str | None = None,
    planner: str | None = None,
    without: str | None = None,
    dump: Path | None = None,
    restart: Path | None = None,
    library: Path | None = None,
) -> tuple[ModuleState, dict[str, float]]:
    """The module in `path` through the stages up to `last`, for this machine where no `target` is
    named, and seconds by stage; ends the command for a flag or a module that cannot be used."""
    options = common.with_library(settings.of_this_process(), library)
    device = common.device_of(target or common.host_target(), output)
    chosen = planner or options.planner
    if chosen not in PLANNERS:
        common.fail(output, f"planner {chosen!r}", "unknown", f"one of: {', '.join(PLANNERS)}")
    stages = stages_for(device)
    names = restartable(stages)
    if restart is not None and restart.name not in names:
        mend = f"its file name must be one of: {', '.join(names)}"
        common.fail(output, str(restart), "not a stage that can be restarted", mend)
    if restart is not None and not restart.is_file():
        common.fail(output, str(restart), "no such file", "write it with --dump, then edit it")
    texts = Dump(dump or options.dump, restart)
    if texts.folder is not None:
        common.writable_folder(texts.folder, output)
    build = build_options(common.left_out(options, without, output), device, chosen)
    if options.library is not None and (build.library.entries or build.library.ignored):
        said = f"performance library {options.library}: {build.library}"
        common.say(said, output.console)
    module = common.read_module(path, output)
    wanted = stages[: [stage.name for stage in stages].index(last) + 1]
    seconds: dict[str, float] = {}
    with output.console.status("parse") as status:
        try:
            start = ModuleState(module, device, build)
            show = progress(status)
            state = pipeline.run(wanted, start, texts, seconds=seconds, progress=show)
            again = unsearched(build, device) if state.refused else None
            if again is not None:
                said = f"without chosen schedules, for want of a binary: {state.refused[0]}"
                common.say(said, output.console)
                start = replace(start, options=again)
                state = pipeline.run(wanted, start, texts, seconds=seconds, progress=show)
        except Refused as refused:
            mend = ""
            if restart is not None and restart.name in refused.refusal.subject:
                mend = "mend the edited file there, or write it anew with --dump"
            common.fail_refused(output, str(path), refused, mend)
    return state, seconds


def progress(status: Status) -> pipeline.Progress:
    """Shows the running stage while standard error is a terminal."""

    def show(stage: str, done: int, total: int) -> None:
        if sys.stderr.isatty():
            status.update(f"{stage} ({done + 1}/{total})")

    return show


def plans_of(state: ModuleState) -> list[Plan]:
    """The module's plan, then those of its loop bodies and branches."""
    plan = plan_of(state)
    return [plan, *bodies(plan).values()]


def plan_of(state: ModuleState) -> Plan:
    """The state's plan; a state without one is a mistake of the caller."""
    if state.plan is None:
        raise ValueError("the plan stage has not run")
    return state.plan


def saved_bytes(plan: Plan, device: Device) -> list[int]:
    """Off-chip bytes that each kernel saves against its instructions one by one."""
    return [max(0, before - after) for before, after in moved_bytes(plan, device)]


def moved_bytes(plan: Plan, device: Device) -> list[tuple[int, int]]:
    """Off-chip bytes of each kernel's instructions one by one, and of the kernel."""
    graph = candidates.build(plan.module, {})
    moved = []
    for pattern in plan.patterns:
        placed = [v for v in pattern.instructions if graph.roles[graph.position[v]] is Role.PLACED]
        moved.append((unfused(placed, device).bytes, cost(pattern, device).bytes))
    return moved


def report_of(
    state: ModuleState,
    title: str,
    seconds: dict[str, float] | None = None,
    measured: Mapping[str, float] | None = None,
) -> Report:
    """The report of a module: its instructions by kernel. `measured` are seconds by name of a
    kernel, where they were timed."""
    plan = plan_of(state)
    name = names(plan.module)
    of = {v: n for n, p in enumerate(plan.patterns) for v in p.instructions}
    why = {refusal.subject: refusal for refusal in plan.refusals}
    order = [v for v in topological([plan.module.entry.root]) if v in name]
    position = {v: n for n, v in enumerate(order)}
    nodes = []
    for v in order:
        refusal = why.get(name[v])
        reason, detail = (refusal.reason.value, refusal.detail) if refusal else ("", "")
        inputs = tuple(position[o] for o in v.operands if o in position)
        kernel = of.get(v, NO_KERNEL)
        moved = traffic(v) if refusal else 0
        nodes.append(ReportNode(name[v], v.opcode, kernel, reason, detail, inputs, bytes=moved))
    return Report(
        title,
        state.device.target,
        tuple(nodes),
        _report_kernels(state, plan, measured or {}),
        reports.count_reasons(nodes),
        plan.unfused.launches,
        len(plan.patterns),
        plan.unfused.bytes,
        plan.planned.bytes,
        seconds_before=plan.unfused.seconds,
        seconds_after=plan.planned.seconds,
        seconds=seconds or {},
        planners=planners.side_by_side([plan]),
        bound=planners.bound_text(proved) if (proved := planners.bound([plan])) else "",
        sources=reports.within_limit(_sources(state)),
    )


def _sources(state: ModuleState) -> dict[str, str]:
    """C or CUDA of each kernel by itself."""
    render = emit_c.render if state.device.kind == "cpu" else emit_cuda.render
    return {kernel.name: render([kernel]) for kernel in state.kernels}


def _report_kernels(
    state: ModuleState, plan: Plan, measured: Mapping[str, float]
) -> tuple[ReportKernel, ...]:
    moved = moved_bytes(plan, state.device)
    fits = {fit.kernel: fit for unit in state.units for fit in unit.fits}
    refused = {refusal.subject: refusal for refusal in state.refused}
    rows = []
    for number, pattern in enumerate(plan.patterns):
        kernel = state.kernels[state.of[number]] if state.kernels else None
        name = kernel.name if kernel else f"pattern {number}"
        row = ReportKernel(
            name,
            len(pattern.instructions),
            max(0, moved[number][0] - moved[number][1]),
            round(cost(pattern, state.device).seconds * 1e9),
            len(kernel.phases) if kernel else 0,
            print_kernel(kernel) if kernel else "",
            refused=str(refused.get(name, "")),
            bytes_before=moved[number][0],
            bytes_after=moved[number][1],
            measured_ns=round(measured.get(name, 0.0) * 1e9),
            schemes=scheme_counts.count(kernel) if kernel else {},
        )
        rows.append(_with_resources(row, fits[name]) if name in fits else row)
    return tuple(rows)


def _with_resources(kernel: ReportKernel, fit: Fit) -> ReportKernel:
    return msgspec.structs.replace(
        kernel,
        registers=fit.resources.registers,
        registers_predicted=fit.predicted,
        spill_bytes=fit.resources.spill_bytes,
        blocks=fit.blocks,
    )
