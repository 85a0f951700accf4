"""A recording of TensorFlow's kernels on a GPU against what regions for a GPU are lowered to.

`python -m tests.tensorflow.gpu_conformance [FOLDER] [--kind cpu] [--only OPERATION...]` lists it by
operation and type. The recording stands for the device (recorded_operations.py); the lowering's
HLO is evaluated by numpy and compared as conformance.py does. What would stay TensorFlow's on a GPU
anyway (`member`) is held against it too: it says what could be taken.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from stitchcore.device.records import DEVICES
from stitchcore.hlo.ir import numerics, precision
from stitchcore.tensorflow import lower, op_allowlist, placement
from stitchcore.tensorflow.graph import Edge, index
from stitchcore.tensorflow.node_roles import Part, classify
from stitchcore.tensorflow.updates import SLOTS, UPDATES
from stitchcore.tensorflow.variables import analyse
from tests.tensorflow import conformance
from tests.tensorflow.conformance_cases import Array, Case
from tests.tensorflow.recorded_operations import (
    Outcome,
    Probe,
    Recording,
    Way,
    digest,
    probes,
    read,
    update_operands,
)

RECORDED = Path(__file__).resolve().parent / "recorded" / "h100"
TARGET = "sm_90"
EQUAL, NO_KERNEL, NO_PROGRAM = "equal", "no kernel", "no program"
WITHOUT_KERNEL = re.compile(
    "NotFoundError|UnimplementedError|InvalidArgumentError: (No OpKernel|Cannot assign a device|"
    "Could not satisfy device|.*supports only DT_HALF)"
)
RELATIVE = {**conformance.RELATIVE, "float16": 2.0**-9}
"""Formulas of several float16 operations are off by two units there: each is rounded, or two are
one multiply-add."""
TENSOR_FLOAT = {**RELATIVE, "float32": 2.0**-10}
"""TensorFloat-32 rounds both factors to 11 bits. Single products of float32 are computed so by
TensorFlow's default where none of their sizes is 1, and with a fused bias always."""
FLUSHED = {"float32": 4.0, "bfloat16": 4.0}
"""Some of TensorFlow's kernels there flush denormals, others (cuBLAS, cuDNN, some of Eigen's) keep
them; ours flush float32's. What is apart by some smallest normal numbers is the same."""
OVERFLOWING = conformance.OVERFLOWING | {"BiasAddGrad", "Cumprod", "Cumsum", "Mean", "Prod", "Sum"}
OVERFLOWING |= {"FusedBatchNormV3", *UPDATES}
"""Which sum of extreme values overflows is decided by its order, and by what is one multiply-add:
not compared."""
SAVED = 3
"""Of a chained gradient's results the first so many are what it is given."""


@dataclass(frozen=True)
class Verdict:
    """On one probe: by class of input EQUAL, NO_KERNEL or how it differs. `member`: whether regions
    for the device take the operation."""

    probe: Probe
    member: bool
    classes: Mapping[str, str]

    @property
    def differences(self) -> dict[str, str]:
        quiet = (EQUAL, NO_KERNEL, NO_PROGRAM)
        return {kind: text for kind, text in self.classes.items() if text not in quiet}


def verdict(probe: Probe, outcomes: Mapping[str, Outcome], kind: str) -> Verdict:
    """A probe's outcomes against its lowering for a device of `kind`."""
    lowered: dict[tuple[tuple[int, ...], ...], conformance.Program] = {}
    classes: dict[str, str] = {}
    member = False
    for name, arrays in probe.inputs():
        outcome = outcomes[name]
        if digest(arrays) != outcome.digest:
            classes[name] = "not the inputs that were recorded"
            continue
        if outcome.error.startswith(("ValueError", "TypeError")):
            classes[name] = NO_PROGRAM
            continue
        if WITHOUT_KERNEL.match(outcome.error):
            classes[name] = NO_KERNEL
            continue
        if name == "extreme" and probe.case.operation in OVERFLOWING:
            continue
        given, expected = _given(probe, arrays, outcome)
        shapes = tuple(array.shape for array in given)
        if shapes not in lowered:
            subgraph = _subgraph(probe, shapes, kind)
            results = [result.shape for result in outcome.results]
            member = member or is_member(subgraph, probe, results, kind)
            lowered[shapes] = conformance.by_evaluation(conformance.lowered(subgraph))
        with flushing(kind):
            actual = lowered[shapes](given)
        classes[name] = _compared(probe, given, expected, actual)
        elsewhere = sorted({d for d in outcome.devices if not d.startswith(kind.upper())})
        if member and elsewhere and classes[name] == EQUAL:
            classes[name] = f"results lie on {', '.join(elsewhere)}"
    return Verdict(probe, member, classes)


