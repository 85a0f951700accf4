"""Graphs of many tiny operations against XLA:CPU on the same HLO: `python -m bench.tiny [NAME...]`.

DIEN (attention over histories) from tests/workloads, a recommender (three embeddings, a segment sum
of their gradient, a small MLP) and plain segment sums. Both run whole, in turn, in one process, on
one core (`--threads 2`: on both), after their results were compared; the ratio has its 95 %
bootstrap interval. On one core the clock is the process's own, so neighbours count less. Ours runs
kernels and numpy's BLAS one call after another from Python; XLA's run includes its client's call.
Writes bench/results/tiny.md.
"""

from __future__ import annotations

import argparse
import lzma
import os
import time
from pathlib import Path
from typing import Any

from bench import record

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("dien_infer", "dien_train", "recommender", "segment_sums")
ROUNDS = 21
TOLERANCE = 1e-4
"""Of the greatest value of an output; NaN is beyond it."""
MOST_INTEGERS = 200
"""Of drawn data: rows of the tables that are looked up in."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.tiny", description=__doc__)
    parser.add_argument("names", nargs="*", default=list(NAMES), metavar="NAME")
    parser.add_argument("--threads", type=int, choices=(1, 2), default=1)
    parser.add_argument("--seconds", type=float, default=10.0, help="Most for each graph.")
    parser.add_argument("--no-write", action="store_true")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(NAMES))
    if unknown:
        parser.error(f"no graph is called {', '.join(unknown)}; there are {', '.join(NAMES)}")
    if options.threads == 1:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # before BLAS and XLA count cores
    found = {name: measure(name, options.threads, options.seconds) for name in options.names}
    if not options.no_write and set(found) == set(NAMES):
        document = {"threads": options.threads, "graphs": found}
        path = record.RESULTS / "tiny.md"
        record.write_figures(record.raw(path.with_suffix(".json")), document)
        record.write_table(path, table(found), "python -m bench.tiny")
    return 0


def measure(name: str, threads: int, limit: float) -> dict[str, Any]:
    """Times of one graph, ours and XLA's, and their ratio."""
    import numpy as np  # after main has said on which cores: BLAS counts them

    from bench import whole, xla
    from stitchcore.compiler.stages import BuildOptions, compile_module
    from stitchcore.device.host import host_device
    from stitchcore.hlo.text.printer import print_module
    from stitchcore.verify.inputs import integer_limit, plausible
    from stitchcore.verify.timing import compare

    module = graph(name)
    given = plausible(module, {}, 0, min(MOST_INTEGERS, integer_limit(module, {})))
    ours = whole.bind(compile_module(module, host_device(), BuildOptions()), given, threads)
    theirs = xla.compile_text(print_module(module))
    buffers = theirs.put(given)
    ours.run()
    pairs = zip(ours.outputs, map(np.asarray, theirs.run(buffers)), strict=True)
    error = float(np.max([difference(*pair) for pair in pairs]))
    if not error < TOLERANCE:
        raise SystemExit(f"{name}: the results are {error:.1e} apart: nothing was timed")
    clock = time.process_time if threads == 1 else time.perf_counter
    contestants = {"ours": ours.run, "xla": lambda: theirs.run(buffers)}
    result = compare(contestants, ROUNDS, 0.02, limit, clock)
    ratio = result.ratio("xla", "ours")
    row = {
        "ours": result.median("ours"),
        "xla": result.median("xla"),
        "xla_over_ours": [ratio.value, ratio.low, ratio.high],
        "kernels": ours.kernels,
        "calls": len(ours.calls),
        "xla_launches": theirs.kernels.total(),
        "difference": error,
    }
    print(f"{name}: ours {row['ours'] * 1e3:.3f} ms, XLA {row['xla'] * 1e3:.3f} ms, XLA / ours "
          f"{ratio}; {ours.kernels} kernels of {len(ours.calls)} calls, XLA "
          f"{theirs.kernels.total()}; apart {error:.1e}", flush=True)  # fmt: skip
    return row


def difference(ours: Any, theirs: Any) -> float:
    """Greatest difference over the greatest value."""
    import numpy as np

    wide = np.asarray(theirs, np.float64)
    scale = np.abs(wide).max(initial=0.0) or 1.0
    return float(np.abs(np.asarray(ours, np.float64) - wide).max(initial=0.0) / scale)


def table(found: dict[str, dict[str, Any]]) -> str:
    lines = ["| graph | ours ms | XLA:CPU ms | XLA / ours | calls, XLA's |", "|---" * 5 + "|"]
    for name, row in found.items():
        middle, low, high = row["xla_over_ours"]
        times = f"{row['ours'] * 1e3:.3f} | {row['xla'] * 1e3:.3f}"
        calls = f"{row['calls']}, {row['xla_launches']}"
        lines.append(f"| {name} | {times} | {middle:.2f} [{low:.2f}, {high:.2f}] | {calls} |")
    return "\n".join(lines) + "\n"


