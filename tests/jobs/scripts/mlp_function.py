"""A residual MLP with LayerNorm, GELU and dropout: tf.function, GradientTape, Keras optimizer."""

from __future__ import annotations

import numpy as np
import recording
import tensorflow as tf

BATCH, FEATURES, WIDTH, BLOCKS, CLASSES = 2048, 256, 768, 3, 10


class Block(tf.Module):
    """x + dropout(gelu(dense(layer_norm(x))))"""

    def __init__(self, random: np.random.Generator, width: int, dtype: str) -> None:
        super().__init__()
        scale = 1 / np.sqrt(width)
        self.gamma = tf.Variable(np.ones(width), dtype=dtype, name="gamma")
        self.beta = tf.Variable(np.zeros(width), dtype=dtype, name="beta")
        kernel = (random.standard_normal((width, width)) * scale).astype("float32")
        self.kernel = tf.Variable(kernel.astype(dtype), name="kernel")
        self.bias = tf.Variable(np.zeros(width), dtype=dtype, name="bias")

    def __call__(self, x: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        y = tf.nn.batch_normalization(x, mean, variance, self.beta, self.gamma, 1e-5)
        y = tf.nn.gelu(tf.nn.bias_add(tf.matmul(y, self.kernel), self.bias))
        return x + recording.dropout(y, 0.1, seed)


class Model(tf.Module):
    def __init__(self, dtype: str) -> None:
        super().__init__()
        random = np.random.default_rng(recording.SEED)
        first = random.standard_normal((FEATURES, WIDTH)).astype("float32") / np.sqrt(FEATURES)
        last = random.standard_normal((WIDTH, CLASSES)).astype("float32") / np.sqrt(WIDTH)
        self.first = tf.Variable(first.astype("float32").astype(dtype), name="first")
        self.blocks = [Block(random, WIDTH, dtype) for _ in range(BLOCKS)]
        self.last = tf.Variable(last.astype("float32").astype(dtype), name="last")

    def __call__(self, x: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        x = tf.matmul(x, self.first)
        for position, block in enumerate(self.blocks):
            x = block(x, tf.stack([step, position]))
        return tf.matmul(x, self.last)


def main() -> None:
    options = recording.arguments(__doc__)
    recorder = recording.Recorder(options.out)
    model = Model(options.dtype)
    weights = list(model.trainable_variables)
    if options.checkpoint:
        recording.restore(options.checkpoint, weights)
    tf.keras.backend.set_floatx(options.dtype)
    optimizer = recording.make_optimizer(options.optimizer, 1e-3)
    optimizer.build(weights)
    recorder.save("initial.npz", recording.values("weight", weights))

    random = np.random.default_rng(recording.SEED + 1)
    features = random.standard_normal((BATCH, FEATURES)).astype("float32")
    x = tf.constant(features.astype(options.dtype))
    y = tf.constant(random.integers(0, CLASSES, BATCH).astype("int32"))

    @tf.function(jit_compile=options.jit or None)
    def train_step(x: tf.Tensor, y: tf.Tensor, step: tf.Tensor) -> tuple[tf.Tensor, list]:
        with tf.GradientTape() as tape:
            logits = model(x, step)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, weights)
        optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return loss, gradients

    state = [*weights, *recording.slots(optimizer)]
    recording.take_back(options, state, lambda: train_step(x, y, tf.constant(0)))
    for step in range(options.steps):
        recorder.begin()
        loss, gradients = train_step(x, y, tf.constant(step))
        if recorder.end(float(loss)) == 1:
            after = recording.values("variable", weights)
            after |= recording.values("slot", recording.slots(optimizer))
            recorder.save("step1.npz", after | recording.values("gradient", gradients))
    recorder.finish(recording.update_rule(optimizer))


if __name__ == "__main__":
    main()
