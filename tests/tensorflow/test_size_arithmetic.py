"""Random arithmetic on sizes, as cuts, pads, repetitions, choices and numbers: every size is right.

What is composed is no list of cases anybody thought of; test_size_values.py has these.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")

import tensorflow as tf

from stitchcore.errors import Refused
from tests.tensorflow.test_fallback import runs, same, stitched
from tests.tensorflow.test_size_values import number, step

SIZES = [20, 40, 96, 100, 128, 130, 301, 64, 5, 8, 2, 33, 257]
SHARES = 20
"""Tests of `PROGRAMS` programs each, so that one has a name to repeat it by."""
PROGRAMS = 8


def size(draw: random.Random, n: Any, depth: int) -> Any:
    """A scalar made of n by up to 2 ** depth - 1 operations; piecewise, mostly."""
    if depth == 0:
        return (
            n if draw.random() < 0.7 else tf.constant(draw.choice([1, 2, 3, 7, 16, 50, 100, 200]))
        )
    a, b = size(draw, n, depth - 1), size(draw, n, depth - 1)
    c = tf.constant(draw.choice([2, 3, 4, 5, 8, 10, 16, 30, 64, 120, 150, 256]))
    return draw.choice(
        [
            lambda: tf.minimum(a, c),
            lambda: tf.maximum(a, c),
            lambda: tf.minimum(a, b),
            lambda: a // c,
            lambda: a % c,
            lambda: a + b,
            lambda: a * 2,
            lambda: tf.abs(a - c),
            lambda: tf.maximum(a - c, 0),
            lambda: tf.where(a > c, a, b),
            lambda: (a + c - 1) // c * c,
            lambda: tf.cast(tf.math.ceil(number(a) / 3.0), tf.int32),
        ]
    )()


def changed(draw: random.Random, x: Any, n: Any) -> Any:
    """x with other rows or other numbers, by a size; of no rows never."""
    one, rows = size(draw, n, draw.choice([1, 2])), tf.shape(x)[0]
    stride = draw.choice([2, 3])
    return draw.choice(
        [
            lambda: x[: tf.maximum(tf.minimum(one, rows), 1)],
            lambda: tf.concat([x[:one], x[:1]], 0),
            lambda: tf.concat([x[one:], x[:1]], 0),
            lambda: tf.pad(x, ((0, tf.clip_by_value(one, 0, 200)), (0, 0))),
            lambda: tf.tile(x, [1 + one % 2, 1]),
            lambda: x * (1.0 + 1e-3 * number(one)),
            lambda: tf.where(one > rows, x, -x),
            lambda: x[: tf.maximum(rows // 2, 1)] * (1.0 + 1e-3 * number(one)),
            lambda: x[::stride],
        ]
    )()


@pytest.mark.nightly
@pytest.mark.parametrize("share", range(SHARES))
def test_sizes_may_be_any_function_of_sizes(share: int) -> None:
    done = 0
    for seed in range(share * PROGRAMS, (share + 1) * PROGRAMS):
        draw = random.Random(seed)

        def made(x: Any, n: Any, draw: random.Random = draw) -> Any:
            for _ in range(draw.choice([1, 2])):
                x = changed(draw, x, n)
            return x

        graph = step(made)
        try:
            runs(graph, SIZES)
        except tf.errors.OpError:
            continue  # some size is not allowed by the program itself
        try:
            program = stitched(graph, some=True)
        except Refused:
            continue
        same(program.graph, graph, SIZES)
        done += 1
    assert done > PROGRAMS // 4
