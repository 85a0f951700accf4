"""Small products of matrices are members of regions where a device's kernels are quicker with them,
and compute what TensorFlow does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from stitchcore.compiler.pipeline import run
from stitchcore.compiler.regions import compile_regions, program
from stitchcore.compiler.stages import PLANNED, BuildOptions, ModuleState
from stitchcore.device.host import host_device
from stitchcore.device.records import DEVICES, Call, Gemm
from stitchcore.errors import Reason
from stitchcore.hlo.ir.dim import evaluate
from stitchcore.loop_ir.interpreter import interpret
from stitchcore.runtime.cpu_kernel import CpuKernel, load_library
from stitchcore.runtime.module import buffers
from stitchcore.tensorflow.lower import lower, subgraph
from stitchcore.tensorflow.partition import Partition, Region, partition
from stitchcore.tensorflow.run_region import runner
from stitchcore.verify.region import Runner
from tests.tensorflow.graphs import pruned

DEAR = replace(host_device(), gemm=Gemm(Call(1.0, 1e12), Call(1.0, 1e12), 1e9))
"""A library whose calls take a second."""


def graph_of(make: Callable[..., Any], *shapes: tuple[int | None, ...]) -> Any:
    graph = tf.Graph()
    with graph.as_default():
        given = [tf.compat.v1.placeholder(tf.float32, shape) for shape in shapes]
        tf.identity(make(*given), name="out")
    return pruned(graph, ["out"])


def layers(x: Any, first: Any, second: Any) -> Any:
    return tf.nn.softmax(tf.matmul(tf.tanh(tf.matmul(x, first)), second, transpose_b=True))


SHAPES = ((32, 64), (64, 48), (24, 48))


def members(cut: Partition) -> list[str]:
    return [cut.graph.nodes[i].op for region in cut.regions for i in region.members]


def test_layers_are_one_region_and_right() -> None:
    cut = partition(graph_of(layers, *SHAPES), ["out"], multiplies=DEAR)
    (region,) = cut.regions
    assert [cut.graph.nodes[i].op for i in region.members].count("MatMul") == 2
    assert is_right(cut) == 1


def narrowed(dtype: Any) -> Callable[..., Any]:
    """Two layers computed in another type."""

    def make(*given: Any) -> Any:
        return tf.cast(layers(*(tf.cast(value, dtype) for value in given)), tf.float32)

    return make


def test_layers_in_bfloat16() -> None:
    """A call of TensorFlow's is dearer than one for float32, and as near: it adds up in float32."""
    cut = partition(graph_of(narrowed(tf.bfloat16), *SHAPES), ["out"], multiplies=DEAR)
    assert members(cut).count("MatMul") == 2
    assert is_right(cut, rtol=2**-6) == 1


def test_layers_in_float64() -> None:
    """Twice the price of float32, in the kernel and as a call."""
    cut = partition(graph_of(narrowed(tf.float64), *SHAPES), ["out"], multiplies=DEAR)
    assert members(cut).count("MatMul") == 2
    assert is_right(cut) == 1


@pytest.mark.parametrize(
    ("dtype", "kind"), [("float16", "cpu"), ("bfloat16", "gpu"), ("float64", "gpu")]
)
def test_types_that_stay_the_librarys(dtype: str, kind: str) -> None:
    """TensorFlow 2.15 adds float16 up in float16; a GPU has tensor cores."""
    graph = graph_of(narrowed(tf.as_dtype(dtype)), *SHAPES)
    graph = on_gpu(graph) if kind == "gpu" else graph
    device = DEVICES["sm_90"] if kind == "gpu" else DEAR
    device = replace(device, gemm=DEAR.gemm)
    assert "MatMul" not in members(partition(graph, ["out"], kind=kind, multiplies=device))


def is_right(cut: Partition, *sizes: int, rtol: float = 2e-5) -> int:
    """Holds the regions against TensorFlow, their unknown sizes each of `sizes`; their launches."""
    return sum(_launches(cut, region, sizes, rtol) for region in cut.regions)


