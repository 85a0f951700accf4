"""The README's picture of a report page: a real module's, as headless Chromium shows it.

    python -m bench.report_picture [REPORT.json]

Without a report the module `transformer_train` is planned (a few seconds); nothing in the picture
is measured, so a busy machine draws the same one.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from stitchcore.cli import common, module_pipeline
from stitchcore.report import render
from stitchcore.report import schema as reports
from stitchcore.report.schema import Report

ROOT = Path(__file__).resolve().parents[1]
MODULE = ROOT / "bench" / "workloads" / "transformer_train.hlo.xz"
PICTURE = ROOT / "bench" / "results" / "report.png"
SIZE = "1180,1040"
SHADES = 128
"""Of the picture, which makes it a third of its size."""
TARGET = "cpu-x86-64-v3"


def planned() -> Report:
    """The report of MODULE for one target, whatever this machine is."""
    output = common.Output(False)
    state, seconds = module_pipeline.run(MODULE, output, "schedule", target=TARGET)
    return module_pipeline.report_of(state, MODULE.name, seconds)


def draw(report: Report, picture: Path) -> None:
    """A screenshot of the page's top."""
    from PIL import Image  # of matplotlib's needs

    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        page.write_text(render.html(report), encoding="utf-8")
        subprocess.run(
            ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             f"--window-size={SIZE}", f"--screenshot={picture}", "--virtual-time-budget=3000",
             page.as_uri()],
            check=True, capture_output=True, timeout=120,
        )  # fmt: skip

    with Image.open(picture) as taken:
        taken.convert("RGB").quantize(SHADES).save(picture, optimize=True)


if __name__ == "__main__":
    given = reports.decode(Path(sys.argv[1]).read_bytes()) if sys.argv[1:] else planned()
    draw(given, PICTURE)
