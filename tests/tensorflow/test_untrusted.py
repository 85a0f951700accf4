"""Graphs of strangers: what they may cost, and that none of their operations runs unasked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tensorflow", reason="needs TensorFlow: pip install 'stitchcore[tensorflow]'")

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from stitchcore.errors import Reason, Refused
from stitchcore.tensorflow.lower import subgraph
from stitchcore.tensorflow.partition import partition
from stitchcore.tensorflow.request import STRANGERS, GraphLimits, read_graph
from stitchcore.tensorflow.shape_function_allowlist import is_side_effect_free

SMALL = GraphLimits(
    total_bytes=100_000,
    nodes=50,
    functions=4,
    inputs=8,
    attributes=8,
    attribute_bytes=1000,
    constant_bytes=4096,
    nesting=3,
    elements=10_000,
)


def reading(path: Path) -> Any:
    """A graph whose shape argument comes from a file of the worker's machine."""
    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, [None, 4], name="x")
        shape = tf.io.decode_raw(tf.io.read_file(str(path)), tf.int32)
        tf.nn.relu(tf.reshape(x, shape) * 2.0 + 1.0, name="result")
    return graph.as_graph_def(add_shapes=True)


def test_no_file_is_read_where_shapes_are_inferred(tmp_path: Path) -> None:
    """TensorFlow's inference runs what feeds a shape; it must not meet ReadFile."""
    secret = tmp_path / "secret"
    secret.write_bytes(bytes([4, 0, 0, 0, 5, 0, 0, 0]))
    graph = reading(secret)
    shape = graph.node[[n.name for n in graph.node].index("Reshape")].attr["_output_shapes"]
    assert [d.size for d in shape.list.shape[0].dim] == [4, 5], "this TensorFlow does run it"
    for node in graph.node:
        shapes = node.attr["_output_shapes"].list.shape
        if node.op in ("Reshape", "Mul", "AddV2", "Relu") and len(shapes[0].dim) == 2:
            for dim in shapes[0].dim:
                dim.size = -1
    cut = partition(graph, ["result"])
    resized = cut.graph.nodes[cut.graph.number["Reshape"]].attr["_output_shapes"]
    assert [d.size for d in resized.list.shape[0].dim] != [4, 5]


@pytest.mark.parametrize(
    "operation",
    [
        "ReadFile",
        "WriteFile",
        "MatchingFiles",
        "ImmutableConst",
        "DebugIdentity",
        "PyFunc",
        "NoSuch",
    ],
)
def test_operations_that_reach_outside_are_not_inert(operation: str) -> None:
    assert not is_side_effect_free(operation)


@pytest.mark.parametrize("operation", ["Add", "Reshape", "MatMul", "Conv2D", "Einsum", "Enter"])
def test_operations_that_compute_are(operation: str) -> None:
    assert is_side_effect_free(operation)


def test_a_region_with_an_operation_of_no_list_does_not_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from stitchcore.tensorflow import lower

    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, [8, 4], name="x")
        tf.nn.relu(x * 2.0 + 1.0, name="result")
    cut = partition(graph.as_graph_def(add_shapes=True), ["result"])
    assert subgraph(cut, cut.regions[0]).graph.node
    monkeypatch.setattr(lower, "RUNNABLE", lower.RUNNABLE - {"Relu"})
    with pytest.raises(Refused) as caught:
        subgraph(cut, cut.regions[0])
    assert caught.value.refusal.reason is Reason.NOT_ALLOWED_OPERATION


def nodes(count: int) -> Any:
    graph = graph_pb2.GraphDef()
    for number in range(count):
        graph.node.add(name=f"n{number}", op="NoOp")
    return graph


def with_inputs() -> Any:
    graph = nodes(2)
    graph.node[1].input.extend(["n0"] * 9)
    return graph


def with_attributes() -> Any:
    graph = nodes(1)
    for number in range(9):
        graph.node[0].attr[f"a{number}"].i = 1
    return graph


def with_long_attribute() -> Any:
    graph = nodes(1)
    graph.node[0].attr["a"].s = bytes(2000)
    return graph


def with_constant(size: int) -> Any:
    graph = nodes(1)
    tensor = graph.node[0].attr["value"].tensor
    tensor.dtype = 1
    tensor.tensor_shape.dim.add(size=size)
    tensor.float_val.append(1.0)
    return graph


def with_shape(size: int) -> Any:
    graph = nodes(1)
    shape = graph.node[0].attr["_output_shapes"].list.shape.add()
    for _ in range(3):
        shape.dim.add(size=size)
    return graph


def with_functions(calls: list[tuple[str, str]]) -> Any:
    graph = nodes(1)
    for name in sorted({one for pair in calls for one in pair}):
        function = graph.library.function.add()
        function.signature.name = name
        for caller, called in calls:
            if caller == name:
                node = function.node_def.add(name=f"to_{called}", op="PartitionedCall")
                node.attr["f"].func.name = called
    return graph


TOO_MUCH = {
    "nodes": nodes(51),
    "inputs": with_inputs(),
    "attributes": with_attributes(),
    "attribute": with_long_attribute(),
    "constant": with_constant(2**40),
    "shape": with_shape(2**20),
    "nesting": with_functions([("a", "b"), ("b", "c"), ("c", "d")]),
    "circle": with_functions([("a", "b"), ("b", "a")]),
    "functions": with_functions([("a", "b"), ("c", "d"), ("a", "e")]),
}


@pytest.mark.parametrize("case", TOO_MUCH)
def test_graphs_beyond_the_limits_are_refused(case: str) -> None:
    data = TOO_MUCH[case].SerializeToString()
    assert len(data) < 3000, "what is cheap to send"
    with pytest.raises(Refused) as caught:
        read_graph(data, SMALL)
    assert caught.value.refusal.reason is Reason.GRAPH_TOO_LARGE


def test_graphs_within_the_limits_are_read() -> None:
    for graph in (nodes(50), with_constant(500), with_functions([("a", "b"), ("b", "c")])):
        assert read_graph(graph.SerializeToString(), SMALL) == graph


def test_nodes_are_counted_before_they_are_parsed() -> None:
    with pytest.raises(Refused) as caught:
        read_graph(b"\x0a\x00" * 10_000_000, STRANGERS)
    assert caught.value.refusal.reason is Reason.GRAPH_TOO_LARGE


@pytest.mark.parametrize("data", [b"\x0a", b"\x0a\xff", b"\x0f", b"\xff" * 20, b"\x0a\x05abc"])
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(Refused) as caught:
        read_graph(data)
    assert caught.value.refusal.reason is Reason.PARSE_ERROR


def test_numbers_of_grappler_are_not_taken_for_symbols_of_ours() -> None:
    """In a graph of a thousand unknown sizes they reach the range of our own."""
    from stitchcore.tensorflow.symbolic_sizes import SYMBOLIC, resolve

    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, [None, 4], name="x")
        tf.raw_ops.Where(condition=tf.nn.relu(x, name="y"), name="z")
    request = graph.as_graph_def(add_shapes=True)
    for node in request.node:
        if node.op == "Where":
            node.attr["_output_shapes"].list.shape[0].dim[0].size = SYMBOLIC
    sizes = resolve(request)
    first = {
        node.op: sizes.dim(node.attr["_output_shapes"].list.shape[0].dim[0].size)
        for node in sizes.graph.node
    }
    assert first["Where"] != first["Relu"] == first["Placeholder"] is not None
    bare = resolve(nodes(1))
    assert bare.dim(SYMBOLIC) is None
