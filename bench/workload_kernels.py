"""Each kernel of the workload modules against float64: `python -m bench.workload_kernels`.

A module is run once at full size, its patterns by their compiled kernels and all else by numpy, and
each distinct kernel is judged on the inputs it meets there (verify/kernel.py). Where those could
not show an error (constant, not finite) or a branch is never taken, it is judged on drawn data.
Writes bench/results/raw/workload_kernels.json after each module.
"""

from __future__ import annotations

import json
import lzma
import resource
import sys
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench import record
from stitchcore.compiler.module import CompiledModule
from stitchcore.compiler.stages import BuildOptions, compile_module
from stitchcore.device.host import host_device
from stitchcore.fusion.pattern import Pattern, Plan
from stitchcore.hlo.text.parser import parse
from stitchcore.runtime.cpu_kernel import CpuKernel
from stitchcore.runtime.module import interpret, load, run_kernel
from stitchcore.verify.inputs import integer_limit, plausible
from stitchcore.verify.kernel import KernelCheck, check_kernel

CAPTURES = 3
"""A kernel of a loop is judged on its first launches, until one could have shown an error."""

FIGURES = record.raw(record.RESULTS / "workload_kernels.json")
WORKLOADS = Path(__file__).resolve().parents[1] / "tests" / "workloads"
Array = np.ndarray[Any, np.dtype[Any]]


def run(kernel: CpuKernel, pattern: Pattern, given: Sequence[Array]) -> Sequence[Array]:
    return run_kernel(kernel, pattern, given, {})


def on_captured(made: CompiledModule, loaded: Sequence[CpuKernel]) -> dict[int, list[KernelCheck]]:
    """Checks by kernel, on what it meets in a run of the whole module."""
    found: dict[int, list[KernelCheck]] = {}

    def launch(plan: Plan, number: int, given: Sequence[Array]) -> Sequence[Array]:
        of = made.of if plan is made.plan else made.inner[plan.module.entry]
        kernel, pattern = of[number], plan.patterns[number]
        outputs = run(loaded[kernel], pattern, given)
        checks = found.setdefault(kernel, [])
        if len(checks) < CAPTURES and not any(check.informative for check in checks):
            checks.append(check_kernel(pattern, plan.module, lambda _: outputs, {}, given))
        return outputs

    integers = integer_limit(made.module, {})
    given = plausible(made.module, {}, 0, integers)
    interpret(made.plan, given, {}, launch)
    return found


def judged(made: CompiledModule) -> list[list[KernelCheck]]:
    """All checks of each kernel, the last one on drawn data where no captured one could tell."""
    loaded = load(made)
    captured = on_captured(made, loaded)
    found = []
    for number, (plan, pattern) in enumerate(made.uses()):
        checks = captured.get(number, [])
        if not any(check.informative for check in checks):
            ours = partial(run, loaded[number], pattern)
            checks = [*checks, check_kernel(pattern, plan.module, ours, {})]
        found.append(checks)
    return found


def check(path: Path) -> dict[str, Any]:
    """Figures of one module."""
    with lzma.open(path, "rt") as file:
        module = parse(file.read())
    made = compile_module(module, host_device(), BuildOptions())
    start = time.perf_counter()
    counts = Counter({"right": 0, "wrong": 0})
    wrong = []
    for entry, checks in zip(made.kernels, judged(made), strict=True):
        passed = all(check.passed for check in checks)
        told = [check.data for check in checks if check.informative]
        counts["right" if passed else "wrong"] += 1
        counts["uninformative" if not told else f"on {told[-1]} data"] += 1
        if not passed:
            failed = next(check for check in checks if not check.passed)
            wrong.append(f"{entry.kernel.name}: {failed}"[:400])
    return {
        "patterns": len(made.plan.patterns),
        "kernels": len(made.kernels),
        "opaque": len(made.plan.opaque),
        "gigabytes": [made.plan.unfused.bytes / 1e9, made.plan.planned.bytes / 1e9],
        **counts,
        "wrong kernels": wrong,
        "scalar loops": sum(len(unit.library.scalar_loops) for unit in made.units),
        "peak gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "seconds": {**made.seconds, "check": time.perf_counter() - start},
    }


def main() -> None:
    chosen = sys.argv[1:] or [p.name.split(".hlo")[0] for p in sorted(WORKLOADS.glob("*.hlo.xz"))]
    for name in chosen:
        found = check(WORKLOADS / f"{name}.hlo.xz")
        print(name, {k: v for k, v in found.items() if k != "seconds"}, flush=True)
        results: dict[str, Any] = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
        record.write_figures(FIGURES, dict(sorted({**results, name: found}.items())))


if __name__ == "__main__":
    main()
