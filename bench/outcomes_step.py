"""A user's script for bench/outcomes.py: a step that may be stitched, or (--random) is refused,
because TensorFlow's random state in its kernels cannot be taken over in mid-run.

python bench/outcomes_step.py SECONDS FILE [--random]

FILE gets the number of steps that have ended and when each did (float64, monotonic seconds): mapped
memory, which outlives the process. It runs for SECONDS, or until somebody writes something else
than zero behind the last.
"""

from __future__ import annotations

import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

BATCH, FEATURES, WIDTH = 2048, 64, 512
MOST_STEPS = 1_000_000


def main() -> None:
    random = np.random.default_rng(20)
    first = tf.Variable(random.standard_normal((FEATURES, WIDTH)).astype("float32") / 8)
    gamma, beta = tf.Variable(tf.ones(WIDTH)), tf.Variable(tf.zeros(WIDTH))
    last = tf.Variable(random.standard_normal((WIDTH, 1)).astype("float32") / 32)
    x = tf.constant(random.standard_normal((BATCH, FEATURES)).astype("float32"))
    y = tf.constant(random.standard_normal((BATCH, 1)).astype("float32"))
    noisy = "--random" in sys.argv
    ends = np.memmap(sys.argv[2], dtype=np.float64, mode="w+", shape=(2 + MOST_STEPS,))

    @tf.function
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            hidden = tf.matmul(x, first)
            if noisy:
                hidden += tf.random.normal((BATCH, WIDTH), stddev=1e-3)
            mean, variance = tf.nn.moments(hidden, [-1], keepdims=True)
            hidden = tf.nn.batch_normalization(hidden, mean, variance, beta, gamma, 1e-5)
            loss = tf.reduce_mean(tf.square(tf.matmul(tf.nn.gelu(hidden), last) - y))
        weights = [first, gamma, beta, last]
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(1e-4 * gradient)
        return loss

    end = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < end and not ends[-1]:
        step().numpy()
        count = int(ends[0]) + 1
        ends[count] = time.monotonic()
        ends[0] = count


if __name__ == "__main__":
    main()
