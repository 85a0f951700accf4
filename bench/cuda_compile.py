"""Every kernel of every workload as a cubin, for some architectures, without a GPU.

    python -m bench.cuda_compile [--target sm_80 --target sm_90] [--cache DIR] [NAME...]

From the compiler's log: registers, spills and shared memory of each kernel; from those, by the
occupancy formula, how many blocks the device holds at once. A kernel of several phases meets at
grid barriers: its grid is the smaller of its tasks and one wave, so it fits where a multiprocessor
holds a block. Registers that the schedule predicted stand beside those used.

With --cache a run that was stopped goes on where it was. Written after each module, beside what is
there of others, to bench/results/cuda_compile.md. Seconds are NVRTC's processor time when it
compiled, then or earlier.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

from bench import record
from stitchcore.compiler.pipeline import run
from stitchcore.compiler.stages import PLANNED, BuildOptions, ModuleState
from stitchcore.device.gpus import GPUS
from stitchcore.device.records import DEVICES
from stitchcore.errors import Reason
from stitchcore.fusion.text import bodies
from stitchcore.loop_ir.nodes import Kernel, Scope
from stitchcore.toolchain import cuda_compiler
from tests.hlo import workloads

TARGETS = ("sm_80", "sm_90")
TOO_LARGE = (Reason.REGISTERS, Reason.SHARED_MEMORY)


@dataclass(frozen=True)
class Figures:
    """Of one module for one architecture.

    `refused` says which kernels have no cubin and why; those of them that would not be resident
    without spills are `too_large`. `relaxed` were compiled again with more registers. `registers`
    are (predicted, used) of each kernel; `fewest_blocks` are on a multiprocessor.
    """

    module: str
    target: str
    kernels: int
    of_several_phases: int
    warp_sections: int
    sections: int
    functions: int
    shared_bytes: int
    fewest_blocks: int
    spilling: tuple[str, ...]
    refused: tuple[str, ...]
    too_large: int
    relaxed: int
    registers: tuple[tuple[int, int], ...]
    seconds: float


def kernels_of(name: str, target: str) -> list[Kernel]:
    """The kernels of a module and of its loop bodies, each once."""
    state = run(PLANNED, ModuleState(workloads.module(name), DEVICES[target], BuildOptions()))
    assert state.plan is not None
    assert all(body in state.inner for body in bodies(state.plan))
    return list(state.kernels)


def measured(name: str, target: str, cache: Path | None, bar: Progress) -> Figures:
    task = bar.add_task(f"{name} {target}", total=None)
    kernels = kernels_of(name, target)
    bar.update(task, total=len(kernels))
    advance: Callable[[int], None] = lambda done: bar.advance(task, done)  # noqa: E731
    units, refusals = cuda_compiler.compile_kernels(kernels, target, cache, advance)
    bar.remove_task(task)
    fits = [one for unit in units for one in unit.fits]
    sections = [s for k in kernels for phase in k.phases for s in phase.sections]
    return Figures(
        module=name,
        target=target,
        kernels=len(kernels),
        of_several_phases=sum(len(kernel.phases) > 1 for kernel in kernels),
        warp_sections=sum(section.scope is Scope.WARP for section in sections),
        sections=len(sections),
        functions=sum(len(re.findall(r"^ST_INLINE ", u.source, re.MULTILINE)) for u in units),
        shared_bytes=max((one.shared_bytes for one in fits), default=0),
        fewest_blocks=min((one.blocks for one in fits), default=0),
        spilling=tuple(one.kernel for one in fits if one.resources.spill_bytes),
        refused=tuple(map(str, refusals)),
        too_large=sum(refusal.reason in TOO_LARGE for refusal in refusals),
        relaxed=sum(one.bound < one.assumed for one in fits),
        registers=tuple((one.predicted, one.resources.registers) for one in fits),
        seconds=sum(unit.program.seconds for unit in units),
    )


def correlation(pairs: Sequence[Sequence[float]]) -> float | None:
    """Pearson's r; None where one side does not vary."""
    sides = np.array(pairs, float).reshape(-1, 2).T
    if sides.shape[1] < 3 or not sides.std(axis=1).all():
        return None
    return float(np.corrcoef(sides)[0, 1])


COLUMNS = (
    "module",
    "for",
    "kernels",
    "of several phases",
    "sections of warps",
    "functions",
    "most registers",
    "predicted, r",
    "most shared memory",
    "fewest blocks",
    "relaxed",
    "with spills",
    "refused",
    "too large for one wave",
    "NVRTC",
)


def table(found: Sequence[dict[str, Any]]) -> str:
    """The figures as a table of markdown, and predicted against used registers over all."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    for one in found:
        used = max((pair[1] for pair in one["registers"]), default=0)
        predicted = max((pair[0] for pair in one["registers"]), default=0)
        r = correlation(one["registers"])
        cells = (
            one["module"],
            one["target"],
            one["kernels"],
            one["of_several_phases"],
            f"{one['warp_sections']} of {one['sections']}",
            one["functions"],
            used,
            predicted if r is None else f"{predicted}, {r:.2f}",
            f"{one['shared_bytes'] / 1024:.1f} KiB",
            one["fewest_blocks"],
            one["relaxed"],
            len(one["spilling"]),
            len(one["refused"]),
            one["too_large"],
            f"{one['seconds']:.1f} s",
        )
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    for target in sorted({one["target"] for one in found}):
        pairs = [pair for one in found if one["target"] == target for pair in one["registers"]]
        r = correlation(pairs)
        off = np.median([abs(a - b) / b for a, b in pairs]) if pairs else 0.0
        told = "" if r is None else f", r = {r:.2f}, median error {off:.0%}"
        lines += ["", f"Registers predicted against used, {len(pairs)} kernels, {target}{told}."]
    return "\n".join(lines) + "\n"


def write(found: Figures) -> list[dict[str, Any]]:
    """Results with `found` among them."""
    path = record.raw(record.RESULTS / "cuda_compile.json")
    kept = json.loads(path.read_text()) if path.exists() else []
    by_key = {(one["module"], one["target"]): one for one in kept}
    by_key[found.module, found.target] = json.loads(json.dumps(asdict(found)))
    document = [by_key[key] for key in sorted(by_key)]
    record.write_figures(path, document)
    table_path = record.RESULTS / "cuda_compile.md"
    record.write_table(table_path, table(document), "python -m bench.cuda_compile")
    return document


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write, and print. Returns 1 where a kernel is refused or spills."""
    parser = argparse.ArgumentParser(prog="python -m bench.cuda_compile")
    parser.add_argument("--target", action="append", choices=sorted(GPUS))
    parser.add_argument("--cache", type=Path, default=None)
    parser.add_argument("name", nargs="*", default=workloads.NAMES)
    given = parser.parse_args(arguments)
    work = [(name, target) for target in given.target or TARGETS for name in given.name]
    found: list[Figures] = []
    with Progress(console=Console(stderr=True)) as bar:
        every = bar.add_task("modules", total=len(work))
        for name, target in work:
            found.append(measured(name, target, given.cache, bar))
            write(found[-1])
            bar.console.print(f"{name} {target}: {found[-1].seconds:.1f} s of NVRTC")
            bar.advance(every)
    print(table([asdict(one) for one in found]))
    return int(any(one.spilling or one.refused for one in found))


if __name__ == "__main__":
    raise SystemExit(main())
