"""What a TensorFlow 1 loop's gradient pops of shapes is computed from what is at hand there, and is
the same: TensorFlow runs both graphs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from stitchcore.errors import Reason
from stitchcore.inject import digest
from stitchcore.tensorflow import recomputed_shapes, symbolic_sizes
from stitchcore.tensorflow.graph import Edge, index
from stitchcore.tensorflow.partition import partition
from stitchcore.tensorflow.patch import _PatchBuilder
from stitchcore.tensorflow.symbolic_sizes import resolve
from tests.tensorflow.graphs import pruned

v1 = tf.compat.v1
WIDTH, PASSES = 6, 4

Body = Callable[[Any, Any, Any], Any]
"""(x[batch, WIDTH], another, a state like x) -> the next state."""


@contextlib.contextmanager
def old_loops() -> Iterator[Any]:
    before = control_flow_util.ENABLE_CONTROL_FLOW_V2
    control_flow_util.ENABLE_CONTROL_FLOW_V2 = False
    try:
        with tf.Graph().as_default() as graph:
            yield graph
    finally:
        control_flow_util.ENABLE_CONTROL_FLOW_V2 = before


def gradient(body: Body, rows: int | None = None) -> Any:
    """The pruned graph of a loop's gradients by x and by y, for an unknown batch. The state has as
    many rows as x, or `rows`."""
    with old_loops() as graph:
        x = v1.placeholder(tf.float32, (None, WIDTH), name="x")
        y = v1.placeholder(tf.float32, (None, WIDTH), name="y")

        start = tf.ones_like(x) if rows is None else tf.fill([rows, WIDTH], 1.0)

        def step(i: Any, h: Any) -> Any:
            return i + 1, body(x, y, h)

        _, h = v1.while_loop(lambda i, _: i < PASSES, step, (0, start))
        of_x, of_y = tf.gradients(tf.reduce_sum(tf.sin(h)), [x, y])
        tf.identity(of_x, name="of_x"), tf.identity(of_y, name="of_y")
    return pruned(graph, ["of_x", "of_y"])


def broadcast(x: Any, y: Any, h: Any) -> Any:
    """Sums over axes that two shapes decide, and sizes to reshape to."""
    scores = tf.nn.softmax(tf.reduce_sum(x * h, 1, keepdims=True) * h)
    h = h * tf.reduce_sum(tf.sin(h * y), 0, keepdims=True)
    return tf.tanh(h * tf.reduce_mean(scores, 1, keepdims=True) + x)


def of_a_branch(x: Any, y: Any, h: Any) -> Any:
    """A tensor of the popped shape is first there in a branch that not every pass takes."""
    taken = tf.reduce_sum(h) > 3.0 * tf.cast(tf.shape(h)[0], tf.float32)
    h = v1.cond(taken, lambda: tf.exp(-h * h) * x, lambda: h * 0.5)
    return broadcast(x, y, h)


def grown(x: Any, y: Any, h: Any) -> Any:
    """A state that has as many rows as x, or after a pass as y."""
    return tf.tanh(h * y + x)


BODIES = {"broadcast": broadcast, "of_a_branch": of_a_branch, "grown": grown}


def recomputed(graph: Any, *otherwise: Any) -> tuple[Any, int]:
    """The graph with shapes recomputed, as TensorFlow runs it, and how many nodes were added."""
    sizes = resolve(graph)
    sizes = replace(sizes, otherwise=otherwise[0]) if otherwise else sizes
    before = sizes.graph.SerializeToString(deterministic=True)
    after, stands_for = recomputed_shapes.recompute(sizes)
    assert sizes.graph.SerializeToString(deterministic=True) == before
    for node in after.nodes:
        del node.attr["_output_shapes"]
    return after.graph, len(stands_for)


def ran(definition: Any, batch: int, other: int) -> list[Any]:
    """The gradients for so many rows of x and of y."""
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(definition, name="")
    numbers = np.random.default_rng(batch)
    x, y = (numbers.normal(size=(n, WIDTH)).astype(np.float32) for n in (batch, other))
    with v1.Session(graph=graph) as session:
        found: list[Any] = session.run(["of_x:0", "of_y:0"], {"x:0": x, "y:0": y})
    return found


@pytest.mark.parametrize("name", BODIES)
def test_gradients_are_the_same(name: str) -> None:
    graph = gradient(BODIES[name])
    changed, count = recomputed(graph)
    assert count >= (0 if name == "grown" else 4)
    for rows in ((1, 1), (2, 2), (WIDTH, WIDTH), (5, 1), (1, 5)):
        for ours, theirs in zip(ran(changed, *rows), ran(graph, *rows), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_what_is_assumed_of_sizes_is_not_relied_on() -> None:
    """That y has as many rows as x: it may have one. The mutant relies on it."""
    graph = gradient(broadcast)
    assert resolve(graph).otherwise
    changed, _ = recomputed(graph, ())
    np.testing.assert_array_equal(ran(changed, 5, 5)[1], ran(graph, 5, 5)[1])
    with pytest.raises((tf.errors.InvalidArgumentError, AssertionError)):
        np.testing.assert_array_equal(ran(changed, 5, 1)[1], ran(graph, 5, 1)[1])


def test_a_state_of_so_many_rows() -> None:
    """What meets it has as many, or one: numbers, where each has its own. The mutant relies on what
    is assumed."""
    graph = gradient(broadcast, 4)
    sizes = resolve(graph)
    assert not sizes.symbols and {("x", 0), ("y", 0)} <= sizes.supposed
    changed, count = recomputed(graph)
    assert count >= 4
    for rows in ((4, 4), (1, 4), (4, 1), (1, 1)):
        for ours, theirs in zip(ran(changed, *rows), ran(graph, *rows), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    changed, _ = recomputed(graph, ())
    with pytest.raises((tf.errors.InvalidArgumentError, AssertionError)):
        np.testing.assert_array_equal(ran(changed, 4, 1)[1], ran(graph, 4, 1)[1])


def misplaced(graph: Any) -> list[str]:
    """Vectors that are not added where what they stand for was: in its loop, in its branches."""
    sizes = resolve(graph)
    after, stands_for = recomputed_shapes.recompute(sizes)

    def place(i: int) -> Any:
        return after.frames[i], after.deadness[i]

    vectors = [i for i in stands_for if after.nodes[i].op == "Pack"]
    return [after.nodes[i].name for i in vectors if place(i) != place(stands_for[i].node)]


def test_all_run_where_what_they_stand_for_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a gradient of a branch that is taken would have no value."""
    graph = gradient(of_a_branch)
    assert recomputed(graph)[1] and misplaced(graph) == []

    def any_place(graph: Any, tensor: Any, size: Any, at_hand: Any) -> Any:
        return [size[0], *at_hand.get((graph.frames[tensor.node], size), [])][-1]

    monkeypatch.setattr(recomputed_shapes, "_part", any_place)
    assert misplaced(graph)


