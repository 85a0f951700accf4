"""Functions of implementation selection become part of the step that calls them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow", reason="pip install 'stitchcore[tensorflow]' tensorflow-cpu")

from tensorflow.python.eager import context as eager  # noqa: E402

from stitchcore.inject import call_interception, inlining  # noqa: E402

GROUP = {"api_implements": "cells", "api_preferred_device": "CPU"}


def kept_apart(function: Any) -> Any:
    return tf.function(function, autograph=False, experimental_attributes=GROUP)


def recurrence(x: Any, w: Any) -> Any:
    def body(i: Any, state: Any) -> Any:
        return i + 1, tf.tanh(tf.matmul(state, w) + x)

    return tf.while_loop(lambda i, state: i < 5, body, (0, tf.zeros_like(x)))[1]


@pytest.fixture(scope="module")
def step() -> Any:
    """One that calls a loop which is kept apart, from a function and from a branch; its gradient's
    function is kept apart, too."""
    cell = kept_apart(recurrence)
    weights = tf.Variable(np.random.default_rng(1).normal(size=(8, 8)).astype("f") / 4)

    @tf.function
    def layer(x: Any) -> Any:
        return cell(x, weights)

    @tf.function
    def train(x: Any) -> Any:
        with tf.GradientTape() as tape:
            once = layer(x)
            again = tf.cond(tf.reduce_sum(x) > 0, lambda: layer(x * 2), lambda: x)
            loss = tf.reduce_mean((once + again) ** 2)
        gradient = tape.gradient(loss, weights)
        weights.assign_sub(0.1 * gradient)
        return loss, gradient

    return train, weights


def called(name: bytes, inputs: list[Any], outputs: int) -> tuple[list[Any], set[str]]:
    """What a call gives, and the types of operations that it runs, functions' bodies apart."""
    context = eager.context()
    context.enable_run_metadata()
    try:
        given = context.call_function(name, inputs, outputs)
        graphs = context.export_run_metadata().function_graphs
    finally:
        context.disable_run_metadata()
    ran = {
        node.op
        for graph in graphs
        for node in graph.post_optimization_graph.node
        if len(graph.post_optimization_graph.node) > 20
    }
    return given, ran


