"""What each mechanism of the papers is worth, measured: `python -m bench.ablation [MODULE...]`.

Whole modules run in one process, with each mechanism left out in turn: generated kernels, and
numpy's BLAS for the products of matrices that stay outside (bench/whole.py), on one core. A
module's results are compared with those of all mechanisms first. Above 1 the mechanism pays. What
`stitch reproduce astitch-ablation` estimates for a GPU, this measures on a CPU, where a kernel
costs little: remote and global fusion are worth more where each launch takes microseconds. A
framework around the kernels is not there, so memory that `aliasing` takes over saves nothing here.
Writes bench/results/ablation.md.
"""

from __future__ import annotations

import argparse
import lzma
import os
import time
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from bench import record

WORKLOADS = Path(__file__).resolve().parents[1] / "tests" / "workloads"
NAMES = ("mlp_nodrop_train", "dien_infer", "dien_train", "softmax_grad", "layernorm_gelu_grad")
ROUNDS, SECONDS, LIMIT = 31, 0.01, 60.0
TOLERANCE = 1e-4
"""Of an output's greatest value, between two sets of kernels of one module."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.ablation", description=__doc__)
    parser.add_argument("names", nargs="*", default=list(NAMES), metavar="MODULE")
    parser.add_argument("--no-write", action="store_true")
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # before BLAS counts cores
    found = {name: measure(name) for name in options.names}
    if not options.no_write and set(found) == set(NAMES):
        record.write_table(record.RESULTS / "ablation.md", table(found), "python -m bench.ablation")
    return 0


def measure(name: str) -> dict[str, Any]:
    """By mechanism: the time without it over that with all, and how many kernels there are."""
    import numpy as np  # after main has said on which core

    from bench import whole
    from bench.tiny import difference
    from stitchcore.compiler.stages import BuildOptions, compile_module
    from stitchcore.device.host import host_device
    from stitchcore.fusion.mechanisms import ALL, Mechanism
    from stitchcore.hlo.text.parser import parse
    from stitchcore.verify.inputs import integer_limit, plausible
    from stitchcore.verify.timing import compare

    module = parse(lzma.decompress((WORKLOADS / f"{name}.hlo.xz").read_bytes()).decode())
    given = plausible(module, {}, 0, min(200, integer_limit(module, {})))
    bound = {}
    for left_out in (None, *Mechanism):
        options = BuildOptions(mechanisms=ALL - {left_out})
        one = whole.bind(compile_module(module, host_device(), options), given, 1)
        one.run()
        bound["all" if left_out is None else left_out.value] = one
    expected = [np.array(array) for array in bound["all"].outputs]
    for word, one in bound.items():
        apart = max(map(difference, one.outputs, expected), default=0.0)
        if not apart < TOLERANCE:
            raise SystemExit(f"{name} without {word}: {apart:.1e} apart: nothing was timed")
    contestants = {word: one.run for word, one in bound.items()}
    result = compare(contestants, ROUNDS, SECONDS, LIMIT, time.process_time)
    rows = {word: (bound[word].kernels, result.ratio(word, "all")) for word in bound}
    print(name, f"{result.median('all') * 1e6:.0f} us", flush=True)
    for word, (kernels, ratio) in rows.items():
        print(f"  without {word}: {ratio}, {kernels} kernels", flush=True)
    return rows


def table(found: dict[str, dict[str, Any]]) -> str:
    words = [word for word in next(iter(found.values())) if word != "all"]
    lines = [f"| without | {' | '.join(found)} | geometric mean |", "|---" * (len(found) + 2) + "|"]
    kernels = (str(rows["all"][0]) for rows in found.values())
    lines.append(f"| nothing: kernels | {' | '.join(kernels)} | |")
    for word in words:
        of = [rows[word] for rows in found.values()]
        cells = (f"{ratio} ({kernels})" for kernels, ratio in of)
        mean = geometric_mean(ratio.value for _, ratio in of)
        lines.append(f"| `{word}` | {' | '.join(cells)} | {mean:.2f} |")
    return (
        "Time without a mechanism over time with all, with its 95 % interval, and kernels.\n\n"
        + "\n".join(lines)
        + "\n"
    )


if __name__ == "__main__":
    raise SystemExit(main())
