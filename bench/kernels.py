"""`python -m bench.kernels [NAME...]`: hand-written against generated kernels, without TensorFlow.

One thread by default, so that a busy machine disturbs both alike; prints each kernel's share.
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from bench import generated, launches, program
from bench.cpu_subgraphs import hand, subgraphs
from stitchcore.compiler.stages import BuildOptions
from stitchcore.verify.timing import compare


def run(name: str, threads: int, seconds: float, dump: Path | None) -> None:
    subgraph = subgraphs.build(name)
    text = generated.hlo(subgraph.function, subgraph.inputs)
    options = BuildOptions(dump=dump / name if dump else None)
    module = generated.compiled(text, options)
    made = generated.updating(launches.program(module, subgraph.inputs), subgraph.updates)
    bound = {
        "hand": program.bare(hand.PROGRAMS[name](), subgraph.inputs, threads),
        "generated": program.bare(made, subgraph.inputs, threads),
    }
    calls = {who: partial(one.run) for who, one in bound.items()}
    result = compare(calls, 21, 0.004, seconds)
    print(
        f"{name}: hand {result.median('hand') * 1e3:.3f} ms, generated "
        f"{result.median('generated') * 1e3:.3f} ms, hand/generated "
        f"{result.ratio('hand', 'generated')}",
        flush=True,
    )
    for who, one in bound.items():
        alone = compare(dict(list(one.launches.items())[:6]), 7, 0.002, 2.0)
        parts = ", ".join(f"{part} {alone.median(part) * 1e3:.3f}" for part in alone.seconds)
        print(f"  {who}: {parts}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.kernels", description=__doc__)
    parser.add_argument("names", nargs="*", default=list(subgraphs.BUILDERS))
    parser.add_argument("--threads", type=int, choices=(1, 2), default=1)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--dump", type=Path, help="folder for the stages' texts")
    options = parser.parse_args()
    for name in options.names:
        try:
            run(name, options.threads, options.seconds, options.dump)
        except launches.NotWhole as reason:
            print(f"{name}: not whole: {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
