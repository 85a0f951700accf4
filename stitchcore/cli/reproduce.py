"""`stitch reproduce TABLE...`: the papers' tables, with what we count and estimate beside them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from stitchcore.cli import common
from stitchcore.errors import Refused
from stitchcore.report import charts
from stitchcore.reproduce import tables
from stitchcore.reproduce.papers import MODELS

WORKLOADS = Path(__file__).resolve().parents[2] / "tests" / "workloads"
"""The models, lowered by TensorFlow: part of the repository, not of a wheel."""


@click.command("reproduce")
@click.argument("names", nargs=-1, metavar="[TABLE]...")
@click.option("--model", "models", multiple=True, help="Only this one; may be repeated.")
@click.option("--workloads", type=click.Path(path_type=Path), default=WORKLOADS,
              help="Folder of the models as NAME.hlo.xz.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), help="Also write TABLE.json and TABLE.svg.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def command(
    names: tuple[str, ...],
    models: tuple[str, ...],
    workloads: Path,
    out: Path | None,
    as_json: bool,
) -> None:
    """Print the papers' tables: all, or those named."""
    output = common.Output(as_json)
    for kind, given, known in (
        ("table", names, list(tables.TABLES)),
        ("model", models, [model.name for model in MODELS]),
    ):
        if unknown := [one for one in given if one not in known]:
            common.fail(output, f"{kind} {unknown[0]!r}", "unknown", f"one of: {', '.join(known)}")
    if not workloads.is_dir():
        mend = "run this in a clone of the repository, or name its tests/workloads by --workloads"
        common.fail(output, str(workloads), "no such folder", mend)
    if out is not None:
        common.writable_folder(out, output)
    host = common.device_of(common.host_target(), output)
    texts = {
        model.module: common.read_text(workloads / f"{model.module}.hlo.xz", output)
        for model in MODELS
        if not models or model.name in models
    }
    subjects = tables.subjects(texts)
    made = []
    for name in names or tuple(tables.TABLES):
        with common.Output(True).console.status(name) as status:
            try:
                table = tables.TABLES[name](subjects, host, status.update)
            except Refused as refused:
                common.fail_refused(output, str(workloads), refused)
        made.append(table)
        if out is not None:
            figures = json.dumps(asdict(table), indent=1)
            (out / f"{name}.json").write_text(figures + "\n", encoding="utf-8")
            if table.bars:
                picture = charts.grouped_bars(table.title, table.series, table.bars)
                (out / f"{name}.svg").write_text(picture, encoding="utf-8")
        if not as_json:
            rows = [["" if cell is None else cell for cell in row] for row in table.rows]
            common.show_table(table.title, table.columns, rows, output.console)
            for note in table.notes:
                common.say(f"  {note}", output.console)
    if as_json:
        output.document([asdict(table) for table in made])