def test_a_step_gives_the_same_as_one_graph(step: Any) -> None:
    train, weights = step
    x = tf.constant(np.random.default_rng(2).normal(size=(4, 8)).astype("f") + 1)
    function = train.get_concrete_function(x)
    inputs = [x, *function.captured_inputs]
    outputs = len(function.outputs)
    start = weights.numpy()
    original, ran = called(function.name, inputs, outputs)
    after = weights.numpy()
    assert "PartitionedCall" in ran or "StatefulPartitionedCall" in ran
    copy = inlining.Copies().of(eager.context(), function.name)
    assert copy == function.name + inlining.SUFFIX.encode()
    weights.assign(start)
    same, ran = called(copy, inputs, outputs)
    assert not any(operation.endswith("PartitionedCall") for operation in ran)
    assert {"Exit", "NextIteration"} <= ran
    for one, other in zip(original, same, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(after, weights.numpy())
    assert not np.array_equal(start, after)


def test_what_is_inlined_anyway_is_called_as_it_is() -> None:
    plain = tf.function(recurrence, autograph=False)

    @tf.function
    def step(x: Any) -> Any:
        return plain(x, tf.eye(8))

    function = step.get_concrete_function(tf.TensorSpec([4, 8]))
    names = len(eager.context().list_function_names())
    copies = inlining.Copies()
    assert copies.of(eager.context(), function.name) is None
    assert len(eager.context().list_function_names()) == names
    alone = kept_apart(recurrence).get_concrete_function(*[tf.TensorSpec([8, 8])] * 2)
    assert copies.of(eager.context(), alone.name) is None, "Python calls it: it is a step"
    cell = kept_apart(recurrence)
    compiled = tf.function(lambda x: cell(x, tf.eye(8)), autograph=False, jit_compile=True)
    under_xla = compiled.get_concrete_function(tf.TensorSpec([4, 8]))
    assert copies.of(eager.context(), under_xla.name) is None, "XLA inlines what it compiles"


class Context:
    """TensorFlow's, with so many GPUs; counts what is registered."""

    def __init__(self, gpus: int = 0) -> None:
        self.gpus, self.registered = gpus, 0

    def num_gpus(self) -> int:
        return self.gpus

    def add_function_def(self, definition: Any) -> None:
        self.registered += 1
        eager.context().add_function_def(definition)

    def __getattr__(self, name: str) -> Any:
        return getattr(eager.context(), name)


def steps(count: int) -> list[Any]:
    """Functions that call one that is kept apart; they are gone with their Python objects."""
    cell = kept_apart(recurrence)
    made = [tf.function(lambda x: cell(x, tf.eye(8)), autograph=False) for _ in range(count)]
    return [step.get_concrete_function(tf.TensorSpec([4, 8])) for step in made]


def test_where_there_is_a_gpu_the_choice_is_left_to_tensorflow() -> None:
    [step] = steps(1)
    context = Context(gpus=1)
    assert inlining.Copies().of(context, step.name) is None
    assert not context.registered
    assert inlining.Copies().of(Context(), step.name) is not None


def test_a_step_is_copied_once_and_not_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inlining, "MOST", 2)
    copies, context = inlining.Copies(), Context()
    made_of = steps(3)
    first, second, third = (step.name for step in made_of)
    made = copies.of(context, first)
    registered = context.registered
    assert registered == 2
    assert copies.of(context, first) == made and context.registered == registered
    assert copies.of(context, second) is not None
    assert copies.of(context, third) is None
    assert copies.of(context, first) == made
    copies.drop(first)
    assert copies.of(context, first) is None


class Chooser:
    """Leaves every call as it is."""

    unconfirmed = timed = followed = frozenset()

    def choose(self, caller: Any) -> tuple[int, Any]:
        return 0, caller

    def recover(self, caller: Any, mark: int, lifted: bool) -> bool:
        return False

    def after_first_call(self, context: Any, name: bytes, inputs: Any) -> None: ...


@pytest.mark.parametrize(
    ("inlines", "shown", "expected"),
    [
        (True, None, ["copy"]),
        (False, None, ["original"]),
        (True, 0, ["copy", "original"]),  # TensorFlow has not taken it
        (True, 1, ["copy"]),  # it has begun: the error is the job's own
    ],
)
def test_a_copy_that_tensorflow_does_not_take_is_not_called_again(
    inlines: bool, shown: int | None, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`shown`: the copy fails after so many graphs."""
    caller = call_interception.Caller()
    [step] = steps(1)
    calls = []

    def call_function(self: Any, called: bytes, inputs: Any, outputs: int) -> str:
        is_copy = called != step.name
        calls.append("copy" if is_copy else "original")
        if is_copy and shown is not None:
            caller.graphs += shown if len(calls) == 1 else 0
            raise tf.errors.InvalidArgumentError(None, None, "not taken")
        return "given"

    monkeypatch.setattr(eager.Context, "call_function", call_function)
    call_interception.install_functions(caller, Chooser(), inlines, "")
    context = eager.context()
    if shown == 1:
        with pytest.raises(tf.errors.InvalidArgumentError):
            context.call_function(step.name, [], 1)
        assert calls == expected
        with pytest.raises(tf.errors.InvalidArgumentError):  # it is instantiated: no graph is shown
            context.call_function(step.name, [], 1)
        assert calls == ["copy", "copy"]
        return
    assert context.call_function(step.name, [], 1) == "given"
    assert calls == expected
    assert context.call_function(step.name, [], 1) == "given"
    assert calls == [*expected, expected[-1]]
