"""Sizes that are no polynomials of those that enter: what is left after strides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")

import tensorflow as tf

from stitchcore.errors import Reason, Refused
from stitchcore.hlo.ir.dim import Dim, evaluate
from stitchcore.tensorflow import symbolic_sizes
from stitchcore.tensorflow.lower import lower, subgraph
from stitchcore.tensorflow.partition import Partition, partition
from stitchcore.tensorflow.run_region import runner


def halved() -> Any:
    """x[batch, time, 8] with strides of 2, rounded up and down, and what is computed of each."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, None, 8], name="x")
        kernel = tf.compat.v1.placeholder(tf.float32, [2, 8, 4], name="kernel")
        up = tf.nn.conv1d(x, kernel, 2, "SAME", name="up")
        batch, time = tf.unstack(tf.shape(x))[:2]
        rows = tf.reshape(tf.tanh(up), [batch * ((time + 1) // 2), 4])
        tf.exp(tf.sin(rows) + tf.reduce_sum(tf.cos(x), [0, 1])[:4], name="rows")
        down = tf.nn.conv1d(x, kernel, 2, "VALID", name="down")
        tf.exp(tf.sin(down), name="e")
        return graph.as_graph_def(add_shapes=True)


def sizes_of(cut: Partition, suffix: str) -> tuple[Dim | None, ...]:
    node = next(node for node in cut.graph.nodes if node.name.endswith(suffix))
    shape = node.attr["_output_shapes"].list.shape[0]
    return tuple(cut.sizes.dim(dim.size) for dim in shape.dim)


def test_a_part_rounded_up_and_one_rounded_down_are_two() -> None:
    cut = partition(halved(), ("rows", "e"))
    batch, up, _ = sizes_of(cut, "up/Squeeze")
    assert sizes_of(cut, "down/Squeeze")[0] == batch
    assert len({up, sizes_of(cut, "down/Squeeze")[1], sizes_of(cut, "x")[1], None}) == 4
    assert cut.sizes.derived <= cut.sizes.assumed


def test_a_region_holds_a_size_and_what_is_derived_of_it() -> None:
    """The shape of the rows is computed of x's in the region that makes them."""
    cut = partition(halved(), ("rows", "e"))
    reshape = cut.graph.number["Reshape"]
    region = next(region for region in cut.regions if reshape in region.members)
    function = subgraph(cut, region)
    assert set(lower(function).module.symbols) == set(function.symbols)
    shapes = [[evaluate(dim, function.judged) for dim in a.dims] for a in function.arguments]
    results = runner(function)([np.ones(shape, np.float32) for shape in shapes])
    assert (32 * 16, 4) in [result.shape for result in results]
    with pytest.raises(Refused):
        lower(replace(function, points=()))


def framed(length: int) -> Any:
    """Frames of a wave: a short one has none."""
    with tf.Graph().as_default() as graph:
        wave = tf.compat.v1.placeholder(tf.float32, [None, None], name="sound")
        frames = tf.signal.frame(wave, length, length // 2)
        tf.exp(tf.sin(frames) + 1.0, name="framed")
        return graph.as_graph_def(add_shapes=True)


@pytest.mark.parametrize(
    ("length", "factor", "judged"),
    [(10, 1, 1), (20, 9, 1), (50, 9, 4), (100, 9, 9), (1000, 65, 65), (9000, 513, 513)],
)
def test_sizes_are_taken_at_which_nothing_is_empty(length: int, factor: int, judged: int) -> None:
    """Of the wave's length alone: each row more is as much work again. Judged at no larger ones
    than it takes there."""
    cut = partition(framed(length), ("framed",))
    batch, time = sizes_of(cut, "sound")
    rows, frames, width = sizes_of(cut, "framed")
    assert rows == batch and width == length and frames not in (time, None)
    assert all(evaluate(frames, point) > 0 for point in cut.sizes.points)
    assert cut.sizes.enlarged == ({str(time): factor} if factor > 1 else {})
    assert cut.sizes.judged[str(batch)] == symbolic_sizes.JUDGED_SIZE
    assert cut.sizes.judged[str(time)] == symbolic_sizes.JUDGED_SIZE * judged


@pytest.mark.parametrize("length", [160, 60])
def test_nor_is_there_one_element_alone(length: int) -> None:
    """Frames of which there is one up to 220, and a number divided by 20: what is computed of one
    is another program."""
    with tf.Graph().as_default() as graph:
        wave = tf.compat.v1.placeholder(tf.float32, [None, None], name="sound")
        frames = tf.signal.frame(wave, length, 60)
        tf.exp(tf.sin(frames) + 1.0, name="framed")
        rows = tf.reshape(wave[:, : tf.shape(wave)[1] // 20 * 20], [tf.shape(wave)[0], -1, 20])
        tf.exp(tf.sin(rows) + 1.0, name="rows")
    cut = partition(graph.as_graph_def(add_shapes=True), ("framed", "rows"))
    functions = [subgraph(cut, region) for region in cut.regions]
    points = [*cut.sizes.points, *(point for one in functions for point in one.points)]
    assert cut.sizes.derived and min(min(point.values()) for point in points) > 1


def test_a_derived_size_that_a_shape_tells_does_not_begin_there() -> None:
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, 8], name="x")
        third = tf.exp(tf.tanh(x)[::3])
        rows = tf.stack([tf.shape(third)[0] * 2, 4])
        tf.multiply(tf.sin(tf.fill(rows, 0.5)), tf.reshape(third, rows), name="result")
        definition = graph.as_graph_def(add_shapes=True)
    cut = partition(definition, ["result"])
    [refusal] = [one for one in cut.refusals if one.reason is Reason.DOES_NOT_UNIFY]
    assert refusal.subject == "strided_slice" and cut.sizes.derived
    region = next(r for r in cut.regions if cut.graph.number["result"] in r.members)
    assert {cut.graph.number[name] for name in ("Fill", "Sin", "Exp")} <= {*region.members}
    assert lower(subgraph(cut, region)).module.symbols


def test_a_derived_size_is_no_number_of_a_region_that_does_not_hold_it() -> None:
    """How many rows were added up, behind a library call: nothing there has so many."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, 8, 8], name="x")
        total = tf.reduce_sum(tf.exp(tf.tanh(x)[::3]), 0)
        count = tf.cast((tf.shape(x)[0] + 2) // 3, tf.float32)
        mean = tf.linalg.inv(total) / count
        tf.multiply(tf.sin(mean), 2.0, name="result")
        definition = graph.as_graph_def(add_shapes=True)
    cut = partition(definition, ["result"])
    region = next(r for r in cut.regions if cut.graph.number["result"] in r.members)
    assert {cut.graph.number[name] for name in ("truediv", "Sin")} <= {*region.members}
    assert not lower(subgraph(cut, region)).module.symbols


def test_a_bounded_size_is_looked_at_where_it_is_less_small() -> None:
    """Rounded down to 8 it is 8 at all of the smallest, and need not be: the other, which has to
    be as large, bounds it."""
    with tf.Graph().as_default() as graph:
        x, y = (tf.compat.v1.placeholder(tf.float32, [None, 4], name=name) for name in "xy")
        count = tf.shape(x)[0] // 8 * 8
        tf.multiply(tf.exp(tf.tanh(x)[:count]), y[:count], name="result")
        definition = graph.as_graph_def(add_shapes=True)
    cut = partition(definition, ["result"])
    assert cut.sizes.bounded
    assert not isinstance(sizes_of(cut, "result")[0], int)


def test_sizes_begin_where_a_tensor_gets_its_rank() -> None:
    """Nothing names sizes of one whose rank nobody knows, nor of what is computed of it."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, None, name="x")
        rows = tf.reshape(x, [-1, 8], name="rows")
        pairs = tf.reshape(tf.sin(tf.cos(x)), [-1, 2], name="pairs")
        tf.tanh(tf.exp(rows) + 1.0, name="first")
        tf.tanh(tf.exp(pairs[1:]) + 1.0, name="second")
    cut = partition(graph.as_graph_def(add_shapes=True), ("first", "second"))
    one, other = sizes_of(cut, "rows")[0], sizes_of(cut, "pairs")[0]
    assert None not in (one, other) and one != other
    assert sizes_of(cut, "first") == (one, 8) and sizes_of(cut, "second") == (other - 1, 2)
    members = {cut.graph.nodes[i].name for region in cut.regions for i in region.members}
    assert {"first", "second"} <= members


def test_what_is_empty_at_any_size_is_left_unknown() -> None:
    cut = partition(framed(100_000), ("framed",))
    assert sizes_of(cut, "framed")[1] is None
    reasons = {refusal.subject: refusal.reason for refusal in cut.refusals}
    assert reasons["framed"] is Reason.DOES_NOT_UNIFY


def test_a_region_is_lowered_and_judged_where_its_sizes_are_positive() -> None:
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, None, 8], name="x")
        tf.exp(tf.sin(x[:, :-50]) + 1.0, name="e")
        cut = partition(graph.as_graph_def(add_shapes=True), ("e",))
    [region] = cut.regions
    function = subgraph(cut, region)
    assert set(lower(function).module.symbols) == set(function.symbols)
    shapes = [[evaluate(dim, function.judged) for dim in a.dims] for a in function.arguments]
    results = runner(function)([np.ones(shape, np.float32) for shape in shapes])
    assert all(result.size for result in results)
