"""TensorFlow against each allow-listed operation as it is lowered, and as it is stitched.

`python -m tests.tensorflow.conformance` writes docs/conformance.md. The reference is TensorFlow's
own kernel on this machine, never XLA (docs/semantics.md). Two candidates are held against it: the
region's HLO evaluated by numpy, and the compiled kernels that a job would launch.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.python.framework import op_def_registry

from stitchcore.compiler import regions
from stitchcore.compiler.stages import BuildOptions
from stitchcore.device.host import host_device
from stitchcore.errors import CheckFailed, Refused
from stitchcore.hlo.evaluator.evaluate import evaluate
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.text.parser import parse
from stitchcore.runtime.cpu_kernel import CpuKernel, load_library
from stitchcore.tensorflow import lower, op_allowlist
from stitchcore.tensorflow.graph import Edge
from stitchcore.verify.region import Runner
from tests.tensorflow.conformance_cases import CLASSES, NUMPY, Array, Case, cases, inputs

RELATIVE = {"float32": 2e-6, "float64": 1e-13, "bfloat16": 2**-7, "float16": 2**-10,
            "float8_e4m3fn": 0.0, "float8_e5m2": 0.0}  # fmt: skip
"""What an elementary function may differ by between two sound implementations."""
REDUCING = frozenset({"Sum", "Mean", "Prod", "Cumsum", "Cumprod", "L2Loss", "Softmax",
                      "LogSoftmax", "BiasAddGrad",
                      "SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits",
                      "FusedBatchNormV3",
                      "FusedBatchNormGradV3", "_FusedBatchNormEx", "_MklLayerNorm", "MirrorPadGrad",
                      "MatMul", "BatchMatMul", "BatchMatMulV2", "Einsum",
                      "_FusedMatMul"})  # fmt: skip
"""Operations that add many terms: the order of addition is free."""

DRAWN = frozenset(op_allowlist.DRAWN)
"""Random numbers are equal bit for bit."""

ROWS_LOST_TO_NAN = frozenset({"Softmax"})
"""A row that holds NaN or +inf: TensorFlow's oneDNN kernel answers NaN for some elements and 0 for
others, by vector lane; here the whole row is NaN. Compared by row: lost in both or in neither."""
ONEDNN = {"TF_ENABLE_ONEDNN_OPTS": "1"}
OF_ONEDNN = frozenset({"_FusedBatchNormEx", "_MklSwish", "_MklLayerNorm"})
"""Made by Grappler where oneDNN is on, which it is not by default on every processor; without it
TensorFlow has no such kernel (an InternalError: "Missing 0-th output")."""

OVERFLOWING = frozenset(
    {
        "FusedBatchNormGradV3",
        "_MklLayerNorm",
        "MirrorPadGrad",
        "MatMul",
        "BatchMatMul",
        "BatchMatMulV2",
        "Einsum",
        "_FusedMatMul",
    }
)
"""Sums of products of extreme values overflow or not by the order of addition: not compared."""


@dataclass(frozen=True)
class Allowance:
    """What two sound implementations may differ by: `relative` by type, of the larger value or of
    `scale`, and by type so many times the smallest normal number, where kernels may flush."""

    relative: Mapping[str, float] = field(default_factory=lambda: RELATIVE)
    flushed: Mapping[str, float] = field(default_factory=dict)
    scale: Array | float = 0.0


@dataclass(frozen=True)
class Finding:
    """The verdicts on one case: by class of input "equal", or what differs; or why it is no case.

    `lowered` is the HLO under numpy, `stitched` the compiled kernels."""

    case: Case
    lowered: dict[str, str]
    stitched: dict[str, str]
    absent: str = ""

    @property
    def differences(self) -> list[str]:
        """What is not equal, by candidate and class."""
        both = {"lowered": self.lowered, "stitched": self.stitched}
        return [f"{candidate} {kind}: {verdict}" for candidate, verdicts in both.items()
                for kind, verdict in verdicts.items() if verdict != "equal"]  # fmt: skip

    @property
    def holds(self) -> bool:
        return not self.differences


def function(case: Case, shapes: Sequence[tuple[int, ...]]) -> lower.Subgraph:
    """The operation as a region of one node, as partitioning would make it."""
    graph = graph_pb2.GraphDef()
    graph.versions.producer = 1882
    constants = []
    for number, value in enumerate(case.constants):
        node = graph.node.add(name=f"c{number}", op="Const")
        node.attr["dtype"].type = tf.as_dtype(value.dtype).as_datatype_enum
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))
        constants.append(node.name)
    operands = [f"a{number}" for number in range(len(case.shapes))] + constants
    if case.order is not None:
        operands = [operands[position] for position in case.order]
    node = graph.node.add(name="n0", op=case.operation, input=operands)
    _set_attributes(node, case)
    arguments = tuple(
        lower.Argument(Edge(number, 0), False, dtype, tuple(shape))
        for number, (dtype, shape) in enumerate(zip(case.dtypes, shapes, strict=True))
    )
    with tf.Graph().as_default():
        mapped = {f"a{k}:0": tf.compat.v1.placeholder(a.dtype, a.dims)
                  for k, a in enumerate(arguments)}  # fmt: skip
        tf.graph_util.import_graph_def(graph, input_map=mapped, name="probe")
        count = len(tf.compat.v1.get_default_graph().get_operation_by_name("probe/n0").outputs)
    kept = min(count, {"FusedBatchNormV3": 3, "FusedBatchNormGradV3": 3}.get(case.operation, 99))
    return lower.Subgraph(graph, arguments, tuple(("n0", p) for p in range(kept)), (), case.name)


def _set_attributes(node: Any, case: Case) -> None:
    """Attributes of the case, types from its inputs, defaults for the rest."""
    definition = op_def_registry.get(case.operation)
    by_position = [*case.dtypes, *(tf.as_dtype(c.dtype).name for c in case.constants)]
    if case.order is not None:
        by_position = [by_position[p] for p in case.order]
    types: dict[str, str] = {}
    cursor = 0
    for argument in definition.input_arg:
        if cursor < len(by_position) and argument.type_attr:
            types.setdefault(argument.type_attr, by_position[cursor])
        cursor += case.attributes[argument.number_attr] if argument.number_attr else 1
    for attribute in definition.attr:
        name = attribute.name
        given = case.attributes.get(name)
        if given is None and name not in types:
            if attribute.HasField("default_value"):
                node.attr[name].CopyFrom(attribute.default_value)
            continue
        if attribute.type == "type":
            node.attr[name].type = tf.as_dtype(types.get(name, given)).as_datatype_enum
        elif attribute.type == "list(int)":
            node.attr[name].list.i.extend(given)
        elif attribute.type == "list(string)":
            node.attr[name].list.s.extend(text.encode() for text in given)
        elif attribute.type == "shape":
            node.attr[name].shape.CopyFrom(tf.TensorShape(given).as_proto())
        elif attribute.type == "int":
            node.attr[name].i = given
        elif attribute.type == "bool":
            node.attr[name].b = given
        elif attribute.type == "float":
            node.attr[name].f = given
        else:
            node.attr[name].s = given.encode()


Program = Callable[[Sequence[Array]], "list[Array] | str"]
"""Results, or the kind of error that is raised."""

Shapes = tuple[tuple[int, ...], ...]
"""Of a case's data inputs: one lowering and one set of kernels."""


