"""Each kernel of the workload modules against float64: `python -m bench.workload_kernels`.

Kernels are compiled at full size and run on drawn inputs (verify/kernels.py). Kernels over values
of more than LIMIT elements are counted as too large: numpy's float64 reference would not fit.
Writes bench/results/workload_kernels.json after each module.
"""

from __future__ import annotations

import json
import lzma
import sys
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from stitchcore.compiled import run_kernel
from stitchcore.device.host import host_device
from stitchcore.hlo.parse import parse
from stitchcore.plan.candidates import extent
from stitchcore.plan.pattern import Pattern
from stitchcore.stages import BuildOptions, compile_module
from stitchcore.target.cpu_runtime import CpuKernel
from stitchcore.verify.kernels import check_kernel

LIMIT = 30_000_000
RESULTS = Path(__file__).parent / "results" / "workload_kernels.json"
WORKLOADS = Path(__file__).resolve().parents[1] / "tests" / "workloads"
Array = np.ndarray[Any, np.dtype[Any]]


def run(kernel: CpuKernel, pattern: Pattern, given: Sequence[Array]) -> Sequence[Array]:
    return run_kernel(kernel, pattern, given, {})


def check(path: Path) -> dict[str, Any]:
    """Figures of one module."""
    with lzma.open(path, "rt") as file:
        module = parse(file.read())
    made = compile_module(module, host_device(), BuildOptions())
    loaded = made.loaded()
    counts: Counter[str] = Counter()
    wrong = []
    start = time.perf_counter()
    for number, (plan, pattern) in enumerate(made.uses()):
        if max(extent(node.shape.size) for node in pattern.instructions) > LIMIT:
            counts["too large"] += 1
            continue
        found = check_kernel(pattern, plan.module, partial(run, loaded[number], pattern), {})
        counts["right" if found.passed else "wrong"] += 1
        counts["informative"] += found.informative
        if not found.passed:
            wrong.append(f"{made.kernels[number].kernel.name}: {found}"[:400])
    return {
        "patterns": len(made.plan.patterns),
        "kernels": len(made.kernels),
        "opaque": len(made.plan.opaque),
        "gigabytes": [made.plan.unfused.bytes / 1e9, made.plan.planned.bytes / 1e9],
        **counts,
        "wrong kernels": wrong,
        "scalar loops": sum(len(library.scalar_loops) for library in made.libraries),
        "seconds": {**made.seconds, "check": time.perf_counter() - start},
    }


def main() -> None:
    chosen = sys.argv[1:] or [p.name.split(".hlo")[0] for p in sorted(WORKLOADS.glob("*.hlo.xz"))]
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in chosen:
        results[name] = check(WORKLOADS / f"{name}.hlo.xz")
        print(name, {k: v for k, v in results[name].items() if k != "seconds"}, flush=True)
        RESULTS.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