@contextmanager
def flushing(kind: str) -> Iterator[None]:
    """Evaluation with the denormals that kernels of a device of `kind` flush: on a GPU not those of
    float64 (toolchain/nvrtc.py)."""
    if kind == placement.CPU:
        yield
        return
    flush = numerics.flush

    def of_float32(x: Array) -> Array:
        return flush(x) if x.dtype == np.float32 else x

    with (
        mock.patch.object(numerics, "flush", of_float32),
        mock.patch.object(precision, "flush", of_float32),
    ):
        yield


def _given(
    probe: Probe, arrays: Sequence[Array], outcome: Outcome
) -> tuple[list[Array], list[Array] | str]:
    """What the lowering is given, and what it shall make."""
    results = list(outcome.results)
    if probe.way is Way.CHAINED and not outcome.error:
        return [*arrays[:3], *results[:SAVED]], results[SAVED:]
    return list(arrays), outcome.error or results


def _compared(
    probe: Probe, given: Sequence[Array], expected: list[Array] | str, actual: Any
) -> str:
    allowance = _allowance(probe, given)
    if not isinstance(expected, str) and not isinstance(actual, str):
        expected = expected[: len(actual)]
    text = conformance.compare(probe.case, expected, actual, allowance)
    if text == EQUAL or isinstance(expected, str) or isinstance(actual, str):
        return text
    return f"{text}; {worst(probe.case, given, expected, actual, allowance)}"


def _allowance(probe: Probe, given: Sequence[Array]) -> conformance.Allowance:
    """Of a product how its factors are rounded; of an update a unit of its operands, whose products
    are added to without being rounded first."""
    operation = probe.case.operation
    single = operation in ("MatMul", "Einsum") and probe.way is Way.PLAIN
    sizes = {size for array in given for size in array.shape}
    if (single or operation == "_FusedMatMul") and 1 not in sizes:
        return conformance.Allowance(TENSOR_FLOAT, FLUSHED)
    scale: Array | float = 0.0
    if probe.way is Way.UPDATE:
        largest = np.abs([array.astype(np.float64) for array in given])
        scale = np.where(np.isfinite(largest), largest, 0.0).max(axis=0)
    return conformance.Allowance(RELATIVE, FLUSHED, scale)


def worst(
    case: Case,
    given: Sequence[Array],
    expected: Sequence[Array],
    actual: Sequence[Array],
    allowance: conformance.Allowance,
) -> str:
    """The element that differs most, with the elements that it was made of where places say it."""
    found: tuple[float, str] = (-1.0, "no element")
    for port, (want, have) in enumerate(zip(expected, actual, strict=True)):
        if port in case.unread or want.shape != have.shape or want.dtype != have.dtype:
            continue
        wrong = conformance.differs(case, want, have, allowance)
        for at in map(tuple, np.argwhere(wrong)):
            left, right = float(want[at]), float(have[at])
            apart = abs(left - right) / max(abs(left), abs(right), 1e-300)
            apart = apart if np.isfinite(apart) else np.inf
            if apart > found[0]:
                inputs = ", ".join(str(a[at]) for a in given if a.shape == want.shape)
                found = (apart, f"worst ({inputs}) -> {want[at]!s}, ours {have[at]!s}")
    return found[1]


def _subgraph(probe: Probe, shapes: Sequence[tuple[int, ...]], kind: str) -> lower.Subgraph:
    if probe.way is Way.UPDATE:
        return _update(probe.case, shapes, kind)
    subgraph = replace(conformance.function(probe.case, shapes), kind=kind)
    if kind == placement.CPU or "is_training" not in probe.case.attributes:
        return subgraph
    kept = _kept(probe.case)
    return replace(subgraph, results=tuple(("n0", port) for port in range(kept)))


def _kept(case: Case) -> int:
    """How many outputs of a normalization, or of its gradient, mean something on a GPU: there also
    what is saved for the gradient; outside a training step one, as the rest is never written."""
    if case.operation == "FusedBatchNormGradV3":
        return 3
    return 5 if case.attributes["is_training"] else 1


def _update(case: Case, shapes: Sequence[tuple[int, ...]], kind: str) -> lower.Subgraph:
    """An optimizer's update as regions have it: a function of variables and gradient."""
    update, dtype = UPDATES[case.operation], tf.as_dtype(case.dtypes[0])
    graph = graph_pb2.GraphDef()
    graph.versions.producer = 1882

    def constant(value: Any) -> str:
        node = graph.node.add(name=f"c{len(graph.node)}", op="Const")
        node.attr["dtype"].type = dtype.as_datatype_enum
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, dtype))
        return str(node.name)

    def write(operation: str, *inputs: str) -> str:
        node = graph.node.add(name=f"n{len(graph.node)}", op=operation, input=inputs)
        node.attr["T"].type = dtype.as_datatype_enum
        return str(node.name)

    count = update.variables
    operands = update_operands(case, f"a{count}", [constant(number) for number in case.constants])
    flag = bool(case.attributes.get(update.flag, update.flag == SLOTS))
    values = [f"a{number}" for number in range(count)]
    fresh = update.expand(write, constant(1.0), flag, values, operands)
    arguments = tuple(
        lower.Argument(Edge(number, 0), number < count, dtype.name, tuple(shape))
        for number, shape in enumerate(shapes)
    )
    results = tuple((name, 0) for name in fresh)
    return lower.Subgraph(graph, arguments, results, (), case.name, kind=kind)


