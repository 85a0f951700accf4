"""`stitch tune MODULE`: measurement overrules the plan's estimates, kernel by kernel.

Every kernel is run in turn with other cuts of its instructions; a cut that is right and quicker
beyond doubt replaces it. The tuned plan is a plan as `stitch plan --dump` writes it, which
`stitch compile MODULE --from FOLDER/02_plan.txt` compiles, on this machine or another.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.progress import Progress

from stitchcore.autotune import kernels
from stitchcore.cli import common, module_pipeline
from stitchcore.cli.bench import parse_bindings
from stitchcore.compiler.stages import PLANNED
from stitchcore.errors import Refused
from stitchcore.fusion.text import plan_text

COLUMNS = ("kernel", "cuts>", "estimate>", "measured>", "kept", "its estimate>", "measured>", "")


@click.command("tune")
@click.argument("module", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the tuned plan.")
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
    out: Path | None,
    planner: str | None,
    bind: tuple[str, ...],
    rounds: int,
    seconds: float,
    as_json: bool,
) -> None:
    """Measure other cuts of MODULE's kernels on this machine and keep what wins."""
    output = common.Output(as_json)
    if out is not None:
        common.writable_folder(out, output)
    state, _ = module_pipeline.run(module, output, "plan", planner=planner)
    plan = module_pipeline.plan_of(state)
    measuring = kernels.Measuring(parse_bindings(bind, plan, output), rounds, seconds)
    try:
        with Progress(console=output.console, transient=True) as bar:
            task = bar.add_task("kernels", total=None)
            tuned = kernels.tune(
                plan, state.device, state.options, measuring,
                lambda done, total: bar.update(task, completed=done, total=total),
            )  # fmt: skip
    except Refused as refused:
        common.fail_refused(output, str(module), refused)
    file = None
    if out is not None:
        file = out / next(stage.file for stage in PLANNED if stage.name == "plan")
        file.write_text(plan_text(tuned.plan), encoding="utf-8")
    _show(tuned, file, output)


def _show(tuned: kernels.Tuned, file: Path | None, output: common.Output) -> None:
    before, after = tuned.gain()
    overruled = [choice for choice in tuned.choices if choice.kept]
    wrong = [trial for choice in tuned.choices for trial in choice.trials if trial.wrong]
    if output.as_json:
        document: dict[str, Any] = {
            "kernels": len(tuned.choices),
            "overruled": len(overruled),
            "wrong": [trial.wrong for trial in wrong],
            "seconds": before,
            "tuned_seconds": after,
            "plan": str(file) if file else None,
        }
        output.document(document)
        return
    rows = []
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
        output.console.print(common.table("overruled", COLUMNS, rows))
    for trial in wrong:
        output.console.print(f"a quicker cut is not right and was not taken: {trial.wrong}")
    output.console.print(
        f"{len(overruled)} of {len(tuned.choices)} distinct kernels overruled: "
        f"{common.seconds_text(before)} -> {common.seconds_text(after)}, each run once"
        + (f"; the plan is {file}" if file else "; --out FOLDER keeps the plan")
    )