def test_the_shape_of_a_scalar_has_no_sizes() -> None:
    """A Pack of nothing is none."""
    sizes = resolve(gradient(broadcast))
    graph = index(sizes.graph)
    (tensor, *_) = recomputed_shapes._carried(graph, sizes)
    recomputed_shapes._Writer(graph, sizes.graph, tensor, tensor.node, "empty").replace([])
    added = sizes.graph.node[-1]
    assert added.op == "Const" and tf.make_ndarray(added.attr["value"].tensor).shape == (0,)
    assert any(added.name in node.input for node in sizes.graph.node)


def test_what_is_computed_from_a_popped_shape_does_not_make_it() -> None:
    """Else it would wait for itself."""
    graph = gradient(broadcast)
    sizes = resolve(graph)
    recomputed_shapes.recompute(sizes)  # Refused where there is a circle


def test_regions_take_what_needs_such_shapes() -> None:
    cut = partition(gradient(broadcast), ["of_x", "of_y"])
    refused = [refusal.subject for refusal in cut.refusals if refusal.reason is Reason.UNKNOWN_RANK]
    assert refused == []
    inside = [cut.graph.nodes[i].op for region in cut.regions for i in region.members]
    in_loops = [region for region in cut.regions if "while" in cut.graph.frames[region.members[0]]]
    assert inside.count("Sum") >= 4 and in_loops


def test_a_patch_knows_nodes_of_the_request_alone() -> None:
    cut = partition(gradient(broadcast), ["of_x", "of_y"])
    ids = digest.number(cut.request, cut.preserve).ids
    builder = _PatchBuilder(cut, ids)
    assert cut.recomputed
    for i, node in enumerate(cut.graph.nodes):
        assert (i in cut.recomputed) == (node.name not in ids)
    for i, tensor in cut.recomputed.items():
        assert builder.id(i) == ids[cut.graph.nodes[tensor.node].name]
        assert builder.tensor(Edge(i, 0)) == builder.tensor(tensor)


def test_a_large_graph_is_not_asked_about_at_length(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = gradient(broadcast)
    monkeypatch.setattr(symbolic_sizes, "MOST_OTHERWISE", 3 * len(graph.node))
    assert resolve(graph).otherwise is not None
    monkeypatch.setattr(symbolic_sizes, "MOST_OTHERWISE", 3 * len(graph.node) - 1)
    assert resolve(graph).otherwise is None