def _launches(cut: Partition, region: Region, sizes: tuple[int, ...], rtol: float) -> int:
    function = subgraph(cut, region)
    compiled = compile_regions({function.key: lower(function).module}, DEAR, BuildOptions())
    made = program(compiled, function.key, DEAR)
    libraries = [load_library(library.data) for library in compiled.libraries]
    kernels = (CpuKernel(libraries[step.library], step.kernel) for step in made.launches)
    ours = Runner(made, tuple(kernels))
    random = np.random.default_rng(0)
    for size in sizes or (1,):
        bindings = dict.fromkeys(function.symbols, size)
        given = [
            random.uniform(-1, 1, [evaluate(dim, bindings) for dim in argument.dims])
            for argument in function.arguments
        ]
        types = (tf.as_dtype(argument.dtype).as_numpy_dtype for argument in function.arguments)
        given = [value.astype(dtype) for value, dtype in zip(given, types, strict=True)]
        for mine, theirs in zip(ours.run(given, bindings), runner(function)(given), strict=True):
            mine, theirs = (np.asarray(one, np.float64) for one in (mine, theirs))
            np.testing.assert_allclose(mine, theirs, rtol=rtol, atol=rtol / 2)
    return len(made.launches)


@pytest.mark.parametrize(
    ("left", "right"),
    [((8, 24, 32), (32, 16)), ((4, 1, 8, 16), (1, 3, 16, 8)), ((5, 8, 16), (1, 16, 24)),
     ((6, 8, 16), (6, 16, 24)), ((8, 16), (5, 16, 24)), ((6, 1, 16), (16, 24))],
)  # fmt: skip
def test_batches_that_are_broadcast(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    """As MultiHeadAttention of Keras 3 has them; a row of each pair is a row of one product."""
    cut = partition(graph_of(activated(tf.matmul), left, right), ["out"], multiplies=DEAR)
    assert members(cut).count("BatchMatMulV2") == 1
    assert is_right(cut) == 1


@pytest.mark.parametrize("batch", [(None,), (None, 4)])
def test_a_batch_of_unknown_size(batch: tuple[int | None, ...]) -> None:
    """`fit` gives a batch with a remainder."""
    graph = graph_of(activated(tf.matmul), (*batch, 8, 16), (*batch, 16, 24))
    cut = partition(graph, ["out"], multiplies=DEAR)
    assert members(cut).count("BatchMatMulV2") == 1
    assert is_right(cut, 3, 40, 1) == 1


@pytest.mark.parametrize(
    ("left", "right", "taken"),
    [((None, 8, 16), (16, 24), True), ((None, 8, 16), (1, 16, 24), True),
     ((8, 16), (None, 16, 24), False), ((1, 8, 16), (None, 16, 24), False),
     ((None, 1, 8, 16), (1, None, 16, 24), False)],
)  # fmt: skip
def test_an_unknown_batch_is_broadcast_to_rows_and_not_to_columns(
    left: tuple[int | None, ...], right: tuple[int | None, ...], taken: bool
) -> None:
    """What would be columns stays the library's alone: taken, it would cost its region."""
    cut = partition(graph_of(activated(tf.matmul), left, right), ["out"], multiplies=DEAR)
    assert ("BatchMatMulV2" in members(cut)) == taken
    if taken:
        assert is_right(cut, 3, 40) == 1


def activated(multiply: Callable[..., Any]) -> Callable[..., Any]:
    return lambda left, right: tf.nn.softmax(multiply(tf.tanh(left), right))


def einsum(equation: str) -> Callable[..., Any]:
    """The operation itself: tf.einsum makes what is simpler of some equations."""
    return activated(lambda left, right: tf.raw_ops.Einsum(inputs=[left, right], equation=equation))


EINSUMS = {
    "abc,cd->abd": ((3, 8, 16), (16, 24)),
    "aecd,abcd->acbe": ((2, 5, 3, 8), (2, 7, 3, 8)),
    "acbe,aecd->abcd": ((2, 3, 7, 5), (2, 5, 3, 8)),
    "ab,cb->ca": ((9, 16), (12, 16)),
    "abc,abd->cd": ((4, 6, 8), (4, 6, 10)),
    "abd,bde->ade": ((6, 3, 8), (3, 8, 5)),
}


@pytest.mark.parametrize("equation", EINSUMS)
def test_an_einsum_of_two_operands_is_a_product(equation: str) -> None:
    graph = graph_of(einsum(equation), *EINSUMS[equation])
    cut = partition(graph, ["out"], multiplies=DEAR)
    assert members(cut).count("Einsum") == 1
    assert is_right(cut) == 1


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float32, tf.float64])
@pytest.mark.parametrize(
    ("equation", "left", "right"),
    [("ab,abc->abc", (5, 700), (5, 700, 4)), ("a,b->ba", (40,), (30,)),
     ("abc,bc->ab", (6, 9, 1200), (9, 1200)), ("bc,abc->ab", (9, 1200), (6, 9, 1200)),
     ("ab,cb->ac", (30, 1), (20, 1)), ("ab,->ab", (30, 20), ()), (",->", (), ())],
)  # fmt: skip
def test_an_einsum_of_one_row_or_column_or_without_a_sum_is_no_librarys(
    equation: str, left: tuple[int, ...], right: tuple[int, ...], dtype: Any
) -> None:
    """Of any type and length: it reads each element once."""

    def make(left: Any, right: Any) -> Any:
        given = [tf.cast(tf.tanh(value), dtype) for value in (left, right)]
        return tf.cast(tf.raw_ops.Einsum(inputs=given, equation=equation), tf.float32) * 0.5

    cut = partition(graph_of(make, left, right), ["out"])
    assert members(cut).count("Einsum") == 1
    is_right(cut, rtol=2**-6 if dtype == tf.bfloat16 else 2e-5)


