"""Ranges of integers: what TensorFlow computes lies in them, and they are no wider than need be."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")

import tensorflow as tf

from stitchcore.tensorflow.graph import Edge, index
from stitchcore.tensorflow.value_range import Range, value_range
from tests.tensorflow.graphs import pruned

X = tf.TensorSpec([6, 4], tf.int32, "x")
WHOLE = Range(-(2**31), 2**31 - 1)
Model = Callable[[tf.Tensor], tf.Tensor]


def graph_of(model: Model, spec: tf.TensorSpec = X) -> tf.Graph:
    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(spec.dtype, spec.shape, "x")
        tf.identity(model(x), name="result")
    return graph


def range_of(graph: tf.Graph) -> Range | None:
    indexed = index(pruned(graph, ["result"]))
    return value_range(indexed, Edge(indexed.number["result"], 0))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (lambda x: x, WHOLE),
        (lambda x: tf.constant([[3, -2], [9, 4]]), Range(-2, 9)),
        (lambda x: tf.math.floormod(x, 10), Range(0, 9)),
        (lambda x: tf.math.floormod(x, -10), WHOLE),
        (lambda x: tf.math.floormod(tf.constant([3, 7]), 10), Range(3, 7)),
        (lambda x: tf.minimum(tf.maximum(x, 0), 31), Range(0, 31)),
        (lambda x: tf.maximum(x, 5), Range(5, 2**31 - 1)),
        (lambda x: tf.raw_ops.ClipByValue(t=x, clip_value_min=-3, clip_value_max=8), Range(-3, 8)),
        (lambda x: tf.math.floormod(x, 10) * 5 - 7, Range(-7, 38)),
        (lambda x: tf.math.floormod(x, 2**30) * 4, WHOLE),
        (lambda x: tf.tile(tf.reshape(tf.math.floormod(x, 7), [24]), [3]), Range(0, 6)),
        (lambda x: tf.concat([tf.math.floormod(x, 7), tf.constant([[-1, 3, 1, 1]])], 0),
         Range(-1, 6)),
        (lambda x: tf.where(x > 0, tf.math.floormod(x, 7), 20), Range(0, 20)),
        (lambda x: tf.argmax(tf.cast(x, tf.float32), 1), Range(0, 3)),
        (lambda x: tf.math.top_k(x, 2)[1], Range(0, 3)),
        (lambda x: tf.math.top_k(x, 2)[0], WHOLE),
        (lambda x: tf.argsort(tf.cast(x, tf.float32), 1, "DESCENDING"), Range(0, 3)),
        (lambda x: tf.cast(x > 3, tf.int32), Range(0, 1)),
        (lambda x: tf.cast(tf.math.floormod(x, 300), tf.int64), Range(0, 299)),
        (lambda x: tf.cast(tf.math.floormod(x, 300), tf.uint8), Range(0, 255)),
        (lambda x: tf.cast(tf.cast(x, tf.float32), tf.int32), WHOLE),
        (lambda x: tf.cast(x, tf.float32), None),
        (lambda x: tf.range(tf.math.floormod(x[0, 0], 3), 12), Range(0, 11)),
        (lambda x: tf.strings.to_hash_bucket_fast(tf.as_string(x), 50), Range(0, 49)),
        (lambda x: tf.raw_ops.Bucketize(input=x, boundaries=[1.0, 5.0]), Range(0, 2)),
        (lambda x: tf.random.uniform([9], 2, 6, tf.int32), Range(2, 5)),
        (lambda x: tf.random.stateless_uniform([9], [1, 2], 2, 6, tf.int32), Range(2, 5)),
    ],
)  # fmt: skip
def test_range(model: Model, expected: Range | None) -> None:
    assert range_of(graph_of(model)) == expected


UNARY: tuple[Callable[[tf.Tensor, int], tf.Tensor], ...] = (
    lambda x, c: tf.math.floormod(x, abs(c) + 1),
    lambda x, c: x + c,
    lambda x, c: c - x,
    lambda x, c: x * c,
    tf.minimum,
    tf.maximum,
    lambda x, c: tf.where(x > c, x, c),
    lambda x, c: tf.clip_by_value(x, -abs(c), abs(c)),
    lambda x, _: tf.transpose(tf.reverse(x, [0])),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(range(len(UNARY))),
            st.sampled_from([0, 1, -1, 7, -30, 1000, 2**30, -(2**31) + 1]) | st.integers(-99, 99),
        ),
        max_size=6,
    ),
    st.integers(0, 2**32 - 1),
)
def test_what_tensorflow_computes_lies_in_the_range(
    steps: list[tuple[int, int]], seed: int
) -> None:
    def model(x: tf.Tensor) -> tf.Tensor:
        for which, number in steps:
            x = UNARY[which](x, number)
        return x

    graph = graph_of(model)
    known = range_of(graph)
    assert known is not None
    random = np.random.default_rng(seed)
    ends = [-(2**31), 2**31 - 1, 0, 1, -1]
    drawn = np.concatenate([ends, random.integers(-(2**31), 2**31, 19)]).astype(np.int32)
    with tf.compat.v1.Session(graph=graph) as session:
        found = session.run("result:0", {"x:0": drawn.reshape(6, 4)})
    assert known.least <= found.min() and found.max() <= known.greatest
