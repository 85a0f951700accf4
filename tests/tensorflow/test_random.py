"""Random numbers by an explicit key: kernels draw TensorFlow's own, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")

import tensorflow as tf

from stitchcore.compiler.stages import compile_module
from stitchcore.device.host import host_device
from stitchcore.errors import Reason
from stitchcore.runtime.module import run_module
from stitchcore.tensorflow.lower import as_function, lower, subgraph
from stitchcore.tensorflow.partition import partition
from tests.tensorflow.test_lookups import cut, reason, region_of
from tests.tensorflow.test_loops import lowered, v1

DRAW = "StatelessRandomUniformV2"
SEED = tf.TensorSpec([2], tf.int64, "seed")
WORDS = [tf.TensorSpec([n], tf.uint64, name) for n, name in ((1, "key"), (2, "counter"))]
VALUES = tf.TensorSpec([32, 24, 40], tf.float32, "values")


def dropped(values: tf.Tensor, key: tf.Tensor, counter: tf.Tensor) -> tf.Tensor:
    """Dropout behind a library call, which waits for a region: what is drawn waits for none."""
    made = tf.tanh(values) * 2.0
    product = tf.matmul(made, made, transpose_b=True)
    drawn = tf.raw_ops.StatelessRandomUniformV2(shape=[32, 24, 24], key=key, counter=counter, alg=1)
    return tf.where(drawn >= 0.25, product / 3.0, 0.0)


def test_what_is_drawn_is_drawn_where_it_is_used() -> None:
    """Its mask holds less than its numbers, but more than the key they are made of."""
    parts = cut(dropped, VALUES, *WORDS)
    assert region_of(parts, "Tanh") != region_of(parts, DRAW)
    assert region_of(parts, DRAW) == region_of(parts, "GreaterEqual") == region_of(parts, "truediv")


@pytest.mark.parametrize("drawn", ["float32", "float16", "bfloat16", "float64"])
def test_numbers_are_tensorflows_for_any_batch(drawn: str) -> None:
    def model(values: tf.Tensor, key: tf.Tensor, counter: tf.Tensor) -> tf.Tensor:
        numbers = tf.raw_ops.StatelessRandomUniformV2(
            shape=tf.shape(values), key=key, counter=counter, alg=3, dtype=drawn
        )
        return tf.where(values > 0, numbers, -numbers)

    parts = cut(model, tf.TensorSpec([None, 70, 130], tf.float32, "values"), *WORDS)
    function = subgraph(parts, parts.regions[region_of(parts, DRAW)])
    compiled = compile_module(lower(function).module, host_device())
    original = as_function(function, jit=False)
    state = {1: np.array([2**64 - 5], np.uint64), 2: np.array([2**64 - 2, 2**64 - 1], np.uint64)}
    for batch in (3, 31):  # the counter wraps; the last block is not used up
        given = [
            state[one.dims[0]] if one.dtype == "uint64" else np.ones((batch, 70, 130), one.dtype)
            for one in function.arguments
        ]
        [ours] = run_module(compiled, given)
        [theirs] = original(*map(tf.constant, given))
        assert ours.dtype == theirs.numpy().dtype
        assert np.array_equal(ours, theirs.numpy()) and np.unique(ours).size > 100


@pytest.mark.parametrize("algorithm", [2, None])
def test_another_algorithm_stays(algorithm: int | None) -> None:
    def model(seed: tf.Tensor, given: tf.Tensor) -> tf.Tensor:
        key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed)
        chosen = given if algorithm is None else algorithm
        shape = [300, 400]
        return tf.raw_ops.StatelessRandomUniformV2(
            shape=shape, key=key, counter=counter, alg=chosen
        )

    parts = cut(model, SEED, tf.TensorSpec([], tf.int32, "given"))
    assert reason(parts, DRAW) in (Reason.RANDOM_STREAM, Reason.UNKNOWN_RANK)


def test_keys_of_a_gpu_are_in_host_memory() -> None:
    graph = cut(dropped, VALUES, *WORDS).request
    for node in graph.node:
        node.device = "/job:localhost/replica:0/task:0/device:GPU:0"
    assert reason(partition(graph, ["result"], kind="gpu"), DRAW) is Reason.RANDOM_STREAM


def test_what_masks_whole_channels_is_drawn_once() -> None:
    def model(values: tf.Tensor, key: tf.Tensor, counter: tf.Tensor) -> tf.Tensor:
        drawn = tf.raw_ops.StatelessRandomUniformV2(
            shape=[32, 1, 40], key=key, counter=counter, alg=1
        )
        return tf.where(drawn >= 0.25, values / 3.0, 0.0)

    parts = cut(model, VALUES, *WORDS)
    assert reason(parts, DRAW) is Reason.NOT_PROFITABLE
    assert region_of(parts, "GreaterEqual") == region_of(parts, "truediv")


def test_a_number_that_goes_round_in_a_loop_is_followed_once() -> None:
    with lowered() as graph:
        key, counter = (v1.placeholder(tf.uint64, [n], name=f"words{n}") for n in (1, 2))

        def step(i: tf.Tensor, walked: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            drawn = tf.raw_ops.StatelessRandomUniformV2(shape=[], key=key, counter=counter, alg=1)
            return i + 1, walked * 0.5 + drawn

        tf.identity(v1.while_loop(lambda i, _: i < 3, step, [0, 0.0])[1], name="out")
    parts = partition(graph.as_graph_def(add_shapes=True), ["out"])
    assert region_of(parts, f"while/{DRAW}") == region_of(parts, "while/add_1")
