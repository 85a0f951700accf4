"""Every kernel of every workload as CUDA, compiled by NVRTC for some architectures, without a GPU.

    python -m bench.cuda_compile [--target sm_80 --target sm_90] [NAME...]

From the compiler's log: registers, spills and shared memory of each kernel; from those, by the
occupancy formula, how many blocks the device holds at once. A kernel of several phases meets at
grid barriers, so it needs at least one resident block on each multiprocessor that it uses; its grid
is the smaller of its tasks and one wave. Written to bench/results/cuda_compile.{json,md}.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from stitchcore.device.occupancy import MULTIPROCESSORS, one_wave
from stitchcore.device.records import DEVICES
from stitchcore.emit import cuda
from stitchcore.kernel.nodes import Kernel, Scope
from stitchcore.plan.text import bodies
from stitchcore.stages import PLANNED, BuildOptions, State, run_stages
from stitchcore.target import nvrtc
from stitchcore.target.nvrtc import Resources
from tests.hlo import workloads

RESULTS = Path(__file__).resolve().parent / "results"
TARGETS = ("sm_80", "sm_90")


@dataclass(frozen=True)
class Figures:
    """Of one module for one architecture. `few` names kernels that do not fit a multiprocessor,
    `spilling` those with spills."""

    module: str
    target: str
    kernels: int
    of_several_phases: int
    warp_sections: int
    sections: int
    registers: int
    shared_bytes: int
    spilling: tuple[str, ...]
    few: tuple[str, ...]
    seconds: float


def kernels_of(name: str, target: str) -> list[Kernel]:
    """The kernels of a module and of its loop bodies, each once."""
    state = run_stages(State(workloads.module(name), DEVICES[target], BuildOptions()), PLANNED, {})
    assert state.plan is not None
    assert all(body in state.inner for body in bodies(state.plan))
    return list(state.kernels)


def measured(name: str, target: str) -> Figures:
    kernels = kernels_of(name, target)
    began = time.perf_counter()
    found = {one.name: one for one in compiled(kernels, target)}
    seconds = time.perf_counter() - began
    sections = [s for k in kernels for phase in k.phases for s in phase.sections]
    return Figures(
        module=name,
        target=target,
        kernels=len(kernels),
        of_several_phases=sum(len(kernel.phases) > 1 for kernel in kernels),
        warp_sections=sum(section.scope is Scope.WARP for section in sections),
        sections=len(sections),
        registers=max((one.registers for one in found.values()), default=0),
        shared_bytes=max((cuda.shared_bytes(kernel) for kernel in kernels), default=0),
        spilling=tuple(name for name, one in found.items() if one.spill_bytes),
        few=tuple(k.name for k in kernels if wave(k, found[k.name], target) < units(target)),
        seconds=seconds,
    )


def compiled(kernels: Sequence[Kernel], target: str) -> Iterator[Resources]:
    for start in range(0, len(kernels), nvrtc.BATCH):
        batch = kernels[start : start + nvrtc.BATCH]
        yield from nvrtc.compile_cuda(cuda.render(batch), target).resources


def wave(kernel: Kernel, resources: Resources, target: str) -> int:
    """Blocks of `kernel` that are resident at once on the whole device."""
    shared = cuda.shared_bytes(kernel) + resources.shared_bytes
    return one_wave(target, cuda.THREADS, resources.registers, shared)


def units(target: str) -> int:
    return MULTIPROCESSORS[target].count


def table(found: Sequence[Figures]) -> str:
    head = "| module | for | kernels | of several phases | sections of warps | most registers | "
    lines = [head + "most shared memory | with spills | too large for one wave | NVRTC |"]
    lines.append("|---|---|---|---|---|---|---|---|---|---|")
    for one in found:
        lines.append(
            f"| {one.module} | {one.target} | {one.kernels} | {one.of_several_phases} | "
            f"{one.warp_sections} of {one.sections} | {one.registers} | "
            f"{one.shared_bytes / 1024:.1f} KiB | {len(one.spilling)} | {len(one.few)} | "
            f"{one.seconds:.1f} s |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write, and print. Returns 1 where a kernel does not fit or spills."""
    parser = argparse.ArgumentParser(prog="python -m bench.cuda_compile")
    parser.add_argument("--target", action="append", choices=sorted(MULTIPROCESSORS))
    parser.add_argument("name", nargs="*", default=workloads.NAMES)
    given = parser.parse_args(arguments)
    work = [(name, target) for name in given.name for target in given.target or TARGETS]
    found = [measured(*one) for one in track(work, "compiling", console=Console(stderr=True))]
    RESULTS.mkdir(exist_ok=True)
    document: list[dict[str, Any]] = [asdict(one) for one in found]
    (RESULTS / "cuda_compile.json").write_text(json.dumps(document, indent=1) + "\n")
    (RESULTS / "cuda_compile.md").write_text(table(found))
    print(table(found))
    return int(any(one.spilling or one.few for one in found))


if __name__ == "__main__":
    raise SystemExit(main())