def by_tensorflow(subgraph: lower.Subgraph) -> Program:
    """The operation as TensorFlow's own kernel computes it."""
    function = lower.as_function(subgraph, jit=False)

    def run(arrays: Sequence[Array]) -> list[Array] | str:
        try:
            return [value.numpy() for value in function(*(tf.constant(a) for a in arrays))]
        except tf.errors.OpError as error:
            if "No OpKernel" in str(error) or "Could not find device" in str(error):
                return "NotFoundError"
            return f"{type(error).__name__}: {error.message}"

    return run


def by_evaluation(module: Module | str) -> Program:
    """The region's HLO, evaluated; a text is why there is none."""
    if isinstance(module, str):
        return lambda arrays: module
    return _checked(lambda arrays: evaluate(module, arrays))


def _checked(run: Callable[[Sequence[Array]], list[Array]]) -> Program:
    """A check that does not hold is TensorFlow's error (contracts.md 3)."""

    def result(arrays: Sequence[Array]) -> list[Array] | str:
        try:
            return run(arrays)
        except CheckFailed as error:
            return f"InvalidArgumentError: {error}"

    return result


def lowered(subgraph: lower.Subgraph) -> Module | str:
    """The region's HLO, or why it is refused."""
    try:
        return parse(lower.hlo_text(subgraph, {}, subgraph.key))
    except Refused as refused:
        return f"refused: {refused.refusal.reason.value}"


