"""Unknown sizes are followed through loops and what they store, and only where that holds in every
pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")

import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from stitchcore.hlo.ir.dim import Dim
from stitchcore.tensorflow import loop_shapes, symbolic_sizes

Dims = tuple[Dim | None, ...] | None


def lowered(build: Callable[..., Any], *sizes: tuple[int | None, ...]) -> Any:
    """The graph of `build`, its loops as frames."""
    specs = [tf.TensorSpec(shape) for shape in sizes]
    traced = tf.function(build, input_signature=specs, autograph=False).get_concrete_function()
    constant = convert_variables_to_constants_v2(traced, lower_control_flow=True)
    return constant.graph.as_graph_def(add_shapes=True)


def dims(graph: Any, operation: str, port: int = 0) -> list[Dims]:
    """Sizes of the outputs of every node of an operation, as they are resolved."""
    sizes = symbolic_sizes.resolve(graph)
    shapes = (
        node.attr["_output_shapes"].list.shape[port]
        for node in sizes.graph.node
        if node.op == operation
    )
    return [
        None if shape.unknown_rank else tuple(sizes.dim(dim.size) for dim in shape.dim)
        for shape in shapes
    ]


def recurrence(x: Any, w: Any) -> Any:
    """Of x[time, batch, 8]: the gradient of a stack of states by w."""
    with tf.GradientTape() as tape:
        tape.watch(w)
        time = tf.shape(x)[0]
        states = tf.TensorArray(tf.float32, time)

        def step(i: Any, h: Any, states: Any) -> Any:
            h = tf.tanh(x[i] + tf.matmul(h, w)) * h
            return i + 1, h, states.write(i, h)

        zero = tf.ones([tf.shape(x)[1], 8])
        _, _, states = tf.while_loop(lambda i, *_: i < time, step, (0, zero, states))
        loss = tf.reduce_sum(tf.sin(states.stack()))
    return tape.gradient(loss, w)


@pytest.mark.slow
def test_a_recurrence_of_unknown_batch_and_time_is_followed_there_and_back() -> None:
    graph = lowered(recurrence, (None, None, 8), (8, 8))
    (input_dims,) = (d for d in dims(graph, "Placeholder") if d is not None and len(d) == 3)
    (stacked,) = dims(graph, "TensorListStack")
    assert stacked == input_dims and None not in input_dims
    assert set(dims(graph, "TanhGrad")) == {input_dims[1:]}
    popped = dims(graph, "TensorListPopBack", 1)
    assert popped.count(input_dims[1:]) >= 2 and None not in popped


def test_a_variable_that_grows_has_no_size() -> None:
    def build(x: Any) -> Any:
        shapes = (tf.TensorShape([]), tf.TensorShape([None, 8]))
        grown = tf.while_loop(
            lambda i, _: i < 3,
            lambda i, h: (i + 1, tf.sin(tf.concat([h, h], 0))),
            (0, x),
            shape_invariants=shapes,
        )
        return tf.exp(grown[1])

    graph = lowered(build, (None, 8))
    for (sizes,) in (dims(graph, "Sin"), dims(graph, "Exp")):
        assert sizes in (None, (None, 8))


def counted(x: Any) -> Any:
    """A vector of as many numbers as passes are over."""

    def step(i: Any, total: Any) -> Any:
        return i + 1, total + tf.reduce_sum(tf.sin(tf.fill([i + 2], total)))

    return tf.while_loop(lambda i, _: i < 3, step, (0, tf.reduce_sum(x)))[1]


def begins_there(build: Callable[..., Any]) -> bool:
    """Whether the vectors that are computed are of a size that no other tensor has."""
    ((size,),) = (d for d in dims(lowered(build, (None, 8)), "Sin") if d is not None)
    entering = {d[:1] for d in dims(lowered(build, (None, 8)), "Placeholder") if d is not None}
    return not isinstance(size, int) and (size,) not in entering


def test_a_size_of_another_value_in_each_pass_begins_in_the_loop() -> None:
    assert begins_there(counted)


def test_else_the_value_that_enters_the_loop_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_shapes._Writer, "variable", loop_shapes._Writer.same)
    assert dims(lowered(counted, (None, 8)), "Sin") == [(2,)]


def picked(x: Any) -> Any:
    """Vectors of 1 and of 2 numbers, by a table's rows."""
    table = tf.TensorArray(tf.int32, 2).unstack([1, 2])
    body = lambda i, t: (i + 1, t + tf.reduce_sum(tf.sin(tf.fill([table.read(i)], t))))  # noqa: E731
    return tf.while_loop(lambda i, _: i < 2, body, (0, tf.reduce_sum(x)))[1]


def test_rows_of_a_table_are_not_its_first() -> None:
    assert begins_there(picked)
