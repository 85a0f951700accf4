"""What TensorFlow's operations mean on a GPU is what regions for one are lowered to.

No GPU is here: expected values are what TensorFlow's source says of its GPU kernels, written in
numpy, or its own CPU kernel where the source is the same for both; test_gpu_conformance.py has what
kernels on one computed. Each is held against the lowered
module and against its kernels, scheduled for sm_90, on the interpreter; and that the rule of a CPU
says something else shows that the test can fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")

import tensorflow as tf

from stitchcore.compiler.gpu_tables import differs
from stitchcore.compiler.pipeline import run
from stitchcore.compiler.stages import PLANNED, BuildOptions, ModuleState
from stitchcore.device.records import DEVICES
from stitchcore.errors import CheckFailed
from stitchcore.hlo.evaluator.evaluate import evaluate
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.text.parser import parse
from stitchcore.loop_ir.interpreter import interpret
from stitchcore.loop_ir.nodes import Kernel, Role
from stitchcore.tensorflow import lower
from tests.tensorflow.conformance import function
from tests.tensorflow.conformance_cases import Case

NAN, INF = float("nan"), float("inf")
LOGITS = np.random.default_rng(1).standard_normal((6, 5)).astype(np.float32)
LABELS = np.array([0, 4, -1, 5, 2**31 - 1, 2], np.int64)
KNOWN = (LABELS >= 0) & (LABELS < 5)
EPSILON = 1e-3


def module(case: Case, kind: str, outputs: int | None = None) -> Module:
    traced = function(case, case.shapes)
    if outputs is not None:
        traced = replace(traced, results=tuple(("n0", port) for port in range(outputs)))
    return parse(lower.hlo_text(replace(traced, kind=kind), {}, case.name))


def scheduled(hlo: Module) -> ModuleState:
    return run(PLANNED, ModuleState(hlo, DEVICES["sm_90"], BuildOptions()))


def kernels(hlo: Module) -> tuple[Kernel, ...]:
    return scheduled(hlo).kernels


def both(hlo: Module, arguments: Sequence[Any]) -> list[list[Any]]:
    """The module's results; and the kernel's, where it is one kernel of all parameters."""
    results = [list(evaluate(hlo, arguments))]
    state = scheduled(hlo)
    if len(state.kernels) == 1 and len(results[0]) == 1 and state.plan is not None:
        [kernel], [pattern] = state.kernels, state.plan.patterns
        assert differs(kernel) is None
        numbers = [value["number"] for value in pattern.inputs]
        buffers = kernel.with_role(Role.INPUT)
        arrays = [np.reshape(arguments[n], b.dims) for n, b in zip(numbers, buffers, strict=True)]
        [one] = interpret(kernel, arrays, {}, np.random.default_rng(0))
        results.append([one.reshape(results[0][0].shape)])
    return results


CROSS_ENTROPY = Case(
    "SparseSoftmaxCrossEntropyWithLogits", ("float32", "int64"), ((6, 5), (6,)), classes=5
)


def test_a_label_without_a_class_makes_its_row_nan_and_raises_nothing() -> None:
    """core/kernels/sparse_xent_op.h: SparseXentLossGenerator, SparseXentGradGenerator."""
    loss, gradient = evaluate(module(CROSS_ENTROPY, "gpu"), [LOGITS, LABELS])
    assert np.isnan(loss[~KNOWN]).all() and np.isnan(gradient[~KNOWN]).all()
    right = tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(
        features=LOGITS, labels=np.where(KNOWN, LABELS, 0)
    )
    np.testing.assert_allclose(loss[KNOWN], right.loss.numpy()[KNOWN], rtol=2e-6)
    np.testing.assert_allclose(gradient[KNOWN], right.backprop.numpy()[KNOWN], atol=2e-7)
    with pytest.raises(CheckFailed):
        evaluate(module(CROSS_ENTROPY, "cpu"), [LOGITS, LABELS])


def test_its_kernel_has_no_check_to_raise_on_a_gpu() -> None:
    assert [differs(kernel) for kernel in kernels(module(CROSS_ENTROPY, "gpu"))] == [None]
    assert any(kernel.errors for kernel in kernels(module(CROSS_ENTROPY, "cpu")))


EXTREME = (NAN, INF, -INF, 1e20, -1e20, 2.0**31, -(2.0**31), 2147483520.0, -3.99, 3.99, -0.0, 0.5)


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
)
def test_a_float_becomes_an_integer_as_cuda_converts_it(dtype: str) -> None:
    """PTX ISA, cvt: what is out of range is the nearest that is in it; NaN is 0, of float64 the
    smallest number (recorded on an H100)."""
    x = tf.cast(tf.constant(EXTREME, tf.float64), dtype).numpy()
    case = Case("Cast", (dtype,), (x.shape,), {"SrcT": dtype, "DstT": "int32"})
    nothing = -(2.0**31) if dtype == "float64" else 0.0
    wide = np.nan_to_num(np.trunc(x.astype(np.float64)), nan=nothing)
    expected = np.clip(wide, -(2.0**31), 2.0**31 - 1).astype(np.int32)
    for [result] in both(module(case, "gpu"), [x]):
        np.testing.assert_array_equal(result, expected)
    [on_cpu] = evaluate(module(case, "cpu"), [x])
    assert (on_cpu != expected).any()


def test_other_casts_are_what_they_are() -> None:
    case = Case("Cast", ("int64",), ((3,),), {"SrcT": "int64", "DstT": "float32"})
    x = np.array([-1, 2**40 + 1, 7], np.int64)
    for [result] in both(module(case, "gpu"), [x]):
        np.testing.assert_array_equal(result, x.astype(np.float32))


FUSED = Case(
    "_FusedBatchNormEx", ("float32",) * 5, ((2, 2, 2, 4), *(((4,),) * 4)),
    {"epsilon": EPSILON, "is_training": False, "num_side_inputs": 0, "activation_mode": "Relu",
     "U": tf.float32},
)  # fmt: skip


def test_a_fused_activation_keeps_a_nan() -> None:
    """core/kernels/fused_batch_norm_op.cu.cc: FusedBatchNormInferenceKernel, kRelu."""
    x = np.random.default_rng(2).standard_normal((2, 2, 2, 4)).astype(np.float32)
    x[0, 0, 0, 0] = NAN
    scale, offset, mean = (
        np.array(v, np.float32) for v in ([1, 2, 0.5, 1], [0, 0.1, -1, 0], [0, 1, 0, 2])
    )
    variance = np.array([1, 4, 0.25, 1], np.float32)
    plain = (x - mean) / np.sqrt(variance + EPSILON) * scale + offset
    expected = np.where(plain < 0, np.float32(0), plain)
    arguments = [x, scale, offset, mean, variance]
    for results in both(module(FUSED, "gpu", 1), arguments):
        np.testing.assert_allclose(results[0], expected, rtol=2e-6, atol=1e-6)
    assert np.isnan(expected[0, 0, 0, 0])
    assert evaluate(module(FUSED, "cpu", 1), arguments)[0][0, 0, 0, 0] == 0


def test_a_products_bias_is_added_to_it() -> None:
    """core/kernels/matmul_op_fused.cc: FusedMatMulOp, an epilogue of cuBLASLt."""
    case = Case(
        "_FusedMatMul", ("float32",) * 3, ((6, 8), (8, 9), (9,)),
        {"num_args": 1, "fused_ops": ["BiasAdd"]},
    )  # fmt: skip
    random = np.random.default_rng(7)
    x, w, b = (random.standard_normal(shape).astype(np.float32) for shape in case.shapes)
    for [result] in both(module(case, "gpu"), [x, w, b]):
        np.testing.assert_allclose(result, x.astype(np.float64) @ w + b, rtol=1e-5, atol=1e-6)


X = np.random.default_rng(3).standard_normal((4, 3, 3, 2)).astype(np.float32) * 2 + 1
SCALE, OFFSET = np.array([1.5, 0.5], np.float32), np.array([0.1, -0.2], np.float32)
EMPTY = np.zeros(0, np.float32)


def normalization(training: bool) -> Case:
    statistics = (0,) if training else (2,)
    shapes = ((4, 3, 3, 2), (2,), (2,), statistics, statistics)
    attributes = {"epsilon": EPSILON, "is_training": training, "U": tf.float32}
    return Case("FusedBatchNormV3", ("float32",) * 5, shapes, attributes)


def gradient_of(training: bool) -> Case:
    shapes = ((4, 3, 3, 2), (4, 3, 3, 2), (2,), (2,), (2,), (0,))
    attributes = {"epsilon": EPSILON, "is_training": training, "U": tf.float32}
    return Case("FusedBatchNormGradV3", ("float32",) * 6, shapes, attributes)


def test_a_normalization_saves_what_cudnn_saves() -> None:
    """compiler/tf2xla/kernels/batch_norm_op.cc: FusedBatchNormOp::Compile, is_on_gpu_."""
    arguments = [X, SCALE, OFFSET, EMPTY, EMPTY]
    results = evaluate(module(normalization(True), "gpu", 5), arguments)
    plain = tf.raw_ops.FusedBatchNormV3(
        x=X, scale=SCALE, offset=OFFSET, mean=EMPTY, variance=EMPTY, epsilon=EPSILON
    )
    for ours, theirs in zip(results[:4], plain[:4], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    variance = X.astype(np.float64).var(axis=(0, 1, 2))
    np.testing.assert_allclose(results[4], 1 / np.sqrt(variance + EPSILON), rtol=1e-5)
    on_cpu = evaluate(module(normalization(True), "cpu", 5), arguments)[4]
    np.testing.assert_allclose(on_cpu, variance, rtol=1e-5)


def test_a_normalizations_gradient_takes_what_cudnn_saved() -> None:
    """The same file: FusedBatchNormGradOp::Compile, is_on_gpu_. The result is that of a CPU, which
    is given the variance."""
    dy = np.random.default_rng(4).standard_normal(X.shape).astype(np.float32)
    wide = X.astype(np.float64)
    mean, variance = wide.mean(axis=(0, 1, 2)), wide.var(axis=(0, 1, 2))
    statistics = mean.astype(np.float32), variance.astype(np.float32)
    right = tf.raw_ops.FusedBatchNormGradV3(
        y_backprop=dy, x=X, scale=SCALE, reserve_space_1=statistics[0],
        reserve_space_2=statistics[1], reserve_space_3=EMPTY, epsilon=EPSILON,
    )[:3]  # fmt: skip
    saved = (1 / np.sqrt(variance + EPSILON)).astype(np.float32)
    arguments = [dy, X, SCALE, statistics[0], saved, EMPTY]
    for ours, theirs in zip(
        evaluate(module(gradient_of(True), "gpu", 3), arguments), right, strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-5)
    wrong = evaluate(module(gradient_of(True), "cpu", 3), arguments)
    assert np.abs(wrong[0] - right[0].numpy()).max() > 1e-2


def test_outside_training_both_have_the_given_statistics() -> None:
    mean, variance = np.array([0.5, 1], np.float32), np.array([2, 0.5], np.float32)
    dy = np.ones_like(X)
    for case, arguments in (
        (normalization(False), [X, SCALE, OFFSET, mean, variance]),
        (gradient_of(False), [dy, X, SCALE, mean, variance, EMPTY]),
    ):
        pair = [evaluate(module(case, kind, 3), arguments) for kind in ("gpu", "cpu")]
        for one, other in zip(*pair, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("operation", ["Maximum", "Minimum"])
def test_a_nan_is_kept_by_maximum_and_minimum(operation: str) -> None:
    """core/kernels/cwise_ops.h: scalar_max_op and scalar_min_op with PropagateNaN, on both."""
    left = np.array([NAN, 1, NAN, 3], np.float32)
    right = np.array([1, NAN, NAN, 2], np.float32)
    case = Case(operation, ("float32",) * 2, ((4,), (4,)))
    theirs = getattr(tf.raw_ops, operation)(x=left, y=right).numpy()
    for [result] in both(module(case, "gpu"), [left, right]):
        np.testing.assert_array_equal(result, theirs)