def by_kernels(modules: Sequence[Module | str]) -> list[Program]:
    """The regions as a job would run them: planned, scheduled, compiled together, launched."""
    device = host_device()
    whole = {str(n): module for n, module in enumerate(modules) if isinstance(module, Module)}
    built = regions.compile_regions(whole, device, BuildOptions())
    libraries = [load_library(library.data) for library in built.libraries]
    refused = {r.subject: f"refused: {r.reason.value} {r.detail}" for r in built.refusals}
    programs: list[Program] = []
    for number, module in enumerate(modules):
        key = str(number)
        if isinstance(module, str) or key in refused:
            programs.append(by_evaluation(refused.get(key, module)))
            continue
        region = regions.program(built, key, device)
        kernels = (CpuKernel(libraries[step.library], step.kernel) for step in region.launches)
        programs.append(_launched(Runner(region, tuple(kernels))))
    return programs


def _launched(runner: Runner) -> Program:
    return _checked(lambda given: runner.run([np.ascontiguousarray(array) for array in given], {}))


@dataclass(frozen=True)
class Form:
    """A case at the shapes of one or more classes of inputs: TensorFlow's program and the HLO."""

    original: Program
    module: Module | str


def forms(case: Case) -> dict[Shapes, Form] | str:
    """The case by shapes; a text is why it is none."""
    by_shapes: dict[Shapes, Form] = {}
    for kind in CLASSES:
        arrays = inputs(case, kind)
        shapes = () if arrays is None else tuple(array.shape for array in arrays)
        if arrays is None or shapes in by_shapes:
            continue
        try:
            whole = function(case, shapes)
            original = by_tensorflow(whole)
        except (ValueError, TypeError) as error:
            if kind == "empty":
                continue
            return f"not a TensorFlow program: {str(error)[:120]}"
        results = original(arrays)
        if isinstance(results, str) and results.startswith(("NotFoundError", "UnimplementedError")):
            return "TensorFlow has no such kernel"
        by_shapes[shapes] = Form(original, lowered(whole))
    return by_shapes


def check(
    case: Case, case_forms: Mapping[Shapes, Form], kernels: Mapping[Shapes, Program]
) -> Finding:
    """Compare one case over all classes of input."""
    finding = Finding(case, {}, {})
    for kind in CLASSES:
        arrays = inputs(case, kind)
        if arrays is None or (kind == "extreme" and case.operation in OVERFLOWING):
            continue
        shapes = tuple(array.shape for array in arrays)
        if shapes not in case_forms:
            continue
        expected = case_forms[shapes].original(arrays)
        by_numpy = by_evaluation(case_forms[shapes].module)
        finding.lowered[kind] = compare(case, expected, by_numpy(arrays))
        finding.stitched[kind] = compare(case, expected, kernels[shapes](arrays))
    return finding


def compare(
    case: Case,
    expected: Sequence[Array] | str,
    actual: Sequence[Array] | str,
    allowance: Allowance = Allowance(),
) -> str:
    """ "equal", or the first difference."""
    if isinstance(expected, str) or isinstance(actual, str):
        left = expected if isinstance(expected, str) else "a value"
        right = actual if isinstance(actual, str) else "a value"
        return "equal" if _same_error(left, right) else f"TensorFlow: {left}, ours: {right}"
    for port, (want, have) in enumerate(zip(expected, actual, strict=True)):
        if port in case.unread:
            continue
        if want.dtype != have.dtype or want.shape != have.shape:
            return f"output {port}: {want.dtype}{want.shape} against {have.dtype}{have.shape}"
        wrong = differs(case, want, have, allowance)
        if wrong.any():
            at = tuple(np.argwhere(wrong)[0])
            return (f"output {port}: {int(wrong.sum())} of {wrong.size} differ, "
                    f"{want[at]!s} against {have[at]!s}")  # fmt: skip
    return "equal"


def _same_error(expected: str, actual: str) -> bool:
    """Ours says how TensorFlow's begins: that goes on with all labels."""
    kind, _, message = actual.partition(": ")
    return expected.startswith(f"{kind}: ") and message.rstrip(".") in expected


def differs(case: Case, want: Array, have: Array, allowance: Allowance) -> Array:
    """Where two arrays are not what two sound implementations may make."""
    name = tf.as_dtype(want.dtype).name
    if case.operation in ROWS_LOST_TO_NAN:
        lost, gone = (np.isnan(x).any(-1, keepdims=True) for x in (want, have))
        whole = np.isnan(have).all(-1, keepdims=True)
        sound = ~lost & ~gone & _near(case, want, have, allowance)
        return np.asarray(~(sound | (lost & whole)))
    if name not in allowance.relative or case.operation in DRAWN:
        return np.asarray(want != have)
    return ~_near(case, want, have, allowance)


