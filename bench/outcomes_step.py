"""A user's script for bench/outcomes.py: a step that may be stitched, or (--tiny) is refused.

python bench/outcomes_step.py SECONDS [--tiny]
"""

from __future__ import annotations

import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

BATCH, FEATURES, WIDTH = 2048, 64, 512


def main() -> None:
    random = np.random.default_rng(20)
    first = tf.Variable(random.standard_normal((FEATURES, WIDTH)).astype("float32") / 8)
    gamma, beta = tf.Variable(tf.ones(WIDTH)), tf.Variable(tf.zeros(WIDTH))
    last = tf.Variable(random.standard_normal((WIDTH, 1)).astype("float32") / 32)
    x = tf.constant(random.standard_normal((BATCH, FEATURES)).astype("float32"))
    y = tf.constant(random.standard_normal((BATCH, 1)).astype("float32"))
    small = "--tiny" in sys.argv

    @tf.function
    def tiny() -> tf.Tensor:
        beta.assign(beta * 0.999)
        return tf.reduce_sum(beta)

    @tf.function
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            hidden = tf.matmul(x, first)
            mean, variance = tf.nn.moments(hidden, [-1], keepdims=True)
            hidden = tf.nn.batch_normalization(hidden, mean, variance, beta, gamma, 1e-5)
            loss = tf.reduce_mean(tf.square(tf.matmul(tf.nn.gelu(hidden), last) - y))
        weights = [first, gamma, beta, last]
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(1e-4 * gradient)
        return loss

    end = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < end:
        (tiny if small else step)().numpy()


if __name__ == "__main__":
    main()
