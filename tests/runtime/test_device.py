"""On a real GPU: what the stand-in cannot show. `make gpu` runs these."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest

from stitchcore.hlo.evaluator.evaluate import apply, evaluate
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import instruction, topological
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.ir.shape import Shape
from stitchcore.hlo.text.parser import parse
from stitchcore.inject import build
from stitchcore.runtime.cuda_library import CudaLibrary
from stitchcore.runtime.gpu.compile_module import compile_for_gpu
from stitchcore.runtime.gpu.cupy_device import CupyDevice
from stitchcore.runtime.gpu.executor import capture_refused, captured, loaded
from stitchcore.runtime.gpu.library.convolution import convolution
from stitchcore.runtime.gpu.library.gemm import gemm
from tests.hlo import workloads
from tests.runtime.whole import arguments, error_of, leaves

pytestmark = pytest.mark.gpu

TOLERANCE = 2e-3
"""Over an output's largest value: convolutions round their operands to TF32 (10 bits), as XLA's
do."""


def exact(name: str) -> Module:
    """A workload whose products round nothing to TF32: what a network makes of that rounding is no
    matter of ours (an H100 chose another of two near words, a gradient was off by a 200th)."""
    text = workloads.text(name)
    return parse(
        re.sub(r"( dot\(.*?\)), lhs", r"\1, operand_precision={highest,highest}, lhs", text)
    )


@pytest.fixture
def cuda(gpu: CupyDevice) -> Iterator[CudaLibrary]:
    library = CudaLibrary(build.build_launch(), gpu.driver)
    yield library
    library.close()


def target(gpu: CupyDevice) -> str:
    device = gpu.arrays.cuda.Device()
    return f"sm_{device.compute_capability}"


@pytest.mark.parametrize(
    "name",
    [
        "softmax_grad",
        "layernorm_gelu_grad",
        "mlp_nodrop_train",
        "dien_infer",
        "lstm_lm_train",
        "transformer_dec_step",
        "crnn_infer",
    ],
)
def test_a_workload_computes_what_numpy_does(gpu: CupyDevice, cuda: CudaLibrary, name: str) -> None:
    """Twice, and once more as a CUDA graph where there can be one."""
    module = exact(name)
    made = compile_for_gpu(module, target(gpu))
    given = arguments(module)
    expected = leaves(evaluate(made.module, given))
    with loaded(made, gpu, cuda) as one:
        one.give(leaves(given))
        graph = () if capture_refused(made) else (captured(one),)
        for way in (one.run, one.run, *graph):
            way()
            errors = [error_of(*pair) for pair in zip(one.results(), expected, strict=True)]
            assert max(errors) < TOLERANCE


@pytest.mark.parametrize("name", ["mlp_nodrop_train", "gpt2_train"])
def test_two_steps_in_place(gpu: CupyDevice, cuda: CudaLibrary, name: str) -> None:
    """The second goes on from the first."""
    module = exact(name)
    made = compile_for_gpu(module, target(gpu), updates=True)
    given = arguments(module)
    once = leaves(evaluate(module, given))
    next_given = list(given)
    for output, parameter in module.aliases:
        next_given[parameter] = once[output]
    with loaded(made, gpu, cuda) as one:
        one.give(leaves(given))
        one.run()
        for expected in (once, leaves(evaluate(module, next_given))):
            errors = [error_of(*pair) for pair in zip(one.results(), expected, strict=True)]
            assert max(errors) < TOLERANCE
            one.run()


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16"])
def test_a_product_by_strides(gpu: CupyDevice, dtype: str, transposed: bool) -> None:
    dims = (3, 8, 16) if transposed else (3, 16, 8)
    left = instruction(op.PARAMETER, Shape(dtype, dims), number=0)
    right = instruction(op.PARAMETER, Shape(dtype, (3, 8, 24)), number=1)
    numbers = {"lhs_batch_dims": (0,), "rhs_batch_dims": (0,)}
    numbers |= {"lhs_contracting_dims": (1 if transposed else 2,), "rhs_contracting_dims": (1,)}
    node = instruction(op.DOT, Shape(dtype, (3, 16, 24)), (left, right), **numbers)
    random = np.random.default_rng(0)
    kind = {"f32": np.float32, "f64": np.float64, "f16": np.float16}[dtype]
    given = [random.standard_normal(o.shape.static).astype(kind) for o in node.operands]
    arrays = [gpu.arrays.asarray(one) for one in given]
    result = gpu.arrays.empty(node.shape.static, kind)
    gpu.arrays.cuda.Device().synchronize()
    gpu.enqueue(lambda: gpu.gemm(gemm(node), *arrays, result))
    gpu.synchronize()
    assert error_of(gpu.arrays.asnumpy(result), apply(node, given)) < TOLERANCE


def test_every_convolution_of_the_workloads(gpu: CupyDevice) -> None:
    """Forward and both gradients, at the sizes that training has."""
    kinds = set()
    for name in ("crnn_infer", "asr_train"):
        module = compile_for_gpu(workloads.module(name), target(gpu)).module
        for node in topological([module.entry.root]):
            if node.opcode == op.CONVOLUTION:
                kinds.add(convolution(node).kind)
                random = np.random.default_rng(0)
                shapes = [operand.shape.static for operand in node.operands]
                given = [random.standard_normal(shape, np.float32) for shape in shapes]
                arrays = [gpu.arrays.asarray(one) for one in given]
                found = gpu.arrays.asnumpy(gpu.convolution(node, *arrays))
                assert error_of(found, apply(node, given)) < TOLERANCE, str(node)
    assert len(kinds) == 3