def is_member(
    subgraph: lower.Subgraph, probe: Probe, results: Sequence[tuple[int, ...]], kind: str
) -> bool:
    """Whether a region for a device of `kind` may hold the operation, its data on that device.
    `results` are the shapes that were recorded, for those that TensorFlow cannot tell."""
    if probe.way is Way.UPDATE:
        return kind == placement.CPU or probe.case.operation not in op_allowlist.CPU_ONLY
    device = f"/device:{kind.upper()}:0"
    with tf.Graph().as_default() as graph, tf.device(device):
        mapped = {f"a{number}:0": tf.compat.v1.placeholder(argument.dtype, argument.dims)
                  for number, argument in enumerate(subgraph.arguments)}  # fmt: skip
        tf.graph_util.import_graph_def(subgraph.graph, input_map=mapped, name="probe")
    definition = graph.as_graph_def(add_shapes=True)
    [node] = [node for node in definition.node if node.name == "probe/n0"]
    for told, shape in zip(node.attr["_output_shapes"].list.shape, results, strict=False):
        if told.unknown_rank:
            told.CopyFrom(tf.TensorShape(shape).as_proto())
    indexed = index(definition)
    multiplies = DEVICES[TARGET] if kind == placement.GPU else None
    classes = classify(indexed, analyse(indexed), None, kind, multiplies)
    return classes.parts[indexed.number["probe/n0"]] is Part.MEMBER


def verdicts(operation: str, folder: Path, kind: str) -> list[Verdict]:
    """On an operation's probes, as far as they were recorded."""
    recording = recorded(folder)
    return [
        verdict(probe, recording.outcomes[probe.key], kind)
        for probe in probes()
        if probe.case.operation == operation and probe.key in recording.outcomes
    ]


_READ: dict[Path, Recording] = {}


def recorded(folder: Path) -> Recording:
    """Read once a process."""
    if folder not in _READ:
        _READ[folder] = read(folder)
    return _READ[folder]


def every(operations: Iterable[str], folder: Path, kind: str) -> Iterator[list[Verdict]]:
    """Each operation's, in processes of their own."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), context) as pool:
        yield from pool.map(partial(verdicts, folder=folder, kind=kind), operations)


def table(found: Sequence[Verdict]) -> Iterator[str]:
    """A line an operation, type and way; below it what differs."""
    rows: dict[tuple[str, str, str, str], list[Verdict]] = {}
    for one in found:
        dtype = one.probe.case.dtypes[0] if one.probe.case.dtypes else one.probe.case.note
        if dtype == "bool" and len(one.probe.case.dtypes) > 1:
            dtype = one.probe.case.dtypes[1]
        part = "member" if one.member else "TensorFlow's"
        rows.setdefault((one.probe.case.operation, dtype, one.probe.way, part), []).append(one)
    for (operation, dtype, way, part), some in rows.items():
        counts = Counter(text if text in (EQUAL, NO_KERNEL, NO_PROGRAM) else "differ"
                         for one in some for text in one.classes.values())  # fmt: skip
        said = ", ".join(f"{count} {text}" for text, count in sorted(counts.items()))
        yield f"{operation} {dtype} {way}".rstrip() + f" [{part}]: {said}"
        for one in some:
            for kind, text in one.differences.items():
                yield f"    {one.probe.key}, {kind}: {text}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tensorflow.gpu_conformance")
    parser.add_argument("folder", nargs="?", type=Path, default=RECORDED)
    parser.add_argument("--kind", choices=placement.KINDS, default=placement.GPU)
    parser.add_argument("--only", nargs="*", metavar="OPERATION")
    given = parser.parse_args(arguments)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    print(json.dumps(recorded(given.folder).about))
    operations = sorted({*op_allowlist.ALLOWED, *UPDATES})
    members = 0
    for found in every(given.only or operations, given.folder, given.kind):
        for line in table(found):
            print(line, flush=True)
        members += sum(one.member and bool(one.differences) for one in found)
    print(f"{members} cases that regions take differ")
    return int(members > 0)


if __name__ == "__main__":
    sys.exit(main())
