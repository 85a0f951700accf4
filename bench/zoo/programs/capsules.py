"""Capsules with dynamic routing: squash, softmax over routes, einsum, margin loss; Keras fit."""

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import keras
import numpy as np
import tensorflow as tf
import watch

keras.utils.set_random_seed(9)


class Capsules(keras.layers.Layer):
    def __init__(self, count, width, rounds=3):
        super().__init__()
        self.count, self.width, self.rounds = count, width, rounds

    def build(self, shape):
        self.w = self.add_weight(
            shape=(shape[1], self.count, shape[2], self.width), initializer="glorot_uniform"
        )

    def call(self, u):
        votes = tf.einsum("bid,ijdk->bijk", u, self.w)
        logits = tf.zeros_like(votes[..., 0])
        fixed = tf.stop_gradient(votes)
        for turn in range(self.rounds):
            c = tf.nn.softmax(logits, axis=2)
            used = votes if turn == self.rounds - 1 else fixed
            s = tf.reduce_sum(c[..., None] * used, 1)
            n = tf.reduce_sum(s * s, -1, keepdims=True)
            v = n / (1 + n) * s / tf.sqrt(n + 1e-7)
            if turn < self.rounds - 1:
                logits += tf.reduce_sum(fixed * v[:, None], -1)
        return v


inputs = keras.Input((16, 16, 1))
x = keras.layers.Conv2D(32, 5, activation="relu")(inputs)
x = keras.layers.Conv2D(32, 5, strides=2)(x)
x = keras.layers.Reshape((-1, 8))(x)
x = Capsules(5, 12)(x)
outputs = keras.layers.Lambda(lambda v: tf.sqrt(tf.reduce_sum(v * v, -1) + 1e-7))(x)
model = keras.Model(inputs, outputs)


def margin(y, p):
    return tf.reduce_mean(
        tf.reduce_sum(
            y * tf.maximum(0.0, 0.9 - p) ** 2 + 0.5 * (1 - y) * tf.maximum(0.0, p - 0.1) ** 2, 1
        )
    )


model.compile(keras.optimizers.AdamW(1e-3, weight_decay=1e-3), margin, metrics=["accuracy"])
numbers = np.random.default_rng(2)
images = numbers.normal(0, 1, (512, 16, 16, 1)).astype("float32")
labels = numbers.integers(0, 5, 512)
images[np.arange(512), labels * 3] += 2
history = model.fit(
    images,
    np.eye(5, dtype="float32")[labels],
    batch_size=32,
    epochs=4,
    verbose=0,
    callbacks=[watch.callback(keras)],
)
print([f"{v:.3f}" for v in history.history["loss"]])
