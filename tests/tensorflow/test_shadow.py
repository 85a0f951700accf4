"""The first execution of a stitched operation is TensorFlow's, and its kernel runs beside it.

The graph and its cut are test_fallback's: one kernel for each instruction.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")

import tensorflow as tf

from stitchcore.inject import plugin, reasons
from tests.tensorflow.test_fallback import KEPT, Stitched, runs, same, step, stitched


def wrong_nodes(program: Stitched) -> dict[str, plugin.Failure]:
    """What was found wrong in this process, by node."""
    return {
        failure.node: failure
        for failure in program.native.failures()
        if plugin.reason_of(failure.message) == reasons.WRONG_RESULT
    }


@pytest.mark.slow
@pytest.mark.parametrize("batch", [32, None])
def test_the_first_step_is_the_frameworks_bit_for_bit(batch: int | None) -> None:
    graph = step(batch)
    batches = [32] * 3 if batch else [32, 7, 19]
    program = stitched(graph)
    before = program.native.counters()
    mine, wanted = runs(program.graph, batches), runs(graph, batches)
    for ours, theirs in zip(mine[0], wanted[0], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    same(program.graph, graph, batches)
    after = program.native.counters()
    assert after["compared"] == before["compared"] + 2 * len(program.keys)  # of both sessions
    assert after["not_compared"] == before["not_compared"]
    assert not wrong_nodes(program)


def centred() -> Any:
    """Sums that cancel, and what is made of them; a variable beside them."""
    graph = tf.Graph()
    with graph.as_default():
        variable = tf.Variable(tf.ones([64]), name="v", shape=[64])
        x = tf.compat.v1.placeholder(tf.float32, [32, 64], "x")
        nothing = tf.reduce_sum(x - tf.reduce_mean(x, 1, keepdims=True), 1, keepdims=True)
        tf.multiply(tf.tanh(x), 3e3 * nothing, name="kept")
        tf.reduce_mean(tf.tanh(x), name="result")
        tf.raw_ops.AssignSubVariableOp(resource=variable.handle, value=x[0], name="update")
    definition = graph.as_graph_def(add_shapes=True)
    return tf.compat.v1.graph_util.extract_sub_graph(definition, list(KEPT))


@pytest.mark.slow
def test_what_is_made_of_sums_that_cancel_is_not_wrong() -> None:
    """The sums are no tensor of the graph: each side has its own, and no digit of them is alike."""
    graph = centred()
    program = stitched(graph)
    before = program.native.counters()["compared"]
    mine, untouched = runs(program.graph, [32] * 3), runs(graph, [32] * 3)
    assert not wrong_nodes(program)
    assert program.native.counters()["compared"] >= before + len(program.keys)
    assert not np.allclose(mine[-1][1], untouched[-1][1], rtol=0.1)


@pytest.mark.slow
def test_any_wrong_kernel_is_found_and_does_no_work() -> None:
    """The mutants: each kernel's first value in turn is another one."""
    graph = step(32)
    program = stitched(graph)
    untouched = runs(graph, [32] * 3)
    known: set[str] = set()
    for key in program.keys:
        program.native.arm_fault("value", key)
        left = program.native.counters()["left_to_functions"]
        stepped = runs(program.graph, [32] * 3)
        for ours, theirs in zip(stepped[0], untouched[0], strict=True):
            np.testing.assert_array_equal(ours, theirs)
        for ours, theirs in zip(stepped[-1], untouched[-1], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-6)
        wrong = wrong_nodes(program)
        found = wrong.keys() - known
        if found:
            (name,) = found
            assert name.startswith("stitch/abc/") and wrong[name].times == 1
            assert "at element 0: " in wrong[name].message
            assert " instead of " in wrong[name].message
            assert program.native.counters()["left_to_functions"] == left + 2
        known |= found
    assert len(known) > 2  # the others hand on what is no tensor of the graph
