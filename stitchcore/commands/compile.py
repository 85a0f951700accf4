"""`stitch compile MODULE`: sources and binaries of its kernels, to read and to keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from stitchcore import options as settings
from stitchcore.artifact import report as reports
from stitchcore.commands import common, modules
from stitchcore.emit import cuda
from stitchcore.errors import Refused
from stitchcore.kernel.text import print_kernel
from stitchcore.stages import State
from stitchcore.target import nvrtc


@click.command("compile")
@click.argument("module", type=click.Path(path_type=Path))
@click.option("--target", default=None, help="cpu-x86-64-v2..v4 or sm_NN; default: this machine.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=None, help="Folder; default: NAME.stitch"
)
@click.option("--planner", default=None, help="Planner by name.")
@click.option("--dump", type=click.Path(path_type=Path), help="Folder for NN_stage.txt files.")
@click.option("--from", "restart", type=click.Path(path_type=Path), help="Edited NN_stage.txt.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def command(
    module: Path,
    target: str | None,
    out: Path | None,
    planner: str | None,
    dump: Path | None,
    restart: Path | None,
    as_json: bool,
) -> None:
    """Compile MODULE's kernels; write loop IR, sources, binaries and a report to a folder."""
    output = common.Output(as_json)
    options = settings.of_this_process()
    device = common.device_of(target or common.host_target(), output)
    build = modules.build_options(options, output, planner=planner, dump=dump, restart=restart)
    cpu = device.kind == "cpu"
    last = "compile" if cpu else "schedule"
    state, seconds = modules.run(module, device, build, output, last)
    folder = out or Path(module.name.partition(".")[0] + ".stitch")
    folder.mkdir(parents=True, exist_ok=True)
    written = [_write(folder / "kernels.txt", "\n".join(map(print_kernel, state.kernels)))]
    try:
        binaries = _cpu(state, folder) if cpu else _gpu(state, folder, device.target)
    except Refused as refused:
        common.fail_refused(output, str(module), refused)
    page = reports.html(modules.report_of(state, str(module), seconds))
    written += [entry["file"] for entry in binaries]
    written.append(_write(folder / "report.html", page))
    if as_json:
        output.document({"folder": str(folder), "target": device.target, "binaries": binaries})
        return
    for entry in binaries:
        line = ", ".join(f"{name} {value}" for name, value in entry.items() if value != [])
        output.console.print(line, markup=False)
    kernels = len(state.kernels)
    output.console.print(f"{kernels} kernels for {device.target}; report: {folder}/report.html")


def _write(path: Path, content: str | bytes) -> str:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path.name


def _cpu(state: State, folder: Path) -> list[dict[str, Any]]:
    """Sources and shared objects; loops the compiler left scalar are named."""
    entries = []
    for number, (kernels, source, library) in enumerate(state.units):
        _write(folder / f"kernels_{number:02d}.c", source)
        entries.append(
            {
                "file": _write(folder / f"kernels_{number:02d}.so", library.data),
                "kernels": len(kernels),
                "bytes": len(library.data),
                "compiler": library.compiler,
                "vector_loops": len(library.loops) - len(library.scalar_loops),
                "scalar_loops": [f"{loop.loop}: {loop.reason}" for loop in library.scalar_loops],
            }
        )
    return entries


def _gpu(state: State, folder: Path, target: str) -> list[dict[str, Any]]:
    """CUDA sources, cubins, and what the compiler says of each kernel's registers and spills."""
    entries = []
    kernels = state.kernels
    for number, first in enumerate(range(0, len(kernels), nvrtc.BATCH)):
        batch = kernels[first : first + nvrtc.BATCH]
        source = cuda.render(batch)
        _write(folder / f"kernels_{number:02d}.cu", source)
        program = nvrtc.compile_cuda(source, target)
        used = program.resources
        entries.append(
            {
                "file": _write(folder / f"kernels_{number:02d}.cubin", program.data),
                "kernels": len(batch),
                "bytes": len(program.data),
                "compiler": f"NVRTC {program.version}",
                "registers": max((one.registers for one in used), default=0),
                "spill_bytes": sum(one.spill_bytes for one in used),
            }
        )
    return entries
