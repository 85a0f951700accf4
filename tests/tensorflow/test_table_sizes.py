"""Values that a table gives are as many as its keys, whatever its handle tells."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")

import tensorflow as tf

from stitchcore.hlo.ir.dim import symbols_of
from stitchcore.tensorflow.partition import Partition, partition


def looked_up(keys: tf.TensorShape, default: list[int]) -> Any:
    """Places that a table has for words, and what is computed of their rows."""
    with tf.Graph().as_default() as graph:
        words = tf.compat.v1.placeholder(tf.string, keys, "words")
        table = tf.compat.v1.placeholder(tf.resource, [], "table")
        places = tf.raw_ops.LookupTableFindV2(
            table_handle=table, keys=words, default_value=tf.zeros(default, tf.int64), name="places"
        )
        weights = tf.compat.v1.placeholder(tf.float32, [30, 80], "weights")
        rows = tf.gather(weights, places, name="rows")
        tf.exp(tf.tanh(rows) * 2.0, name="result")
        return graph.as_graph_def(add_shapes=True)


def shape_of(cut: Partition, name: str) -> tuple[Any, ...] | None:
    shape = cut.graph.nodes[cut.graph.number[name]].attr["_output_shapes"].list.shape[0]
    return None if shape.unknown_rank else tuple(cut.sizes.dim(dim.size) for dim in shape.dim)


@pytest.mark.parametrize("keys", [[None], [None, 6], [None, None]])
def test_values_are_as_many_as_keys(keys: list[int | None]) -> None:
    """And what is computed of them is stitched, on the assumption that keys are no vectors."""
    cut = partition(looked_up(keys, []), ["result"])
    sizes = shape_of(cut, "places")
    assert sizes == shape_of(cut, "words") and sizes is not None and None not in sizes
    assert shape_of(cut, "result") == (*sizes, 80)
    symbols = {name for size in sizes if not isinstance(size, int) for name in symbols_of(size)}
    assert symbols and symbols <= cut.sizes.assumed
    result = cut.graph.number["result"]
    assert any(result in region.members for region in cut.regions)


def test_what_is_known_on_that_account_alone_is_supposed() -> None:
    cut = partition(looked_up([7], []), ["result"])
    assert shape_of(cut, "result") == (7, 80)
    assert {("places", 0), ("result", 0)} <= set(cut.sizes.supposed)


def test_a_table_of_vectors_stays_unknown() -> None:
    cut = partition(looked_up([None], [4]), ["result"])
    assert shape_of(cut, "places") is None
