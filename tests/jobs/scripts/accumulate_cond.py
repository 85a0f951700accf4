"""Gradient accumulation: every fourth step applies the sum of gradients, under tf.cond."""

from __future__ import annotations

import numpy as np
import recording
import tensorflow as tf

BATCH, FEATURES, WIDTH, BLOCKS, CLASSES, EVERY = 2048, 128, 512, 2, 10, 4


def layer_norm(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-5)


def make_weights(dtype: str) -> list[tf.Variable]:
    """First kernel; gamma, beta, kernel and bias of each block; last kernel."""
    random = np.random.default_rng(recording.SEED)

    def dense(inputs: int, outputs: int) -> np.ndarray:
        return random.standard_normal((inputs, outputs)) / np.sqrt(inputs)

    arrays = [dense(FEATURES, WIDTH)]
    for _ in range(BLOCKS):
        arrays += [np.ones(WIDTH), np.zeros(WIDTH), dense(WIDTH, WIDTH), np.zeros(WIDTH)]
    arrays.append(dense(WIDTH, CLASSES))
    return [tf.Variable(a.astype("float32").astype(dtype)) for a in arrays]


def forward(x: tf.Tensor, weights: list[tf.Variable]) -> tf.Tensor:
    h = tf.matmul(x, weights[0])
    for block in range(BLOCKS):
        gamma, beta, kernel, bias = weights[1 + 4 * block : 5 + 4 * block]
        h = h + tf.nn.gelu(tf.matmul(layer_norm(h, gamma, beta), kernel) + bias)
    return tf.matmul(h, weights[-1])


def main() -> None:
    options = recording.arguments(__doc__)
    recorder = recording.Recorder(options.out)
    tf.keras.backend.set_floatx(options.dtype)
    weights = make_weights(options.dtype)
    if options.checkpoint:
        recording.restore(options.checkpoint, weights)
    sums = [tf.Variable(tf.zeros_like(w), trainable=False) for w in weights]
    optimizer = recording.make_optimizer(options.optimizer, 1e-3)
    optimizer.build(weights)
    recorder.save("initial.npz", recording.values("weight", weights))
    random = np.random.default_rng(recording.SEED + 1)
    features = random.standard_normal((BATCH, FEATURES)).astype("float32")
    x = tf.constant(features.astype(options.dtype))
    y = tf.constant(random.integers(0, CLASSES, BATCH).astype("int32"))

    @tf.function
    def train_step(x: tf.Tensor, y: tf.Tensor, step: tf.Tensor) -> tuple[tf.Tensor, list]:
        with tf.GradientTape() as tape:
            logits = forward(x, weights)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, weights)
        for total, gradient in zip(sums, gradients, strict=True):
            total.assign_add(gradient / EVERY)

        def apply() -> tf.Tensor:
            optimizer.apply_gradients(zip([tf.identity(s) for s in sums], weights, strict=True))
            for total in sums:
                total.assign(tf.zeros_like(total))
            return tf.constant(True)

        tf.cond(tf.equal(step % EVERY, 0), apply, lambda: tf.constant(False))
        return loss, gradients

    state = [*weights, *sums, *recording.slots(optimizer)]
    recording.take_back(options, state, lambda: train_step(x, y, tf.constant(0)))
    for step in range(options.steps):
        recorder.begin()
        loss, gradients = train_step(x, y, tf.constant(step))
        if recorder.end(float(loss)) == 1:
            after = recording.values("variable", weights) | recording.values("sum", sums)
            after |= recording.values("slot", recording.slots(optimizer))
            recorder.save("step1.npz", after | recording.values("gradient", gradients))
    recorder.finish(recording.update_rule(optimizer))


if __name__ == "__main__":
    main()
