"""What Grappler composes of several operations of one value is each of them, in turn."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")

import tensorflow as tf

from stitchcore.hlo.evaluator.evaluate import evaluate
from stitchcore.tensorflow.lower import lower, subgraph
from stitchcore.tensorflow.partition import partition
from stitchcore.tensorflow.run_region import runner


@pytest.mark.parametrize("names", [["Round", "Abs"], ["Neg", "Rint"], ["Elu", "Sigmoid"]])
def test_a_composition_is_its_parts(names: list[str]) -> None:
    """Halves above all: XLA's own composition rounds them away from zero."""
    with tf.Graph().as_default() as made:
        x = tf.compat.v1.placeholder(tf.float32, [40], "x")
        tf.add(tf.abs(x, name="parts"), 1.0, name="result")
    graph = made.as_graph_def(add_shapes=True)
    node = next(node for node in graph.node if node.name == "parts")
    node.op = "_UnaryOpsComposition"
    node.attr["op_names"].list.s.extend(name.encode() for name in names)
    cut = partition(graph, ("result",))
    function = subgraph(cut, cut.regions[0])
    values = np.arange(-20, 20, dtype=np.float32) / 4
    [wanted] = runner(function)([values])
    [found] = evaluate(lower(function).module, [values], {}, "float64")
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