# ---- graphs --------------------------------------------------------------------------------------
def graph(name: str) -> Any:
    """The module called `name`."""
    from stitchcore.hlo.text.parser import parse
    from stitchcore.hlo.transforms.expand import expand

    if name == "recommender":
        return recommender()
    if name == "segment_sums":
        return segment_sums()
    text = lzma.decompress((ROOT / "tests" / "workloads" / f"{name}.hlo.xz").read_bytes()).decode()
    return expand(parse(text)).module


BATCH, WIDTH, FIELDS, PLACES = 512, 16, 3, 20000


def recommender() -> Any:
    """Three embeddings, an MLP of two layers, its squared loss, and one step of SGD on a table: the
    gradient of the rows that were looked up, summed by row."""
    from stitchcore.hlo.ir import builder
    from stitchcore.hlo.ir import opcodes as op

    tables = [builder.parameter(n, "f32", (PLACES, WIDTH)) for n in range(FIELDS)]
    ids = [builder.parameter(FIELDS + n, "s32", (BATCH,)) for n in range(FIELDS)]
    first = builder.parameter(2 * FIELDS, "f32", (FIELDS * WIDTH, 32))
    second = builder.parameter(2 * FIELDS + 1, "f32", (32, 1))
    wanted = builder.parameter(2 * FIELDS + 2, "f32", (BATCH, 1))
    looked = [_rows(table, one) for table, one in zip(tables, ids, strict=True)]
    joined = builder.concatenate(looked, 1)
    hidden = _dot(joined, first)
    active = builder.elementwise(op.MAXIMUM, hidden, builder.splat(0.0, hidden))
    error = builder.elementwise(op.SUBTRACT, _dot(active, second), wanted)
    back = _dot(error, builder.transpose(second, (1, 0)))
    on = builder.elementwise(op.COMPARE, hidden, builder.splat(0.0, hidden), direction="GT")
    back = builder.elementwise(op.SELECT, on, back, builder.splat(0.0, back))
    slopes = _dot(back, builder.transpose(first, (1, 0)))
    loss = builder.reduce(builder.elementwise(op.MULTIPLY, error, error), [0, 1], op.ADD)
    outputs = [loss]
    for n, (place, table) in enumerate(zip(ids, tables, strict=True)):
        part = builder.slice_(slopes, [(0, BATCH, 1), (n * WIDTH, (n + 1) * WIDTH, 1)])
        step = builder.elementwise(op.MULTIPLY, part, builder.splat(-0.01, part))
        outputs.append(_summed(table, place, step))
    return _module("recommender", [*tables, *ids, first, second, wanted], outputs)


def segment_sums() -> Any:
    """Sums and counts of 4,096 rows by 500 segments, and their means."""
    from stitchcore.hlo.ir import builder
    from stitchcore.hlo.ir import opcodes as op

    rows, segments = builder.parameter(0, "f32", (4096, 32)), builder.parameter(1, "s32", (4096,))
    zeros = builder.broadcast(builder.constant(0.0, "f32"), (500, 32), ())
    sums = _summed(zeros, segments, builder.elementwise(op.TANH, rows))
    ones = builder.broadcast(builder.constant(1.0, "f32"), (4096, 1), ())
    counts = _summed(builder.broadcast(builder.constant(0.0, "f32"), (500, 1), ()), segments, ones)
    counts = builder.elementwise(op.MAXIMUM, counts, builder.splat(1.0, counts))
    spread = builder.broadcast(builder.reshape(counts, (500,)), (500, 32), (0,))
    return _module("segments", [rows, segments], [builder.elementwise(op.DIVIDE, sums, spread)])


def _module(name: str, parameters: list[Any], outputs: list[Any]) -> Any:
    from stitchcore.hlo.ir import builder
    from stitchcore.hlo.ir.instruction import computation
    from stitchcore.hlo.ir.module import Module

    return Module(name, computation(parameters, builder.tuple_(outputs)))


def _rows(table: Any, ids: Any) -> Any:
    from stitchcore.hlo.ir import builder

    sizes = (1, table.shape.dims[1])
    return builder.gather(table, ids, [0], sizes, vector_dim=1, offset_dims=[1], collapsed=[0])


def _summed(into: Any, ids: Any, updates: Any) -> Any:
    from stitchcore.hlo.ir import builder
    from stitchcore.hlo.ir import opcodes as op

    add = builder.monoid(op.ADD, "f32")
    return builder.scatter(into, ids, updates, add, window=[1], scattered=[0], vector_dim=1)


def _dot(left: Any, right: Any) -> Any:
    from stitchcore.hlo.ir import opcodes as op
    from stitchcore.hlo.ir.instruction import instruction
    from stitchcore.hlo.ir.shape import Shape

    shape = Shape("f32", (left.shape.dims[0], right.shape.dims[1]))
    dims = {"lhs_contracting_dims": (1,), "rhs_contracting_dims": (0,)}
    return instruction(op.DOT, shape, (left, right), **dims)


if __name__ == "__main__":
    raise SystemExit(main())
