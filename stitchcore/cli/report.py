"""`stitch report`: the page of a module, of a stored artifact, or of a report.json, as one file.

A module goes through the stages as in `stitch compile`; `--measure` also checks and times every
kernel on this machine. Without a module the last job's newest artifact is taken. Of an artifact
that a job has run the page is the one that says what the job measured.
"""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from stitchcore import options as settings
from stitchcore.cli import bench, common, last_job, module_pipeline, stored
from stitchcore.report import render
from stitchcore.report import schema as reports
from stitchcore.report.schema import Report

NEAREST = "`stitch run -- python train.py` makes one"


@click.command("report")
@click.argument("source", required=False, type=click.Path(path_type=Path))
@click.option("--artifact", default="",
              help="A stored artifact, graph or session, or its first digits.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), default=Path("report.html"),
              show_default=True, help="The page.")  # fmt: skip
@click.option("--measure", is_flag=True, help="Time the module's kernels on this machine.")
@click.option("--target", default=None, help="Device record; default: this machine.")
@click.option("--planner", default=None, help="`auto` shows all planners side by side.")
@click.option("--bind", multiple=True, help="NAME=SIZE of a symbolic dimension, for --measure.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def command(
    source: Path | None,
    artifact: str,
    out: Path,
    measure: bool,
    target: str | None,
    planner: str | None,
    bind: tuple[str, ...],
    as_json: bool,
) -> None:
    """Write report.html of SOURCE: a module, a report.json, or a stored artifact, graph or session;
    without one of the last job."""
    output = common.Output(as_json)
    common.writable_file(out, output)
    options = settings.of_this_process()
    named, page = artifact or str(source or ""), None
    if source is None or (not source.exists() and _is_name(named, options.store)):
        found = last_job.artifact(options.store, named, output)
        report = _stored(found / stored.REPORT, output)
        page = stored.page_of(options.store, found, report.title, named)
    elif source.suffix == ".json":
        report = _stored(source, output)
    else:
        report = _of_module(source, output, target, planner, bind if measure else None)
    out.write_text(page or render.html(report), encoding="utf-8")
    if as_json:
        output.document({"report": str(out), "title": report.title, "kernels": len(report.kernels)})
        return
    common.say(f"{report.title}: {len(report.kernels)} kernels; page: {out}", output.console)


def _is_name(text: str, store: Path) -> bool:
    """Rather than a file: what a command has printed, or its first digits."""
    return bool(stored.NAME.fullmatch(text)) or last_job.known(store, text)


def _stored(path: Path, output: common.Output) -> Report:
    try:
        return reports.decode(path.read_bytes())
    except (msgspec.DecodeError, OSError) as error:
        common.fail(output, str(path), str(error), f"it must be a report.json; {NEAREST}")


def _of_module(
    path: Path,
    output: common.Output,
    target: str | None,
    planner: str | None,
    bind: tuple[str, ...] | None,
) -> Report:
    if bind is not None and target not in (None, common.host_target()):
        common.fail(output, f"--target {target}", "not this machine", "leave out --measure")
    state, seconds = module_pipeline.run(path, output, "compile", target=target, planner=planner)
    measured = {} if bind is None else bench.times(state, seconds, bind, output)
    return module_pipeline.report_of(state, path.name, seconds, measured)
