"""Arrays and stacks of a TensorFlow 1 session's loops: sizes are followed through them, and only
where all that is put in is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from tests.tensorflow.test_loop_shapes import dims


@pytest.fixture
def session_graph(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any], Any]], Any]:
    """The graph of what is made of x[time, batch, 8], its loops as TensorFlow 1 makes them."""
    monkeypatch.setattr(control_flow_util, "ENABLE_CONTROL_FLOW_V2", False)

    def made(build: Callable[[Any], Any]) -> Any:
        with tf.Graph().as_default() as graph:
            build(tf.compat.v1.placeholder(tf.float32, (None, None, 8)))
        return graph.as_graph_def(add_shapes=True)

    return made


def recurrence(x: Any) -> Any:
    """The gradient of a stack of states by x."""
    time = tf.shape(x)[0]
    inputs = tf.TensorArray(tf.float32, time, element_shape=(None, 8)).unstack(x)

    def step(i: Any, h: Any, states: Any) -> Any:
        h = tf.tanh(inputs.read(i) * h)
        return i + 1, h, states.write(i, h)

    zero = tf.ones([tf.shape(x)[1], 8])
    states = tf.TensorArray(tf.float32, time)
    _, _, states = tf.compat.v1.while_loop(lambda i, *_: i < time, step, (0, zero, states))
    return tf.gradients(tf.reduce_sum(tf.sin(states.stack())), x)


def test_a_recurrence_is_followed_there_and_back(session_graph: Callable[..., Any]) -> None:
    graph = session_graph(recurrence)
    assert not any(node.op.startswith("TensorList") for node in graph.node)
    (entering,) = dims(graph, "Placeholder")
    assert entering is not None and None not in entering
    assert set(dims(graph, "Tanh")) == set(dims(graph, "TanhGrad")) == {entering[1:]}
    assert set(dims(graph, "TensorArrayReadV3")) == {entering[1:]}
    assert dims(graph, "TensorArrayGatherV3") == [entering, entering]  # states, and x's gradient
    popped = dims(graph, "StackPopV2")
    assert popped.count(entering[1:]) >= 2 and None not in popped


def test_an_array_that_is_filled_in_another_way_tells_nothing(
    session_graph: Callable[..., Any],
) -> None:
    """The parts that a tensor is split into have sizes that data decides."""

    def build(x: Any) -> Any:
        array = tf.TensorArray(tf.float32, 3, infer_shape=False).write(2, tf.sin(x[0]))
        array = array.split(x[1], tf.compat.v1.placeholder(tf.int32, (2,)))
        return tf.exp(array.read(0))

    graph = session_graph(build)
    assert any(node.op == "TensorArraySplitV3" for node in graph.node)
    assert dims(graph, "Exp") == [None]
    (written,) = dims(graph, "Sin")
    assert written is not None and None not in written


def test_elements_of_two_sizes_have_none(session_graph: Callable[..., Any]) -> None:
    def build(x: Any) -> Any:
        array = tf.TensorArray(tf.float32, 2, infer_shape=False)
        array = array.write(0, tf.sin(x[0])).write(1, tf.sin(x[:, 0]))
        return tf.exp(array.read(0))

    graph = session_graph(build)
    assert dims(graph, "Exp") in ([None], [(None, 8)])
    assert None not in dims(graph, "Sin")
