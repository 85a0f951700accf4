"""Regions by their kind, ours against TensorFlow and XLA: `python -m bench.region_kinds [NAME...]`.

What models are made of beside their products: pooling and normalization of CNNs and their
gradients, lookups and interactions of recommenders, scans and reversals of speech, short rows,
integers. Each is one TensorFlow function. On one core: our kernels bare, TensorFlow's operations
and XLA's executable as `tf.function` calls them (some 50 to 200 us a call, which small regions
show). Every result is held against float64 before anything is timed. Writes
bench/results/region_kinds.md.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench import record
from bench.kinds import KINDS, Kind

ROUNDS, SECONDS, LIMIT = 11, 0.004, 3.0
TOLERANCE = 1e-5
"""Of an output's greatest value: our error, where TensorFlow's own is not half as large."""


@dataclass(frozen=True)
class Row:
    """Median microseconds; None for ours where the region is not whole (`left` says why)."""

    name: str
    ours: float | None
    tensorflow: float
    xla: float
    left: str = ""

    @property
    def ratio(self) -> float | None:
        """Time of the better of the others over ours."""
        return None if self.ours is None else min(self.tensorflow, self.xla) / self.ours


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.region_kinds", description=__doc__)
    parser.add_argument("names", nargs="*", default=list(KINDS), metavar="NAME")
    options = parser.parse_args()
    if unknown := sorted(set(options.names) - set(KINDS)):
        parser.error(f"no kind {', '.join(unknown)}: there are {', '.join(KINDS)}")
    rows = []
    for name in options.names:
        rows.append(measure(name, KINDS[name]))
        print(_line(rows[-1]), flush=True)
    if set(options.names) == set(KINDS):
        path = record.RESULTS / "region_kinds.md"
        record.write_table(path, table(rows), "python -m bench.region_kinds")
    return 0


def measure(name: str, kind: Kind) -> Row:
    import tensorflow as tf  # after main has said on which core

    from bench import generated, launches, whole
    from bench.tiny import difference
    from stitchcore.errors import Refused
    from stitchcore.verify.timing import compare

    inputs = kind.inputs(np.random.default_rng(0))
    tensors = [tf.constant(array) for array in inputs]
    plain = tf.function(kind.function, autograph=False)
    jitted = tf.function(kind.function, jit_compile=True, autograph=False)
    calls: dict[str, Callable[[], Any]] = {
        "tensorflow": lambda: plain(*tensors),
        "xla": lambda: jitted(*tensors),
    }
    left = ""
    try:
        given = {f"a{n}": array for n, array in enumerate(inputs)}
        ours = whole.bind(generated.compiled(generated.hlo(kind.function, given)), inputs, 1)
    except (launches.NotWhole, Refused) as refused:
        left = str(refused)
    else:
        ours.run()
        theirs = [np.asarray(tensor) for tensor in plain(*tensors)]
        exact = _exact(kind, inputs, theirs)
        for number, (one, other, truth) in enumerate(zip(ours.outputs, theirs, exact, strict=True)):
            bar = max(TOLERANCE, 2 * difference(other, truth))
            if not difference(one.reshape(truth.shape), truth) <= bar:
                raise SystemExit(f"{name}: result {number} is wrong: nothing was timed")
        calls["ours"] = ours.run
    for call in calls.values():
        call()
    result = compare(calls, ROUNDS, SECONDS, LIMIT)
    times: Mapping[str, float] = {word: result.median(word) * 1e6 for word in calls}
    return Row(name, times.get("ours"), times["tensorflow"], times["xla"], left)


def _exact(kind: Kind, inputs: Sequence[Any], otherwise: list[Any]) -> list[Any]:
    """Results in float64, `otherwise` where the function is written for float32."""
    import tensorflow as tf

    wide = [a.astype(np.float64) if a.dtype == np.float32 else a for a in inputs]
    try:
        return [np.asarray(tensor) for tensor in kind.function(*map(tf.constant, wide))]
    except (TypeError, ValueError, tf.errors.InvalidArgumentError):
        return otherwise


def _line(row: Row) -> str:
    if row.ours is None:
        return f"{row.name}: {row.left}"
    return f"{row.name}: {row.ours:.0f} us, {row.ratio:.2f} of the better of the others"


def table(rows: list[Row]) -> str:
    lines = [
        "Microseconds on one core, slowest ratio first: time of the better of TensorFlow and XLA",
        "over ours, above 1 where our kernels are quicker.",
        "",
        "| region | ours | TensorFlow | XLA | ratio |",
        "|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda row: row.ratio or 0.0):
        ours, ratio = "-", row.left
        if row.ours is not None and row.ratio is not None:
            ours, ratio = f"{row.ours:.0f}", f"{row.ratio:.2f}"
        lines.append(f"| {row.name} | {ours} | {row.tensorflow:.0f} | {row.xla:.0f} | {ratio} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # before TensorFlow counts cores
    sys.exit(main())
