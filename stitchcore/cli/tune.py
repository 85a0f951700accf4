"""`stitch tune MODULE`: measurement overrules the plan's estimates, kernel by kernel.

Every kernel is run in turn with other cuts of its instructions, and what is left of those scheduled
otherwise; what is right and quicker beyond doubt is kept. The tuned plan is a plan as `stitch plan
--dump` writes it, which `stitch compile MODULE --from FOLDER/02_plan.txt` compiles, on this machine
or another; schedules go to a performance library, which the other commands read (`--library`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.progress import Progress

from stitchcore import options as settings
from stitchcore.autotune import kernels, schedules
from stitchcore.cli import common, module_pipeline
from stitchcore.cli.bench import parse_bindings
from stitchcore.compiler import performance_library
from stitchcore.compiler.performance_library import ESTIMATED, NOTHING_KNOWN
from stitchcore.compiler.stages import PLANNED
from stitchcore.device.host import LEVELS
from stitchcore.device.records import Device
from stitchcore.errors import Refused
from stitchcore.fusion.text import plan_text

CUTS = ("kernel", "cuts>", "estimate>", "measured>", "kept", "its estimate>", "measured>", "")
SCHEDULES = ("kernel", "schedules>", "the device's own>", "kept", "takes>", "")


@click.command("tune")
@click.argument("module", type=click.Path(path_type=Path))
@click.option("--target", default=None, help="Device record; default: this machine.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the tuned plan.")
@common.library_option
@common.without_option
@click.option("--planner", default=None, help="Planner by name.")
@click.option("--bind", multiple=True, help="NAME=SIZE of a symbolic dimension.")
@click.option(
    "--rounds",
    default=11,
    show_default=True,
    type=click.IntRange(3),
    help="Interleaved rounds per kernel.",
)
@click.option(
    "--seconds", default=4.0, show_default=True, type=click.FloatRange(0, min_open=True),
    help="Most seconds per kernel.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def command(
    module: Path,
    target: str | None,
    out: Path | None,
    library: Path | None,
    without: str | None,
    planner: str | None,
    bind: tuple[str, ...],
    rounds: int,
    seconds: float,
    as_json: bool,
) -> None:
    """Measure other cuts and schedules of MODULE's kernels on this machine and keep what wins. For
    a GPU that is not here schedules alone are searched, by estimate."""
    output = common.Output(as_json)
    folder = common.with_library(settings.of_this_process(), library).library
    for made in filter(None, (out, folder)):
        common.writable_folder(made, output)
    state, _ = module_pipeline.run(
        module, output, "plan", target=target, planner=planner, without=without, library=library
    )
    _require_this_machine(state.device, output)
    plan = module_pipeline.plan_of(state)
    measuring = kernels.Measuring(parse_bindings(bind, plan, output), rounds, seconds)
    if library is not None:  # what it knows is found anew
        state = replace(state, options=replace(state.options, library=NOTHING_KNOWN))
    try:
        with Progress(console=output.console, transient=True) as bar:
            task = bar.add_task("kernels", total=None)
            tuned = schedules.tune(
                (plan,), state.device, state.options, measuring,
                lambda done, total: bar.update(task, completed=done, total=total),
            )  # fmt: skip
    except Refused as refused:
        common.fail_refused(output, str(module), refused)
    file = None
    if out is not None:
        file = out / next(stage.file for stage in PLANNED if stage.name == "plan")
        file.write_text(plan_text(tuned.plans[0]), encoding="utf-8")
    if folder is not None:
        performance_library.write(folder, state.device, schedules.entries(tuned.found))
    _show(tuned, state.device, file, folder, output)


def _require_this_machine(device: Device, output: common.Output) -> None:
    """End the command for a processor whose instructions this one may lack."""
    levels = [level for level, _ in LEVELS]
    here = common.host_target()
    if device.target in levels and levels.index(device.target) < levels.index(here):
        common.fail(output, device.target, f"this machine is a {here}", "tune on such a machine")


def _show(
    tuned: schedules.Tuned,
    device: Device,
    file: Path | None,
    folder: Path | None,
    output: common.Output,
) -> None:
    found = tuned.found
    before, after = kernels.gain(tuned.choices)
    own, chosen = schedules.gain(found)
    overruled = [choice for choice in tuned.choices if choice.kept]
    otherwise = {key: searched for key, searched in found.items() if searched.kept}
    if output.as_json:
        document: dict[str, Any] = {
            "kernels": len(tuned.choices),
            "overruled": len(overruled),
            "wrong": list(tuned.wrong),
            "seconds": before,
            "tuned_seconds": after,
            "plan": str(file) if file else None,
            "searched": len(found),
            "schedules": {
                key: {
                    "schedule": searched.schedules[searched.kept].chosen,
                    "seconds": searched.trials[searched.kept].seconds,
                    "default_seconds": searched.trials[0].seconds,
                    "distinct": searched.distinct,
                    "tried": len(searched.trials),
                    "decided": searched.decided,
                }
                for key, searched in found.items()
            },
            "default_schedules_seconds": own,
            "schedules_seconds": chosen,
            "library": str(folder) if folder else None,
        }
        output.document(document)
        return
    rows: list[tuple[object, ...]] = []
    for number, choice in enumerate(tuned.choices):
        first, winner = choice.trials[0], choice.trials[choice.kept]
        if not choice.kept:
            continue
        rows.append(
            (number, len(choice.trials), common.seconds_text(first.estimate),
             common.seconds_text(first.seconds), f"{len(winner.cut)} kernels",
             common.seconds_text(winner.estimate), common.seconds_text(winner.seconds),
             winner.ratio)
        )  # fmt: skip
    if rows:
        common.show_table("cut elsewhere", CUTS, rows, output.console)
    rows = []
    for key, searched in otherwise.items():
        first, winner = searched.trials[0], searched.trials[searched.kept]
        rows.append(
            (key[:12], searched.distinct, common.seconds_text(first.seconds),
             searched.schedules[searched.kept], common.seconds_text(winner.seconds), winner.ratio)
        )  # fmt: skip
    if rows:
        common.show_table("scheduled otherwise", SCHEDULES, rows, output.console)
    for wrong in tuned.wrong:
        common.say(f"what is quicker, but not right, was not taken: {wrong}", output.console)
    if device.kind == "cpu":
        common.say(
            f"{len(overruled)} of {len(tuned.choices)} distinct kernels overruled: "
            f"{common.seconds_text(before)} -> {common.seconds_text(after)}, each run once"
            + (f"; the plan is {file}" if file else "; --out FOLDER keeps the plan"),
            output.console,
        )
    if found:
        several = sum(searched.distinct > 1 for searched in found.values())
        estimated = any(searched.decided == ESTIMATED for searched in found.values())
        common.say(
            f"{len(otherwise)} of {several} kernels with a choice scheduled otherwise: "
            f"{common.seconds_text(own)} -> {common.seconds_text(chosen)}"
            + ", by estimate: there is no such device here" * estimated
            + (
                f"; the library is {folder}" if folder else "; --library FOLDER keeps the schedules"
            ),
            output.console,
        )
