"""`stitch calibrate`: measure this machine's coefficients, and write a device record of its own."""

from __future__ import annotations

from pathlib import Path

import click
from rich.progress import Progress

from stitchcore.autotune import calibrate
from stitchcore.autotune.least_squares import coefficient
from stitchcore.cli import common
from stitchcore.errors import Refused

COLUMNS = ("kernel", "measured>", "estimated>", "ratio>")
COEFFICIENTS = (*calibrate.FITTED, "cache_bytes", "unit_share")
GPU_COEFFICIENTS = calibrate.GPU_FITTED


@click.command("calibrate")
@click.option("--target", default=None, help="Record to begin from; default: this machine's.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the record here, as JSON.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def command(target: str | None, out: Path | None, as_json: bool) -> None:
    """Measure kernels of known work and fit the cost model's coefficients to them: this machine's
    processor, or with `--target sm_90` a GPU of that kind.

    `stitch plan --target FILE.json` plans with the written record. On a quiet machine: half a
    minute.
    """
    output = common.Output(as_json)
    device = common.device_of(target or common.host_target(), output)
    if out is not None:
        common.writable_file(out, output)
    try:
        with Progress(console=output.console, transient=True) as bar:
            task = bar.add_task("measuring", total=None)

            def progress(name: str, done: int, total: int) -> None:
                bar.update(task, description=name, completed=done, total=total)

            calibration = calibrate.calibrate(device, progress)
    except Refused as refused:
        common.fail_refused(output, device.target, refused)
    if out is not None:
        calibrate.write(calibration, out)
    names = COEFFICIENTS if device.kind == "cpu" else GPU_COEFFICIENTS
    named = {name: coefficient(calibration.device, name) for name in names}
    if as_json:
        document = {"device": named, "error": calibration.error, "before": calibration.before}
        output.document({**document, "file": str(out) if out else None})
        return
    rows = [
        (kernel.name, common.seconds_text(kernel.seconds), common.seconds_text(kernel.estimate),
         f"{kernel.estimate / kernel.seconds:.2f}")
        for kernel in calibration.kernels
    ]  # fmt: skip
    what = "one unit" if device.kind == "cpu" else "one launch"
    common.show_table(f"{device.target}: {what}", COLUMNS, rows, output.console)
    changes = [
        (name, f"{coefficient(device, name):.4g}", f"{value:.4g}") for name, value in named.items()
    ]
    common.show_table("", ("coefficient", "before>", "now>"), changes, output.console)
    common.say(
        f"estimates are off by a factor of {2.718281828**calibration.error:.2f} "
        f"(before: {2.718281828**calibration.before:.2f})"
        + (f"; written to {out}" if out else "; --out FILE.json keeps the record"),
        output.console,
    )