def test_an_einsum_with_a_batch_of_unknown_size() -> None:
    graph = graph_of(einsum("aecd,abcd->acbe"), (None, 5, 3, 8), (None, 7, 3, 8))
    cut = partition(graph, ["out"], multiplies=DEAR)
    assert members(cut).count("Einsum") == 1
    assert is_right(cut, 3, 40, 1) == 1


@pytest.mark.parametrize(
    ("equation", "left", "right"),
    [("aab,bc->ac", (4, 4, 8), (8, 6)), ("abc,cd->ad", (4, 5, 8), (8, 6)),
     ("...b,bc->...c", (4, 8), (8, 6)), ("ab,bc->ac", (4, None), (None, 6)),
     ("ab,bc->ac", (4, 8), (8, None))],
)  # fmt: skip
def test_no_other_einsum_is(
    equation: str, left: tuple[int | None, ...], right: tuple[int | None, ...]
) -> None:
    """What is taken twice or summed alone, an ellipsis, and sums and rows of unknown length."""
    cut = partition(graph_of(einsum(equation), left, right), ["out"], multiplies=DEAR)
    assert "Einsum" not in members(cut)
    assert Reason.LIBRARY_CALL in {r.reason for r in cut.refusals if "Einsum" in r.subject}


def test_what_a_call_for_many_pairs_costs_is_its_own_price() -> None:
    for batched, taken in ((1.0, True), (0.0, False)):
        gemm = Gemm(Call(0.0, 2e9), Call(batched, 2e9), 1e9)
        graph = graph_of(activated(tf.matmul), (8, 24, 32), (32, 16))
        cut = partition(graph, ["out"], multiplies=replace(DEAR, gemm=gemm))
        assert ("BatchMatMulV2" in members(cut)) == taken


