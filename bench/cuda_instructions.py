"""Instructions that the cost model counts, and shared memory, against what NVRTC makes of kernels.

    python -m bench.cuda_instructions [--target sm_90] [--cache DIR] [NAME...]

For each kernel of the workloads: what one element of every value of its pattern takes, by class
(fusion/instructions.py), against how many instructions of that class its cubin holds
(bench/sass.py). Both are static. A kernel holds each several times (runs of elements, a loop for
each section), so what is told is Pearson's r, of the counts and of their logarithms, not a ratio.
Integer instructions are mostly addresses, which no value's opcode says.

Written to bench/results/cuda_instructions.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

from bench import record, sass
from bench.cuda_compile import correlation
from stitchcore.codegen import cuda
from stitchcore.compiler.pipeline import run
from stitchcore.compiler.stages import PLANNED, BuildOptions, ModuleState
from stitchcore.device.gpus import GPUS
from stitchcore.device.records import DEVICES
from stitchcore.device.timing import Classes
from stitchcore.fusion.cost import cost
from stitchcore.fusion.instructions import element
from stitchcore.fusion.pattern import Pattern
from stitchcore.fusion.text import bodies
from stitchcore.toolchain import cuda_compiler
from tests.hlo import workloads

CLASSES = ("float32", "special", "integer")


@dataclass(frozen=True)
class Kernel:
    """`counted` by the model and `compiled` by NVRTC, by class; bytes of shared memory and
    registers, (predicted from the pattern, used)."""

    module: str
    name: str
    counted: dict[str, float]
    compiled: dict[str, int]
    shared_bytes: tuple[int, int]
    registers: tuple[int, int]


def kernels(name: str, target: str, cache: Path | None) -> Iterator[Kernel]:
    """Those of one workload module and its loop bodies."""
    device = DEVICES[target]
    state = run(PLANNED, ModuleState(workloads.module(name), device, BuildOptions()))
    patterns = _patterns(state)
    units, _ = cuda_compiler.compile_kernels(state.kernels, target, cache)
    for unit in units:
        operations = sass.operations(unit.program.data)
        for kernel, fit in zip(unit.kernels, unit.fits, strict=True):
            pattern = patterns[kernel.name]
            counted = sum(map(element, pattern.instructions), Classes())
            estimate = cost(pattern, device)
            yield Kernel(
                name,
                kernel.name,
                {one: getattr(counted, one) for one in CLASSES},
                {one: sass.by_class(operations[kernel.name])[one] for one in CLASSES},
                (estimate.shared_bytes, cuda.shared_bytes(kernel)),
                (estimate.registers, fit.resources.registers),
            )


def _patterns(state: ModuleState) -> dict[str, Pattern]:
    """By the name of the kernel that each becomes, loop bodies' too."""
    assert state.plan is not None
    pairs = [*zip(state.of, state.plan.patterns, strict=True)]
    for body, plan in bodies(state.plan).items():
        pairs += zip(state.inner[body], plan.patterns, strict=True)
    return {state.kernels[number].name: pattern for number, pattern in pairs}


def table(found: Sequence[Kernel], target: str) -> str:
    """Correlations over all kernels, as markdown."""
    lines = ["| class | kernels | r | r of logarithms |", "|---|---|---|---|"]
    for one in CLASSES:
        pairs = [(k.counted[one], k.compiled[one]) for k in found]
        logs = np.log1p(np.array(pairs, float)).tolist()
        plain, scaled = correlation(pairs), correlation(logs)
        lines.append(f"| {one} | {len(pairs)} | {plain or 0:.2f} | {scaled or 0:.2f} |")
    registers = correlation([one.registers for one in found]) or 0
    shared = [one.shared_bytes for one in found if any(one.shared_bytes)]
    lines += ["", f"{target}. Registers predicted from patterns: r = {registers:.2f}. Kernels with"]
    lines += [f"shared memory for rows, predicted and used: {shared or 'none'}."]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile, count, write, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.cuda_instructions")
    parser.add_argument("--target", default="sm_90", choices=sorted(GPUS))
    parser.add_argument("--cache", type=Path, default=None)
    parser.add_argument("name", nargs="*", default=workloads.NAMES)
    given = parser.parse_args(arguments)
    found: list[Kernel] = []
    for name in track(given.name, "modules", console=Console(stderr=True)):
        found += kernels(name, given.target, given.cache)
    text = table(found, given.target)
    document = {"target": given.target, "kernels": [asdict(one) for one in found]}
    path = record.RESULTS / "cuda_instructions.md"
    record.write_figures(record.raw(path.with_suffix(".json")), document)
    record.write_table(path, text, "python -m bench.cuda_instructions")
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
