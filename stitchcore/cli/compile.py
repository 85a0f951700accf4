"""`stitch compile MODULE`: sources and binaries of its kernels, to read and to keep."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import click

from stitchcore.cli import common, module_pipeline
from stitchcore.compiler.module import Unit
from stitchcore.compiler.stages import ModuleState
from stitchcore.loop_ir.printer import print_kernel
from stitchcore.report import render
from stitchcore.toolchain.c_compiler import CompiledLibrary


@click.command("compile")
@click.argument("module", type=click.Path(path_type=Path))
@click.option(
    "--target",
    "--device",
    "target",
    default=None,
    help="cpu-x86-64-v2..v4 or sm_NN; default: this machine.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), default=None, help="Folder; default: NAME.stitch"
)
@click.option("--planner", default=None, help="Planner by name.")
@click.option("--dump", type=click.Path(path_type=Path), help="Folder for NN_stage.txt files.")
@common.without_option
@common.library_option
@click.option("--from", "restart", type=click.Path(path_type=Path), help="Edited NN_stage.txt.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def command(
    module: Path,
    target: str | None,
    out: Path | None,
    planner: str | None,
    without: str | None,
    library: Path | None,
    dump: Path | None,
    restart: Path | None,
    as_json: bool,
) -> None:
    """Compile MODULE's kernels; write loop IR, sources, binaries and a report to a folder."""
    output = common.Output(as_json)
    folder = out or Path(module.name.partition(".")[0] + ".stitch")
    common.writable_folder(folder, output)
    state, seconds = module_pipeline.run(
        module,
        output,
        "compile",
        target=target,
        planner=planner,
        without=without,
        dump=dump,
        restart=restart,
        library=library,
    )
    built_for = state.device.target
    _write(folder / "kernels.txt", "\n".join(map(print_kernel, state.kernels)))
    binaries = [_binary(unit, number, folder) for number, unit in enumerate(state.units)]
    page = render.html(module_pipeline.report_of(state, str(module), seconds))
    _write(folder / "report.html", page)
    if as_json:
        reasons = Counter(
            r.reason.value for plan in module_pipeline.plans_of(state) for r in plan.refusals
        )
        output.document(
            {
                "folder": str(folder),
                "target": built_for,
                "kernels": len(state.kernels),
                "binaries": binaries,
                "refused": [str(refusal) for refusal in state.refused],
                "left_as_it_was": dict(reasons),
                "report": str(folder / "report.html"),
            }
        )
        return
    for entry in binaries:
        line = ", ".join(f"{name} {value}" for name, value in entry.items() if value != [])
        common.say(line, output.console)
    for line in _resources(state):
        common.say(line, output.console)
    kernels = sum(len(unit.kernels) for unit in state.units)
    common.say(f"{kernels} kernels for {built_for}; report: {folder}/report.html", output.console)


def _resources(state: ModuleState) -> list[str]:
    """What a GPU's kernels need, and which of them were refused."""
    fits = [fit for unit in state.units for fit in unit.fits]
    lines = [f"refused, its operations stay as they were: {refusal}" for refusal in state.refused]
    if fits:
        used = [fit.resources.registers for fit in fits]
        spilled = sum(fit.resources.spill_bytes > 0 for fit in fits)
        meeting = sum(fit.cooperative for fit in fits)
        most = max(fit.shared_bytes for fit in fits)
        lines.append(
            f"registers a thread {min(used)} to {max(used)} ({max(f.predicted for f in fits)} "
            f"predicted at most), {spilled} kernels spill, shared memory up to "
            f"{common.bytes_text(most)} a block; {meeting} kernels meet at grid barriers, each in "
            f"one wave of at least {min(fit.wave for fit in fits)} blocks"
        )
    return lines


def _write(path: Path, content: str | bytes) -> str:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path.name


def _binary(unit: Unit, number: int, folder: Path) -> dict[str, Any]:
    """Source and binary of a unit, and what its compiler said: loops it left scalar on a CPU,
    registers and spills on a GPU."""
    binary = unit.binary
    entry: dict[str, Any] = {"kernels": len(unit.kernels), "bytes": len(binary.data)}
    name = f"kernels_{number:02d}"
    if isinstance(binary, CompiledLibrary):
        return {
            "file": _write(folder / f"{name}.so", binary.data),
            "source": _write(folder / f"{name}.c", unit.source),
            **entry,
            "compiler": binary.compiler,
            "vector_loops": len(binary.loops) - len(binary.scalar_loops),
            "scalar_loops": [f"{loop.loop}: {loop.reason}" for loop in binary.scalar_loops],
        }
    return {
        "file": _write(folder / f"{name}.cubin", binary.data),
        "source": _write(folder / f"{name}.cu", unit.source),
        **entry,
        "compiler": f"NVRTC {binary.version}",
        "registers": max((fit.resources.registers for fit in unit.fits), default=0),
        "registers_predicted": max((fit.predicted for fit in unit.fits), default=0),
        "spill_bytes": sum(fit.resources.spill_bytes for fit in unit.fits),
        "shared_bytes": max((fit.shared_bytes for fit in unit.fits), default=0),
        "fewest_blocks": min((fit.blocks for fit in unit.fits), default=0),
    }
