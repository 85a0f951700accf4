"""Bytes of a step: what its operations move, what could be saved, and what is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")

import tensorflow as tf

from stitchcore.errors import Reason
from stitchcore.tensorflow.coverage import Coverage, coverage, node_bytes
from stitchcore.tensorflow.partition import Partition, partition
from tests.tensorflow.graphs import pruned, training_step

MEGABYTE = 2**20
SIDE = 512
"""A square of this side in float32 is one megabyte."""


def partitioned(build: Callable[[tf.Tensor], tf.Tensor]) -> Partition:
    """Of a graph between two products, which nobody stitches."""
    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, (SIDE, SIDE))
        out = tf.matmul(build(tf.matmul(x, x)), x)
    return partition(pruned(graph, [out.op.name]))


def coverage_of(cut: Partition, *stitched: int, moved: int = 2 * MEGABYTE) -> Coverage:
    """With the regions of these numbers stitched, each by kernels that move so many bytes."""
    names = [cut.regions[number].name for number in stitched]
    return coverage(cut, dict.fromkeys(names, 1.0), dict.fromkeys(names, moved))


def chain(x: tf.Tensor, length: int) -> tf.Tensor:
    for _ in range(length):
        x = tf.tanh(x)
    return x


def test_one_kernel_reads_its_input_and_writes_its_output() -> None:
    """Three operations of 2 MiB each, in one kernel that moves 2 MiB."""
    cut = partitioned(lambda x: chain(x, 3))
    assert coverage_of(cut, 0) == Coverage(6 * MEGABYTE, 6 * MEGABYTE, 4 * MEGABYTE, 4 * MEGABYTE)
    worse = coverage_of(cut, 0, moved=5 * MEGABYTE)
    assert (worse.saveable, worse.saved) == (4 * MEGABYTE, MEGABYTE)
    assert coverage_of(cut, 0, moved=9 * MEGABYTE).saved == 0
    assert coverage_of(cut, 0, moved=0).saved == 4 * MEGABYTE, "never more than one kernel could"


def test_a_region_that_was_dropped_stays_in_what_could_be_saved() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        small = chain(x, 3)
        return chain(tf.matmul(small, small), 51)

    cut = partitioned(build)
    assert len(cut.regions) == 2
    dropped = coverage_of(cut, 0)
    assert (dropped.saved, dropped.saveable) == (4 * MEGABYTE, 104 * MEGABYTE)
    assert coverage_of(cut).saved == 0 and coverage_of(cut).saveable == 104 * MEGABYTE
    assert coverage_of(cut, 0, 1).saved == 104 * MEGABYTE


def test_a_refused_operation_between_members_is_in_the_denominator() -> None:
    """Cut in two by it, the regions save 2 MiB each; one kernel over all five would save 8."""
    cut = partitioned(lambda x: chain(tf.debugging.check_numerics(chain(x, 2), "not finite"), 2))
    reasons = [refusal.reason for refusal in cut.refusals]
    assert Reason.DATA_DEPENDENT_ERROR in reasons and len(cut.regions) == 2
    assert coverage_of(cut, 0, 1) == Coverage(
        10 * MEGABYTE, 8 * MEGABYTE, 8 * MEGABYTE, 4 * MEGABYTE
    )  # fmt: skip


def test_a_region_that_is_too_small_is_in_it_too() -> None:
    """One operation that reads a tensor twice, and the framework with it."""
    cut = partitioned(lambda x: x * x)
    assert [r.reason for r in cut.refusals].count(Reason.REGION_TOO_SMALL) == 1
    assert coverage_of(cut) == Coverage(3 * MEGABYTE, 0, MEGABYTE, 0)


def test_views_and_shared_inputs_are_counted_once() -> None:
    """The kernel reads x once, and writes y, which a view of it leaves by, once."""

    def build(x: tf.Tensor) -> tf.Tensor:
        y = tf.tanh(x) + x
        seen = tf.reshape(y, (SIDE // 2, SIDE * 2))
        return tf.matmul(y, y) + tf.reshape(
            tf.matmul(seen, seen, transpose_a=True)[:SIDE, :SIDE], (SIDE, SIDE)
        )

    cut = partitioned(build)
    first = cut.regions[0]
    assert {"Tanh", "AddV2", "Reshape"} <= {cut.graph.nodes[i].op for i in first.members}
    best = coverage_of(cut, 0, moved=0).saved
    assert best == 5 * MEGABYTE - 2 * MEGABYTE


def test_updates_move_their_variables() -> None:
    """A dense update reads variable and gradient and writes the variable; an assignment takes a
    tensor over."""
    graph = tf.Graph()
    with graph.as_default():
        variable = tf.Variable(tf.zeros((SIDE, SIDE)), name="v")
        x = tf.compat.v1.placeholder(tf.float32, (SIDE, SIDE))
        taken = tf.raw_ops.AssignVariableOp(resource=variable.handle, value=tf.tanh(x))
        with tf.control_dependencies([taken]):
            added = tf.raw_ops.AssignAddVariableOp(resource=variable.handle, value=x)
    cut = partition(pruned(graph, [added.name]))
    by_op = {node.op: i for i, node in enumerate(cut.graph.nodes)}
    assert node_bytes(cut.graph, by_op["AssignAddVariableOp"]) == 3 * MEGABYTE
    assert node_bytes(cut.graph, by_op["AssignVariableOp"]) == 0


@pytest.mark.parametrize("stitched", ["all", "none"])
def test_shares_lie_between_nothing_and_all(stitched: str) -> None:
    cut = partition(training_step().definition)
    numbers = range(len(cut.regions)) if stitched == "all" else ()
    whole = coverage_of(cut, *numbers, moved=0)
    assert 0 <= whole.saved <= whole.saveable <= whole.intensive
    assert (whole.saved > 0.8 * whole.saveable) is (stitched == "all")
