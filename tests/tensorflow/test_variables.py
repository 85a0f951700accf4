"""Which variables may be values: the others stay resources, with a reason."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from stitchcore.errors import Reason
from stitchcore.tensorflow.partition import partition


def assigning(shape: list[int | None] | None) -> Any:
    """A graph that assigns a computed value to a variable declared with `shape`."""
    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, [64, 128])
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=tf.TensorShape(shape), name="kept")
        value = tf.exp(tf.tanh(x) * 2.0) + x
        tf.raw_ops.AssignVariableOp(resource=handle, value=value, name="write")
    return graph.as_graph_def(add_shapes=True)


@pytest.mark.parametrize("shape", [None, [None, 128]])
def test_a_variable_of_any_shape_stays_a_resource(shape: list[int | None] | None) -> None:
    """Its value is replaced by one of another shape: storing in place would fail the job."""
    cut = partition(assigning(shape), ["write"])
    refused = {refusal.subject: refusal.reason for refusal in cut.refusals}
    assert refused["kept"] is Reason.UNKNOWN_RANK
    write = cut.graph.number["write"]
    assert cut.regions and all(write not in region.members for region in cut.regions)


def test_a_variable_of_fixed_shape_is_a_value() -> None:
    cut = partition(assigning([64, 128]), ["write"])
    write = cut.graph.number["write"]
    assert any(write in region.members for region in cut.regions)
