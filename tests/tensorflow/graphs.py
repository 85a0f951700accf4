"""Graphs to partition: random ones as NodeDefs, and a real training step in graph mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

ROWS, INPUTS, WIDTH, CLASSES = 16, 24, 32, 10


@dataclass(frozen=True)
class Step:
    """A training step: its GraphDef with shapes, the op that runs it, and the fetched loss."""

    graph: Any
    definition: Any
    train: str
    loss: str
    initializer: str


def random_graph(choices: Sequence[tuple[int, int, int, int]]) -> Any:
    """A graph with one node per choice: (kind, first input, second input, control source).

    Inputs are chosen among earlier nodes. Kinds: 0-3 elementwise, 4 a library call, 5 a reduction
    and broadcast, 6 an operation that may not be in a region.
    """
    graph = graph_pb2.GraphDef()
    _shaped(graph.node.add(name="x", op="Placeholder"), dtype=tf.float32)
    names = ["x"]
    kinds = ("AddV2", "Mul", "Tanh", "Sub", "MatMul", "Softmax", "CheckNumerics")
    for number, (kind, first, second, control) in enumerate(choices):
        operation = kinds[kind % len(kinds)]
        node = graph.node.add(name=f"n{number}", op=operation)
        node.input.append(names[first % len(names)])
        if operation in ("AddV2", "Mul", "Sub", "MatMul"):
            node.input.append(names[second % len(names)])
        if operation == "CheckNumerics":
            node.attr["message"].s = b"not finite"
        if control % 3 == 0:
            node.input.append(f"^{names[control % len(names)]}")
        node.attr["T"].type = tf.float32.as_datatype_enum
        _shaped(node)
        names.append(node.name)
    return graph


def _shaped(node: Any, dtype: tf.DType | None = None) -> None:
    if dtype is not None:
        node.attr["dtype"].type = dtype.as_datatype_enum
    shape = node.attr["_output_shapes"].list.shape.add()
    for _ in range(2):
        shape.dim.add(size=128)


def pruned(graph: Any, wanted: Sequence[str]) -> Any:
    """What Grappler sees of a session's graph: with shapes, and only what the fetches need."""
    definition = graph.as_graph_def(add_shapes=True)
    return tf.compat.v1.graph_util.extract_sub_graph(definition, list(wanted))


def training_step(layers: int = 2) -> Step:
    """LayerNorm, GELU and dense layers, trained with Adam written out (slots updated by assign_add
    in the order that tf.function's automatic control dependencies would give)."""
    graph = tf.Graph()
    with graph.as_default():
        generator = np.random.default_rng(3)

        def weight(*shape: int) -> tf.Variable:
            return tf.Variable(generator.normal(0, 0.2, shape).astype(np.float32))

        x = tf.constant(generator.normal(size=(ROWS, INPUTS)).astype(np.float32))
        target = tf.constant(generator.normal(size=(ROWS, CLASSES)).astype(np.float32))
        variables: list[tf.Variable] = []
        h = x
        for k in range(layers):
            layer = (weight(INPUTS if k == 0 else WIDTH, WIDTH), weight(WIDTH), weight(WIDTH))
            variables += layer
            h = tf.matmul(h, layer[0])
            mean, variance = tf.nn.moments(h, [1], keepdims=True)
            h = (h - mean) * tf.math.rsqrt(variance + 1e-5) * (1.0 + layer[1]) + layer[2]
            h = 0.5 * h * tf.math.erfc(-h * 0.7071)
        last = weight(WIDTH, CLASSES)
        loss = tf.reduce_mean(tf.math.squared_difference(tf.matmul(h, last), target))
        gradients = tf.gradients(loss, [*variables, last])
        updates = [
            op for v, g in zip([*variables, last], gradients, strict=True) for op in _adam(v, g)
        ]
        train = tf.group(*updates, name="train")
        initializer = tf.compat.v1.global_variables_initializer()
    definition = pruned(graph, [train.name, loss.op.name])
    return Step(graph, definition, train.name, loss.name, initializer.name)


def _adam(variable: tf.Variable, gradient: tf.Tensor) -> list[tf.Operation]:
    """The update as Keras writes it: read, assign_add, read again after the write."""
    first = tf.Variable(np.zeros(variable.shape, np.float32))
    second = tf.Variable(np.full(variable.shape, 0.01, np.float32))
    moved = first.assign_add((gradient - first.read_value()) * 0.1, read_value=False)
    squared = tf.square(gradient) - second.read_value()
    scaled = second.assign_add(squared * 0.001, read_value=False)
    with tf.control_dependencies([moved]):
        momentum = first.read_value()
    with tf.control_dependencies([scaled]):
        power = second.read_value()
    change = momentum * 0.01 / (tf.sqrt(power) + 1e-7)
    with tf.control_dependencies([gradient]):
        changed = variable.assign_sub(change, read_value=False)
    return [moved, scaled, changed]
