"""Shapes that a loop's stacks lose are found again, and only where the graph proves them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")

import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from stitchcore.tensorflow.shape_inference import infer_shapes
from tests.tensorflow.graphs import pruned

Shape = tuple[int, ...] | None


def loop_gradient() -> Any:
    """The gradient of a recurrence, control flow lowered to frames, as a step's graph has it."""

    @tf.function(input_signature=[tf.TensorSpec([4, 8]), tf.TensorSpec([8, 8])], autograph=False)
    def step(x: Any, w: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(w)
            _, last = tf.while_loop(
                lambda i, h: i < 5, lambda i, h: (i + 1, tf.tanh(tf.matmul(h, w)) * h), [0, x]
            )
            loss = tf.reduce_sum(last)
        return tape.gradient(loss, w)

    constant = convert_variables_to_constants_v2(
        step.get_concrete_function(), lower_control_flow=True
    )
    return constant.graph


def shapes(graph: Any) -> dict[tuple[str, int], Shape]:
    return {
        (node.name, port): None
        if shape.unknown_rank or any(dim.size < 0 for dim in shape.dim)
        else tuple(dim.size for dim in shape.dim)
        for node in graph.node
        for port, shape in enumerate(node.attr["_output_shapes"].list.shape)
    }


def test_a_popped_tensor_has_the_shape_of_what_was_pushed() -> None:
    graph = loop_gradient().as_graph_def(add_shapes=True)
    pops = [node.name for node in graph.node if node.op == "TensorListPopBack"]
    assert pops, [node.op for node in graph.node]
    before, after = shapes(graph), shapes(infer_shapes(graph))
    inferred = [name for name in pops if before[name, 1] is None and after[name, 1] is not None]
    assert inferred
    assert {after[name, 1] for name in inferred} <= {(4, 8), (8, 8), ()}
    assert all(after[key] == shape for key, shape in before.items() if shape is not None)
    assert sum(s is None for s in after.values()) < sum(s is None for s in before.values())


def test_a_push_of_unknown_shape_proves_nothing() -> None:
    graph = loop_gradient().as_graph_def(add_shapes=True)
    pushed = {node.input[1].split(":")[0] for node in graph.node if node.op == "TensorListPushBack"}
    for node in graph.node:
        if node.name in pushed or node.op in ("Placeholder", "Enter", "Merge", "Switch"):
            for shape in node.attr["_output_shapes"].list.shape:
                del shape.dim[:]
                shape.unknown_rank = True
    after = shapes(infer_shapes(graph))
    pops = [node.name for node in graph.node if node.op == "TensorListPopBack"]
    assert all(after[name, 1] is None for name in pops)


def test_a_variable_whose_shape_is_known_gives_a_constant() -> None:
    graph = tf.Graph()
    with graph.as_default():
        variable = tf.Variable(np.zeros((3, 5), np.float32))
        size = tf.raw_ops.VariableShape(input=variable.handle, out_type=tf.int64, name="size")
        tf.fill(size, 1.0, name="ones")
    definition = pruned(graph, ["ones"])
    for node in definition.node:
        if node.name == "ones":
            for dim in node.attr["_output_shapes"].list.shape[0].dim:
                dim.size = -1
    inferred = {node.name: node for node in infer_shapes(definition).node}
    assert inferred["size"].op == "Const"
    assert list(inferred["size"].input) == ["^Variable"]  # which may be in a loop
    assert list(tf.make_ndarray(inferred["size"].attr["value"].tensor)) == [3, 5]
    assert shapes(infer_shapes(definition))["ones", 0] == (3, 5)
    assert {node.op for node in definition.node} >= {"VariableShape"}, "the given graph stays"


def test_no_gradient_reads_the_workspace_of_a_batch_normalization() -> None:
    """WORKSPACES calls it empty: a gradient that stays TensorFlow's must not miss its contents."""
    random = np.random.default_rng(1)
    x, slope = (tf.constant(random.normal(size=(4, 8, 8, 8)), tf.float32) for _ in range(2))
    ones = tf.ones([8])

    @tf.function
    def gradients(x: Any, slope: Any) -> list[Any]:
        normalized = tf.raw_ops.FusedBatchNormV3(
            x=x, scale=ones, offset=ones, mean=ones, variance=ones, is_training=True, epsilon=1e-3
        )
        return [
            *(
                tf.raw_ops.FusedBatchNormGradV3(
                    y_backprop=slope, x=x, scale=ones, reserve_space_1=normalized[3],
                    reserve_space_2=normalized[4], reserve_space_3=workspace, epsilon=1e-3,
                ).x_backprop
                for workspace in (normalized[5], tf.zeros([0]))
            ),
            tf.nn.relu(normalized[0]),  # Grappler fuses it: only then is there a workspace
        ]  # fmt: skip

    own, without, _ = gradients(x, slope)
    assert np.ptp(own.numpy()) > 0
    assert np.array_equal(own.numpy(), without.numpy())
