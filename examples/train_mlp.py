"""Trains a residual MLP (LayerNorm, GELU, dropout) to imitate a random teacher network.

An ordinary TensorFlow script: `python examples/train_mlp.py`, or the same line after
`stitch run --wait --`. Prints the loss every few steps and the median seconds of a step.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

BATCH, FEATURES, WIDTH, BLOCKS, CLASSES, SAMPLES = 512, 64, 768, 3, 16, 512 * 32


def make_data(seed: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Features, and the classes that a random two-layer network gives them."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((SAMPLES, FEATURES)).astype("float32")
    hidden = np.tanh(x @ random.standard_normal((FEATURES, 32)) / np.sqrt(FEATURES) * 2)
    y = np.argmax(hidden @ random.standard_normal((32, CLASSES)), axis=1).astype("int32")
    return tf.constant(x), tf.constant(y)


class Block(tf.Module):
    """x + dropout(gelu(dense(layer_norm(x))))"""

    def __init__(self, initializer: tf.keras.initializers.Initializer) -> None:
        super().__init__()
        self.gamma = tf.Variable(tf.ones([WIDTH]))
        self.beta = tf.Variable(tf.zeros([WIDTH]))
        self.kernel = tf.Variable(initializer([WIDTH, WIDTH]))
        self.bias = tf.Variable(tf.zeros([WIDTH]))

    def __call__(self, x: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        y = tf.nn.batch_normalization(x, mean, variance, self.beta, self.gamma, 1e-5)
        y = tf.nn.gelu(tf.nn.bias_add(tf.matmul(y, self.kernel), self.bias))
        return x + tf.nn.experimental.stateless_dropout(y, 0.1, seed=seed)


class Model(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        initializer = tf.keras.initializers.GlorotUniform(seed=1)
        self.first = tf.Variable(initializer([FEATURES, WIDTH]))
        self.blocks = [Block(initializer) for _ in range(BLOCKS)]
        self.last = tf.Variable(initializer([WIDTH, CLASSES]))

    def __call__(self, x: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        x = tf.matmul(x, self.first)
        for position, block in enumerate(self.blocks):
            x = block(x, tf.stack([step, position]))
        return tf.matmul(x, self.last)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=math.inf, help="or so long, if shorter")
    asked = parser.parse_args()
    tf.keras.utils.set_random_seed(1)
    x, y = make_data(0)
    model = Model()
    weights = list(model.trainable_variables)
    optimizer = tf.keras.optimizers.Adam(1e-3)
    optimizer.build(weights)

    @tf.function
    def train_step(x: tf.Tensor, y: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = model(x, step)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, weights)
        optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return loss

    seconds: list[float] = []
    for step in range(asked.steps):
        start = step * BATCH % SAMPLES
        batch = x[start : start + BATCH], y[start : start + BATCH]
        began = time.perf_counter()
        loss = float(train_step(*batch, tf.constant(step)))
        seconds.append(time.perf_counter() - began)
        last = step == asked.steps - 1 or sum(seconds) > asked.seconds
        if step % 20 == 0 or last:
            print(f"step {step} loss {loss!r}", flush=True)
        if last:
            break
    print(f"median step {statistics.median(seconds[len(seconds) // 2 :]) * 1e3:.3f} ms")


if __name__ == "__main__":
    main()
