"""Running a region by TensorFlow and XLA, and what cannot be."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from stitchcore.tensorflow import run_region
from stitchcore.tensorflow.graph import Edge
from stitchcore.tensorflow.lower import Argument, Subgraph


def function(operation: str) -> Subgraph:
    """One operation on one float32 vector of four."""
    graph = graph_pb2.GraphDef()
    node = graph.node.add(name="n0", op=operation, input=["a0"])
    node.attr["T"].type = tf.float32.as_datatype_enum
    return Subgraph(graph, (Argument(Edge(0, 0), False, "float32", (4,)),), (("n0", 0),), (), "k")


def constant() -> Subgraph:
    """A region without arguments."""
    graph = graph_pb2.GraphDef()
    node = graph.node.add(name="n0", op="Const")
    node.attr["dtype"].type = tf.float32.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto([1.0, 2.0]))
    return Subgraph(graph, (), (("n0", 0),), (), "k")


GIVEN = [np.array([0.0, 1.0, 2.0, 3.0], np.float32)]


def test_tensorflow_runs_a_region() -> None:
    run = run_region.runner(function("Tanh"))
    np.testing.assert_allclose(run(GIVEN)[0], np.tanh(GIVEN[0]), rtol=1e-6)


def test_a_bfloat16_scalar_is_an_array() -> None:
    result = run_region._array(tf.constant(1.5, tf.bfloat16))
    assert result.shape == () and result.dtype == tf.bfloat16.as_numpy_dtype and result == 1.5


def test_an_empty_call_takes_any_arguments() -> None:
    assert len(run_region.empty(function("Tanh"))(GIVEN)) == 1
    assert run_region.empty(constant())([]) == []
    np.testing.assert_array_equal(run_region.runner(constant())([])[0], [1.0, 2.0])
