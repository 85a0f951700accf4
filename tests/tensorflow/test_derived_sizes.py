"""Sizes that are no polynomials of those that enter: what is left after strides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")

import tensorflow as tf

from stitchcore.errors import Refused
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


def test_else_they_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symbolic_sizes, "INFERRED", symbolic_sizes.SIZES)
    cut = partition(halved(), ("rows", "e"))
    assert sizes_of(cut, "up/Squeeze") == sizes_of(cut, "down/Squeeze")


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