def test_a_gpus_layers_are_one_kernel_and_right() -> None:
    """By its record's own prices; on the interpreter."""
    device = DEVICES["sm_80"]
    graph = on_gpu(graph_of(layers, *SHAPES))
    cut = partition(graph, ["out"], kind="gpu", multiplies=device)
    (region,) = cut.regions
    assert [cut.graph.nodes[i].op for i in region.members].count("MatMul") == 2
    assert "MatMul" not in members(partition(graph, ["out"], kind="gpu"))
    function = subgraph(cut, region)
    state = run(PLANNED, ModuleState(lower(function).module, device, BuildOptions()))
    assert state.plan is not None and not state.plan.opaque
    [pattern], [kernel] = state.plan.patterns, state.kernels
    random = np.random.default_rng(0)
    given = [random.uniform(-1, 1, shape).astype(np.float32) for shape in SHAPES]
    inputs = buffers(kernel, [given[value["number"]] for value in pattern.inputs], {})
    [ours] = interpret(kernel, inputs, {}, random)
    [theirs] = runner(function)(given)
    np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("fused", "taken"), [(["BiasAdd"], True), (["BiasAdd", "Tanh"], False),
                         (["BiasAdd", "Relu"], False)],
)  # fmt: skip
def test_of_what_is_fused_on_a_gpu_only_a_bias_is_taken(fused: list[str], taken: bool) -> None:
    """core/kernels/matmul_op_fused.cc: the others are cuBLASLt's and cuDNN's own."""
    graph = on_gpu(product("_FusedMatMul", "xwb", map(str.encode, fused)))
    cut = partition(graph, ["out"], kind="gpu", multiplies=DEVICES["sm_80"])
    assert ("_FusedMatMul" in members(cut)) == taken


def test_they_are_library_calls_where_that_is_quicker() -> None:
    for multiplies in (None, replace(DEAR, gemm=Gemm(Call(0.0, 2e9), Call(0.0, 2e9), 1e9))):
        cut = partition(graph_of(layers, *SHAPES), ["out"], multiplies=multiplies)
        assert "MatMul" not in members(cut)
        reasons = [r.reason for r in cut.refusals if "MatMul" in r.subject]
        assert reasons == [Reason.LIBRARY_CALL] * 2


def test_a_product_of_unknown_rows_is_a_library_call() -> None:
    cut = partition(graph_of(layers, (None, 64), *SHAPES[1:]), ["out"], multiplies=DEAR)
    assert "MatMul" not in members(cut)


@pytest.mark.parametrize(
    ("fused", "taken"),
    [(["BiasAdd"], True), (["BiasAdd", "Tanh"], True), (["BiasAdd", "Relu"], False),
     (["Tanh"], False)],
)  # fmt: skip
def test_what_grappler_fused_into_a_product(fused: list[str], taken: bool) -> None:
    cut = partition(
        product("_FusedMatMul", "xwb", map(str.encode, fused)), ["out"], multiplies=DEAR
    )
    assert members(cut) == (["_FusedMatMul", "Tanh"] if taken else [])


@pytest.mark.parametrize(
    ("op", "inputs", "fused"),
    [("MatMul", "x", []), ("MatMul", "", []), ("_FusedMatMul", "xwb", []),
     ("_FusedMatMul", "xw", [b"BiasAdd"]), ("_FusedMatMul", "xwbb", [b"BiasAdd"]),
     ("_FusedMatMul", "xwb", [b"BiasAdd", b"\xff"])],
)  # fmt: skip
def test_a_damaged_product_is_in_no_region(op: str, inputs: str, fused: list[bytes]) -> None:
    cut = partition(product(op, inputs, fused), ["out"], multiplies=DEAR)
    assert op not in members(cut)
    assert Reason.LIBRARY_CALL in {refusal.reason for refusal in cut.refusals}


def on_gpu(graph: Any) -> Any:
    for node in graph.node:
        node.device = "/job:localhost/replica:0/task:0/device:GPU:0"
    return graph


def product(op: str, inputs: str, fused: Iterable[bytes]) -> Any:
    """A product of x, w and b, as damaged as the caller wants it, and its tanh."""
    definition = graph_pb2.GraphDef()
    for name, sizes in (("x", (16, 32)), ("w", (32, 24)), ("b", (24,))):
        node = definition.node.add(name=name, op="Placeholder")
        node.attr["dtype"].type = tf.float32.as_datatype_enum
        node.attr["_output_shapes"].list.shape.add().CopyFrom(tf.TensorShape(sizes).as_proto())
    for name, operation, read in (("product", op, [*inputs]), ("out", "Tanh", ["product"])):
        node = definition.node.add(name=name, op=operation, input=read)
        node.attr["T"].type = tf.float32.as_datatype_enum
        node.attr["_output_shapes"].list.shape.add().CopyFrom(tf.TensorShape((16, 24)).as_proto())
    node = definition.node[3]
    node.attr["num_args"].i = 1
    node.attr["fused_ops"].list.s.extend(fused)
    return definition
