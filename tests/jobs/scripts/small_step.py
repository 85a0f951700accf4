"""The smallest step with something to stitch: one hidden layer with LayerNorm and GELU."""

from __future__ import annotations

import numpy as np
import recording
import tensorflow as tf

BATCH, FEATURES, WIDTH, CLASSES = 2048, 64, 512, 10  # a hidden array is 4 MiB


def main() -> None:
    options = recording.arguments(__doc__)
    random = np.random.default_rng(recording.SEED)
    first = tf.Variable(random.standard_normal((FEATURES, WIDTH)).astype("float32") / 8)
    gamma, beta = tf.Variable(tf.ones(WIDTH)), tf.Variable(tf.zeros(WIDTH))
    last = tf.Variable(random.standard_normal((WIDTH, CLASSES)).astype("float32") / 32)
    weights = [first, gamma, beta, last]
    optimizer = recording.make_optimizer(options.optimizer, 1e-4)
    optimizer.build(weights)

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            h = tf.matmul(x, first)
            mean, variance = tf.nn.moments(h, [-1], keepdims=True)
            h = tf.nn.gelu(tf.nn.batch_normalization(h, mean, variance, beta, gamma, 1e-5))
            logits = tf.matmul(h, last)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
            loss = tf.reduce_mean(losses)
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    recorder = recording.Recorder(options.out, options.hold, options.until)
    x = tf.constant(random.standard_normal((BATCH, FEATURES)).astype("float32"))
    y = tf.constant(random.integers(0, CLASSES, BATCH).astype("int32"))
    recorder.save("initial.npz", recording.values("variable", weights))
    for _ in range(options.steps):
        recorder.begin()
        recorder.end(float(step(x, y)))
    recorder.finish({})


if __name__ == "__main__":
    main()
