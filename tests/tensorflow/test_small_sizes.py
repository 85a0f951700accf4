"""Values that are something else where a size is 1 or 0: kernels are left to their fallbacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")

import tensorflow as tf

from stitchcore.tensorflow.partition import partition
from tests.tensorflow.test_fallback import KEPT, failures, same, stitched
from tests.tensorflow.test_size_values import number

Made = Callable[[Any, Any], Any]

KINDS: Mapping[str, tuple[Made, set[int]]] = {
    "mean of what there is": (
        lambda x, n: tf.reduce_sum(x * x) / number(tf.maximum(n, 1)),
        {0},
    ),
    "deviation of a sample": (
        lambda x, n: tf.math.reduce_std(x, 0) * number(n) / number(tf.maximum(n - 1, 1)),
        {0, 1},
    ),
    "mean": (lambda x, n: tf.reduce_sum(x, 0) / number(n), set()),
    "gradient of a mean": (
        lambda x, n: tf.gradients(tf.reduce_mean(tf.tanh(x), 0), x)[0],
        set(),
    ),
    "nothing of nothing": (
        lambda x, n: tf.where(n > 0, tf.reduce_sum(tf.cos(x)) + 3.0, 7.0),
        set(),
    ),
    "rows but two": (lambda x, n: tf.reduce_sum(x, 0) / number(tf.maximum(n - 2, 1)), set()),
}
"""Of x with n rows, and at which n a kernel would be wrong."""


def step(made: Made) -> Any:
    graph = tf.Graph()
    with graph.as_default():
        variable = tf.Variable(tf.ones([64]), name="v", shape=[64])
        x = tf.compat.v1.placeholder(tf.float32, [None, 64], "x")
        done = tf.sin(0.02 * tf.tanh(x * variable)) + tf.tanh(0.1 * x) * 0.5
        tf.identity(done, name="kept")
        tf.identity(made(done, tf.shape(x)[0]), name="result")
        change = 1e-3 * tf.reduce_sum(tf.cos(done), 0)
        tf.raw_ops.AssignSubVariableOp(resource=variable.handle, value=change, name="update")
    definition = graph.as_graph_def(add_shapes=True)
    return tf.compat.v1.graph_util.extract_sub_graph(definition, list(KEPT))


@pytest.mark.parametrize("kind", KINDS)
def test_small_sizes_are_right_and_others_take_the_kernel(kind: str) -> None:
    """The shadow call would find most of these: sizes are small after it, too."""
    made, wrong = KINDS[kind]
    graph = step(made)
    program = stitched(graph)
    before = failures(program)
    same(program.graph, graph, [size for size in (40, 5, 3, 2, 1, 0) if size not in wrong])
    assert failures(program) == before
    for size in sorted(wrong):
        same(program.graph, graph, [size] * 3)
    assert bool(failures(program) - before) == bool(wrong)


@pytest.mark.parametrize(
    ("made", "expected"),
    [(tf.reduce_sum, {"1-1*s0", "1-1*s1", "3-1*s0-1*s1"}), (tf.identity, {"3-1*s0-1*s1"})],
)
def test_what_all_of_several_sizes_decide_is_told_of_all_of_them(
    made: Callable[[Any], Any], expected: set[str]
) -> None:
    """Where nothing is made of it, as of no rows, it does not matter."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, None, 8], "x")
        n, m = tf.shape(x)[0], tf.shape(x)[1]
        few = number(tf.maximum(n * m - 1, 1))
        tf.identity(made(tf.tanh(x)) / few, name="kept")
    cut = partition(graph.as_graph_def(add_shapes=True), ("kept",))
    told = {str(dim) for polynomials in cut.otherwise.values() for dim in polynomials}
    assert told == expected
