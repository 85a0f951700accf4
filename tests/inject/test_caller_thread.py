"""Steps that run in the thread that calls them: which, and that nothing else changes for them."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")

import tensorflow as tf

from stitchcore.inject import caller_thread
from tests import fork_server
from tests.inject import jobs

SCRIPT = Path(__file__).parent / "scripts" / "caller_thread.py"


@functools.cache
def ran(version: str, native: Path) -> dict[str, dict[str, Any]]:
    done = fork_server.run([jobs.python_of(version), str(SCRIPT), str(native)])
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(found, dict)
    return found


@pytest.fixture(params=["2.15", "2.21"])
def found(request: pytest.FixtureRequest, native: Path) -> dict[str, dict[str, Any]]:
    return ran(request.param, native)


CALLERS, POOLS = ["caller's"], ["pool's"]
EVERYWHERE = (("here", CALLERS), ("placed", POOLS), ("pool", POOLS))


@pytest.mark.slow
def test_it_runs_where_its_step_is_placed(
    found: dict[str, dict[str, Any]],
) -> None:
    for where, threads in EVERYWHERE:
        assert found[where]["threads"] == found[where]["session"]["threads"] == threads


@pytest.mark.slow
def test_a_thread_with_little_stack_leaves_it_to_another(
    found: dict[str, dict[str, Any]],
) -> None:
    """One of its own, as the pipeline may need the pool's while it waits."""
    assert found["here"]["large_stack"] == CALLERS
    [thread] = found["here"]["small_stack"]
    assert thread not in (*CALLERS, *POOLS)
    for where in ("placed", "pool"):
        assert found[where]["small_stack"] == found[where]["large_stack"] == POOLS


@pytest.mark.slow
def test_what_it_computes_is_what_the_pool_computes(found: dict[str, dict[str, Any]]) -> None:
    """Numbers too small to be normal are zero in TensorFlow's threads; operations that call
    functions, as a loop that is one operation and a long row of calls, end well."""
    for name in ("tiny", "many", "loop"):
        assert found["here"][name] == found["pool"][name]
    assert found["here"]["tiny"] == [0.0]
    assert found["here"]["session"]["tiny"] == found["pool"]["session"]["tiny"] == 0.0


@pytest.mark.slow
def test_an_error_is_the_callers_and_the_next_call_runs(found: dict[str, dict[str, Any]]) -> None:
    for where, _ in EVERYWHERE:
        assert found[where]["error"] == "InvalidArgumentError"
        line = [math.tanh(-1 + 1.9 * i / 63) for i in range(64)]
        assert found[where]["after_error"] == pytest.approx(line, abs=1e-5)


@pytest.mark.slow
def test_threads_that_call_at_once_each_get_their_own(found: dict[str, dict[str, Any]]) -> None:
    assert all(found[where]["at_once"] for where, _ in EVERYWHERE)


@pytest.mark.slow
def test_input_is_taken_there_and_made_elsewhere(found: dict[str, dict[str, Any]]) -> None:
    """An iterator keeps the runner of the call that began it, and is read to its end in others;
    Python, where its functions ask, sees none of the caller's thread. What waits for an operation
    that another thread ends goes on in the pool."""
    for where, threads in EVERYWHERE:
        for name in ("parallel", "python", "unlabelled"):
            made = found[where][name]
            assert made["elements"] == list(range(0, 600, 2))
            assert made["ended"] == "OutOfRangeError"
            assert made["threads"] == (POOLS if name == "unlabelled" else threads)
        assert found[where]["python"]["asked_in_callers"] == [False]


def why_not(body: Any, *arguments: Any) -> str:
    function = tf.function(body)
    specs = [tf.TensorSpec(shape, dtype) for shape, dtype in arguments]
    graph = function.get_concrete_function(*specs).graph.as_graph_def()
    return caller_thread.why_not(graph)


VECTOR = ((4,), tf.float32)


def test_a_training_step_may() -> None:
    weights, table = tf.Variable(tf.ones((4, 4))), tf.Variable(tf.ones((9, 4)))
    writer = tf.summary.create_noop_writer()
    words = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(tf.constant(["a"]), tf.constant([1], tf.int64)), 0
    )

    @tf.autograph.experimental.do_not_convert
    def step(x: Any, word: Any) -> Any:
        with tf.GradientTape() as tape, writer.as_default():
            rows = tf.gather(table, words.lookup(word))
            value = tf.matmul(x[None] + rows + tf.random.normal((4,)), weights)
            loss = tf.while_loop(lambda v: tf.reduce_sum(v) < 1.0, lambda v: v * 2.0, [value])[0]
            loss = tf.cond(tf.reduce_sum(x) > 0, lambda: tf.reduce_sum(loss), lambda: 0.0)
            tf.debugging.assert_all_finite(loss, "finite")
        for variable, gradient in zip(
            (weights, table), tape.gradient(loss, (weights, table)), strict=True
        ):
            variable.assign_sub(tf.convert_to_tensor(gradient))
        return loss

    assert why_not(step, VECTOR, ((), tf.string)) == ""


def test_what_asks_python_or_waits_may_not() -> None:
    queue = tf.queue.FIFOQueue(2, [tf.float32], shapes=[(4,)])

    def asks_python(x: Any) -> Any:
        return tf.numpy_function(lambda value: value, [x], tf.float32)

    def asks_python_deeply(x: Any) -> Any:
        return tf.cond(tf.reduce_sum(x) > 0, lambda: tf.py_function(abs, [x], tf.float32),
                       lambda: x)  # fmt: skip

    def waits(x: Any) -> Any:
        queue.enqueue(x)
        return queue.dequeue()

    def stages(x: Any) -> Any:
        tf.raw_ops.Stage(values=[x], shared_name="s")
        return tf.raw_ops.Unstage(dtypes=[tf.float32], shared_name="s")[0]

    for body, names in (
        (asks_python, "PyFunc"),
        (asks_python_deeply, "EagerPyFunc"),
        (waits, "Queue"),
        (stages, "tage"),
    ):
        assert names in why_not(body, VECTOR), body.__name__


def test_an_operation_that_tensorflow_does_not_know_may_not() -> None:
    graph = tf.compat.v1.GraphDef()
    graph.node.add(name="unknown", op="SomebodysOperation")
    assert "SomebodysOperation" in caller_thread.why_not(graph)
