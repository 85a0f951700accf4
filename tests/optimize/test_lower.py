"""An operation that fails on its data, in a region where not all of its result is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="needs TensorFlow: pip install 'stitchcore[tensorflow]'")

import tensorflow as tf

from stitchcore.device.host import host_device
from stitchcore.errors import Reason, Refused
from stitchcore.optimize import pipeline
from stitchcore.optimize.pipeline import RequestState
from stitchcore.optimize.request import Request
from stitchcore.options import Options
from stitchcore.tensorflow import lower
from tests.tensorflow.graphs import pruned

CHECKED = "SparseSoftmaxCrossEntropyWithLogits"


def lowered(tmp_path: Any, make: Callable[[Any, Any], Any]) -> RequestState:
    graph = tf.Graph()
    with graph.as_default():
        logits = tf.compat.v1.placeholder(tf.float32, (16, 10))
        labels = tf.compat.v1.placeholder(tf.int32, (16,))
        tf.identity(make(tf.tanh(logits) * 3.0, labels), name="out")
    data = pruned(graph, ["out"]).SerializeToString()
    request = Request("0" * 64, data, {"preserve": ["out"], "tf": tf.__version__})
    options = Options(tmp_path, tmp_path, tmp_path / "key")
    state = RequestState(request, host_device(), options, lambda *_: None)
    for name in ("partition", "lower"):
        state = next(s for s in pipeline.STAGES if s.name == name).run(state)
    return state


def members(state: RequestState) -> list[str]:
    cut = state.partition
    return [cut.graph.nodes[i].op for region in cut.regions for i in region.members]


def test_a_check_that_all_outputs_need_is_a_kernels(tmp_path: Any) -> None:
    def loss(logits: Any, labels: Any) -> Any:
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits) * 2.0

    state = lowered(tmp_path, loss)
    assert CHECKED in members(state)
    assert Reason.DATA_DEPENDENT_ERROR not in {refusal.reason for refusal in state.refusals}


def test_one_of_which_an_output_needs_a_part_is_left_alone(tmp_path: Any) -> None:
    """Its neighbours stay members: with small products in regions they may be a whole step. Here a
    gradient goes back through a layer, and heads of it go on."""

    def heads(logits: Any, labels: Any) -> Any:
        weight = tf.constant(np.ones((10, 12), np.float32))
        hidden = tf.matmul(logits, weight)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, hidden)
        (gradient,) = tf.gradients(loss, logits)
        return tf.exp(gradient[:, :5])

    state = lowered(tmp_path, heads)
    assert CHECKED not in members(state)
    assert {"Tanh", "Mul", "Exp", "MatMul"} <= set(members(state))
    reasons = {r.subject.rsplit("/", 1)[-1]: r.reason for r in state.refusals}
    assert reasons[CHECKED] == Reason.DATA_DEPENDENT_ERROR
    assert set(state.lowered) == set(state.regions.values())


def test_what_is_refused_of_an_instruction_is_told_of_its_region(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise Refused("constant.24", Reason.DOES_NOT_UNIFY, "1.5 and 2.5")

    monkeypatch.setattr(lower, "lower", refuse)
    state = lowered(tmp_path, lambda logits, labels: tf.exp(logits))
    (region,) = state.partition.regions
    (told,) = (r for r in state.refusals if r.reason is Reason.DOES_NOT_UNIFY)
    assert (told.subject, told.detail) == (region.name, "constant.24: 1.5 and 2.5")
