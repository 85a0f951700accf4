"""A small GPT as a user's job: its step and its peak memory, plainly or under `stitch run`.

    python -m bench.gpt_job [--steps N]
    stitch run --wait -- python -m bench.gpt_job

AdamW and gradients clipped by their global norm: one sum over all gradients stands between two
halves of the step, so what one kernel makes of a gradient waits there for the rest.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time

import numpy as np
import tensorflow as tf

LAYERS, WIDTH, HEADS, SEQUENCE, VOCABULARY, BATCH = 4, 256, 4, 128, 4000, 8


class Block(tf.keras.layers.Layer):
    """Attention and a feed-forward network, each after its normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.first = tf.keras.layers.LayerNormalization()
        self.second = tf.keras.layers.LayerNormalization()
        self.mixed = tf.keras.layers.Dense(3 * WIDTH)
        self.out = tf.keras.layers.Dense(WIDTH)
        self.wide = tf.keras.layers.Dense(4 * WIDTH, activation="gelu")
        self.narrow = tf.keras.layers.Dense(WIDTH)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        def heads(value: tf.Tensor) -> tf.Tensor:
            split = tf.reshape(value, (BATCH, SEQUENCE, HEADS, WIDTH // HEADS))
            return tf.transpose(split, (0, 2, 1, 3))

        query, key, value = map(heads, tf.split(self.mixed(self.first(x)), 3, -1))
        scores = tf.matmul(query, key, transpose_b=True) / np.sqrt(WIDTH // HEADS)
        mask = tf.linalg.band_part(tf.ones((SEQUENCE, SEQUENCE)), -1, 0)
        attended = tf.matmul(tf.nn.softmax(scores + (mask - 1.0) * 1e9), value)
        joined = tf.reshape(tf.transpose(attended, (0, 2, 1, 3)), (BATCH, SEQUENCE, WIDTH))
        x += self.out(joined)
        return x + self.narrow(self.wide(self.second(x)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=120)
    steps = parser.parse_args().steps
    tf.keras.utils.set_random_seed(1)
    embedding = tf.keras.layers.Embedding(VOCABULARY, WIDTH)
    positions = tf.Variable(tf.zeros((SEQUENCE, WIDTH)))
    layers = [Block() for _ in range(LAYERS)]
    last, head = tf.keras.layers.LayerNormalization(), tf.keras.layers.Dense(VOCABULARY)
    random = np.random.default_rng(2)
    stream = random.integers(0, VOCABULARY, (steps, BATCH, SEQUENCE + 1)).astype("int32")

    def variables() -> list[tf.Variable]:
        parts = (embedding, *layers, last, head)
        return [positions, *(one for part in parts for one in part.trainable_variables)]

    made: list[tuple[tf.Variable, tf.Variable, tf.Variable]] = []
    count = tf.Variable(0.0)

    def update(gradients: list[tf.Tensor]) -> None:
        """AdamW as it is written by hand, of gradients clipped by their global norm."""
        if not made:
            for one in variables():
                made.append((one, tf.Variable(tf.zeros_like(one)), tf.Variable(tf.zeros_like(one))))
        dense = [tf.convert_to_tensor(one) for one in gradients]
        clipped, _ = tf.clip_by_global_norm(dense, 1.0)
        now = count.assign_add(1.0)
        for (variable, m, v), gradient in zip(made, clipped, strict=True):
            mean = m.assign(0.9 * m + 0.1 * gradient)
            square = v.assign(0.999 * v + 0.001 * tf.square(gradient))
            change = mean / (1 - 0.9**now) / (tf.sqrt(square / (1 - 0.999**now)) + 1e-8)
            variable.assign_sub(1e-3 * (change + 0.01 * variable))

    @tf.function
    def train_step(tokens: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            x = embedding(tokens) + positions
            for block in layers:
                x = block(x)
            logits = head(last(x))
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
            loss = tf.reduce_mean(losses)
        update(tape.gradient(loss, variables()))
        return loss

    times = []
    for tokens in stream:
        began = time.perf_counter()
        loss = float(train_step(tokens[:, :-1], tokens[:, 1:]))
        times.append(time.perf_counter() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    half = statistics.median(times[len(times) // 2 :])
    print(
        f"loss {loss:.6f}, step {half * 1e3:.1f} ms (second half), peak {peak:.0f} MB", flush=True
    )


if __name__ == "__main__":
    main()
