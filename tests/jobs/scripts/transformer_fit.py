"""A small causal transformer trained by Keras fit; the last batch of an epoch is smaller."""

from __future__ import annotations

import numpy as np
import recording
import tensorflow as tf

LAYERS, WIDTH, HEADS, SEQUENCE, VOCABULARY = 2, 256, 4, 64, 1000
BATCH, SAMPLES = 32, 32 * 7 + 20
layers = tf.keras.layers


class Positions(layers.Layer):
    """Adds a learned vector to each position."""

    def build(self, shape: tuple) -> None:
        self.table = self.add_weight(shape=(SEQUENCE, WIDTH), initializer="zeros", name="table")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return x + self.table


def encoder_block(x: tf.Tensor, seed: int) -> tf.Tensor:
    y = layers.LayerNormalization(epsilon=1e-6)(x)
    y = layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(y, y, use_causal_mask=True)
    x = layers.Add()([x, recording.Dropout(0.1, seed=seed)(y)])
    y = layers.LayerNormalization(epsilon=1e-6)(x)
    y = layers.Dense(4 * WIDTH, activation="gelu")(y)
    y = recording.Dropout(0.1, seed=seed + 1)(layers.Dense(WIDTH)(y))
    return layers.Add()([x, y])


def build() -> tf.keras.Model:
    tokens = tf.keras.Input((SEQUENCE,), dtype="int32")
    x = Positions()(layers.Embedding(VOCABULARY, WIDTH)(tokens))
    for layer in range(LAYERS):
        x = encoder_block(x, 10 * layer)
    x = layers.LayerNormalization(epsilon=1e-6)(x)
    return tf.keras.Model(tokens, layers.Dense(VOCABULARY)(x))


def main() -> None:
    options = recording.arguments(__doc__)
    tf.keras.utils.set_random_seed(recording.SEED)
    tf.keras.backend.set_floatx(options.dtype)
    model = build()
    optimizer = recording.make_optimizer(options.optimizer, 1e-3)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, jit_compile=False)
    random = np.random.default_rng(recording.SEED + 1)
    stream = random.integers(0, VOCABULARY, (SAMPLES, SEQUENCE + 1)).astype("int32")
    recording.fit(model, stream[:, :-1], stream[:, 1:], options, BATCH)


if __name__ == "__main__":
    main()
