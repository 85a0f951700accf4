"""What a product of matrices costs in a kernel and as a call of TensorFlow: the prices of `Gemm`
(device/records.py). `python -m bench.contractions [--target cpu-x86-64-v3]`

A call is one of CALLS products in a chain, so it holds what the executor takes for an operation.
The kernel is one product alone, less what calling the smallest takes from Python. Products of two
matrices have one core; `--batched` are those of many pairs, which TensorFlow's operation gives to
all cores, however small: what waking them costs is most of its price. The library has no more than
the target's instructions (ONEDNN_MAX_CPU_ISA). Writes nothing: a price goes into the record by
hand, with the machine it is of.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

CALLS = 64
INSTRUCTIONS = {"cpu-x86-64-v2": "SSE41", "cpu-x86-64-v3": "AVX2", "cpu-x86-64-v4": "ALL"}
ROUNDS, SECONDS = 21, 0.01
SIZES = ((8, 8, 8), (16, 16, 16), (32, 64, 64), (64, 64, 64), (128, 64, 64), (32, 256, 64),
         (128, 128, 128), (256, 256, 256), (512, 512, 512))  # fmt: skip
"""Rows, contracted, columns."""
BATCHED = ((2, 8, 8, 8), (8, 24, 32, 32), (32, 24, 8, 24), (32, 24, 24, 8), (16, 64, 16, 64),
           (64, 64, 16, 64), (64, 64, 64, 16), (32, 128, 32, 128), (48, 128, 64, 128))  # fmt: skip
"""Of so many pairs."""

Array = np.ndarray[Any, np.dtype[Any]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.contractions", description=__doc__)
    parser.add_argument("--target", choices=sorted(INSTRUCTIONS), help="Default: this machine's.")
    parser.add_argument("--batched", action="store_true", help="products of many pairs")
    options = parser.parse_args()
    if not options.batched:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # before TensorFlow counts cores
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from stitchcore.device.host import host_device
    from stitchcore.verify.timing import compare

    target = options.target or host_device().target
    os.environ["ONEDNN_MAX_CPU_ISA"] = INSTRUCTIONS[target]
    least = kernel(target, 2, 2, 2)
    rates: dict[str, list[tuple[int, float]]] = {"kernel": [], "call": []}
    print(f"{target}: rows, contracted, columns; microseconds, Gflop/s")
    for sizes in BATCHED if options.batched else SIZES:
        contestants = {"kernel": kernel(target, *sizes), "call": calls(*sizes), "least": least}
        found = compare(contestants, ROUNDS, SECONDS, 60.0)
        seconds = {
            "kernel": found.median("kernel") - found.median("least"),
            "call": found.median("call") / CALLS,
        }
        flops = 2 * math.prod(sizes)
        for name, took in seconds.items():
            rates[name].append((flops, took))
        row = (f"{name} {s * 1e6:9.2f} {flops / s / 1e9:6.1f}" for name, s in seconds.items())
        print(*sizes, *row, sep="  ", flush=True)
    print_prices(rates)
    return 0


def print_prices(rates: dict[str, list[tuple[int, float]]]) -> None:
    """What a call takes beside its work, its rate with the largest products, and a kernel's with
    those between."""
    library = median(flops / seconds for flops, seconds in rates["call"][-2:])
    loops = median(flops / seconds for flops, seconds in rates["kernel"][2:-1])
    beside = median(seconds - flops / library for flops, seconds in rates["call"][:4])
    print(f"({beside:.1e}, {library:.1e}, {loops:.1e})")


def kernel(target: str, *sizes: int) -> Callable[[], None]:
    """One product in a kernel."""
    from bench import launches, program
    from stitchcore.compiler.stages import compile_module
    from stitchcore.device.records import DEVICES, Call, Gemm
    from stitchcore.hlo.text.parser import parse

    *batch, rows, contracted, columns = sizes
    left, right, both = ((*batch, *of) for of in
                         ((rows, contracted), (contracted, columns), (rows, columns)))  # fmt: skip
    pairs = "lhs_batch_dims={0}, rhs_batch_dims={0}, " if batch else ""
    at = len(batch)
    contracts = f"lhs_contracting_dims={{{at + 1}}}, rhs_contracting_dims={{{at}}}"
    text = f"""HloModule product
ENTRY main {{
  x = f32[{",".join(map(str, left))}] parameter(0)
  w = f32[{",".join(map(str, right))}] parameter(1)
  ROOT y = f32[{",".join(map(str, both))}] dot(x, w), {pairs}{contracts}
}}"""
    dear = replace(DEVICES[target], gemm=Gemm(Call(1.0, 1e12), Call(1.0, 1e12), 1e9))
    given = {"x": drawn(*left), "w": drawn(*right)}
    bound = program.bare(launches.program(compile_module(parse(text), dear), given), given, 1)
    bound.run()
    difference = np.abs(bound.outputs()[0] - given["x"] @ given["w"]).max()
    if difference > 1e-3:
        raise SystemExit(f"{sizes}: {difference:.1e} from numpy's")
    return bound.run


def calls(*sizes: int) -> Callable[[], None]:
    """CALLS products in a chain, there and back."""
    import tensorflow as tf

    *batch, rows, contracted, columns = sizes
    there = tf.constant(drawn(*batch, contracted, columns))
    back = tf.constant(drawn(*batch, columns, contracted))
    start = tf.constant(drawn(*batch, rows, contracted))

    @tf.function
    def chain(x: Any) -> Any:
        for _ in range(CALLS // 2):
            x = tf.matmul(tf.matmul(x, there), back)
        return x

    run = chain.get_concrete_function(start)
    return lambda: run(start)


def drawn(*shape: int) -> Array:
    random = np.random.default_rng(0).uniform(-1, 1, shape) / np.sqrt(shape[-2])
    return random.astype(np.float32)


if __name__ == "__main__":
    raise SystemExit(main())