def _near(case: Case, want: Array, have: Array, allowance: Allowance) -> Array:
    name = tf.as_dtype(want.dtype).name
    tolerance = allowance.relative[name] * (8 if case.operation in REDUCING else 1)
    left, right = want.astype(np.float64), have.astype(np.float64)
    with np.errstate(all="ignore"):
        largest = np.maximum(np.maximum(np.abs(left), np.abs(right)), allowance.scale)
        near = np.abs(left - right) <= tolerance * largest
        if case.operation in REDUCING:
            finite = np.abs(left[np.isfinite(left)])
            near |= np.abs(left - right) <= tolerance * (finite.max() if finite.size else 0.0)
        tiny = float(ml_dtypes.finfo(want.dtype).smallest_normal)
        near |= np.abs(left - right) <= allowance.flushed.get(name, 0.0) * tiny
        near &= np.isfinite(left) & np.isfinite(right)
    small = (np.abs(left) < tiny) & (np.abs(right) < tiny)
    flushed = small & (tolerance > 0.0)  # denormals may be flushed or kept; float8's are kept
    same = (left == right) | (np.isnan(left) & np.isnan(right)) | near | flushed
    return np.asarray(same)


def findings(operation: str) -> list[Finding]:
    """All cases of an operation over the element types it is allow-listed for."""
    rule = op_allowlist.ALLOWED[operation]
    order = [dtype for dtype in NUMPY if dtype in rule.inputs]
    chosen = list(cases(operation, order))
    if operation == "Cast":
        pairs = [(case, case.attributes["DstT"]) for case in chosen]
        chosen = [c for c, to in pairs if op_allowlist.cast_is_allowed(c.dtypes[0], to, "cpu")]
    return check_all(chosen)


def check_all(chosen: Sequence[Case]) -> list[Finding]:
    """Findings on the cases, their kernels compiled together."""
    all_forms = [forms(case) for case in chosen]
    flat = [
        form.module
        for case_forms in all_forms
        if not isinstance(case_forms, str)
        for form in case_forms.values()
    ]
    programs = iter(by_kernels(flat))
    case_forms = []
    for case, by_shapes in zip(chosen, all_forms, strict=True):
        if isinstance(by_shapes, str):
            case_forms.append(Finding(case, {}, {}, by_shapes))
        else:
            case_forms.append(check(case, by_shapes, {s: next(programs) for s in by_shapes}))
    return case_forms


def anywhere(operation: str) -> list[Finding]:
    """`findings`, in a process with oneDNN where the operation is oneDNN's."""
    if operation not in OF_ONEDNN:
        return findings(operation)
    context = multiprocessing.get_context("spawn")
    with mock.patch.dict(os.environ, ONEDNN), ProcessPoolExecutor(1, context) as other:
        return other.submit(findings, operation).result()


def document() -> str:
    """docs/conformance.md: one row per operation."""
    lines = [
        "# Conformance: TensorFlow against what is lowered and what is stitched",
        "",
        f"Written by `python -m tests.tensorflow.conformance` with TensorFlow {tf.__version__} on "
        "the CPU; do not edit.",
        "Each allow-listed operation over its element types and over ordinary, NaN, infinite, "
        "signed-zero, denormal, extreme and empty inputs, labels also over those no class has. "
        "TensorFlow's own kernel is held against "
        "the region's HLO evaluated by numpy (lowered) and against the compiled kernels that a job "
        "launches (stitched): how many cases of each are equal.",
        "",
        "| operation | element types that hold | lowered | stitched | differs |",
        "|---|---|---|---|---|",
    ]
    for operation in sorted(op_allowlist.ALLOWED):
        live = [f for f in anywhere(operation) if not f.absent]
        types = list(dict.fromkeys(f.case.dtypes[0] if f.case.dtypes else f.case.note
                                   for f in live if f.holds))  # fmt: skip
        bad = [f"{f.case.name}: {text}" for f in live for text in f.differences]
        counts = [_equal(f.lowered for f in live), _equal(f.stitched for f in live)]
        cells = (operation, ", ".join(types), *counts, "; ".join(bad))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _equal(findings: Iterable[Mapping[str, str]]) -> str:
    verdicts = [verdict for by_class in findings for verdict in by_class.values()]
    return f"{verdicts.count('equal')} of {len(verdicts)}"


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    root = Path(__file__).resolve().parents[2]
    text = document()
    if "--print" in sys.argv:
        print(text)
    else:
        (root / "docs" / "conformance.md").write_text(text)
