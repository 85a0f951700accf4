"""A LayerNorm MLP trained by Keras fit with jit_compile=True: the whole step under XLA."""

from __future__ import annotations

import numpy as np
import recording
import tensorflow as tf

FEATURES, WIDTH, BLOCKS, CLASSES, BATCH, SAMPLES = 128, 512, 2, 10, 2048, 2048 * 4
layers = tf.keras.layers


def build() -> tf.keras.Model:
    features = tf.keras.Input((FEATURES,))
    x = layers.Dense(WIDTH)(features)
    for _ in range(BLOCKS):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.Dense(WIDTH, activation="gelu")(y)])
    return tf.keras.Model(features, layers.Dense(CLASSES)(x))


def main() -> None:
    options = recording.arguments(__doc__)
    tf.keras.utils.set_random_seed(recording.SEED)
    tf.keras.backend.set_floatx(options.dtype)
    model = build()
    optimizer = recording.make_optimizer(options.optimizer, 1e-3)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, jit_compile=True)
    random = np.random.default_rng(recording.SEED + 1)
    x = random.standard_normal((SAMPLES, FEATURES)).astype("float32").astype(options.dtype)
    y = random.integers(0, CLASSES, SAMPLES).astype("int32")
    recording.fit(model, x, y, options, BATCH)


if __name__ == "__main__":
    main()
