"""A convolutional network with batch normalisation trained by Keras fit."""

from __future__ import annotations

import numpy as np
import recording
import tensorflow as tf

SIZE, CHANNELS, CLASSES, BATCH, SAMPLES = 32, (32, 64, 64), 10, 64, 64 * 6
layers = tf.keras.layers


def build(decisions: recording.Decisions) -> tf.keras.Model:
    image = tf.keras.Input((SIZE, SIZE, 3))
    x = image
    for channels in CHANNELS:
        x = layers.Conv2D(channels, 3, padding="same", use_bias=False)(x)
        x = decisions.relu()(layers.BatchNormalization()(x))
        x = layers.Conv2D(channels, 3, strides=2, padding="same", use_bias=False)(x)
        x = decisions.relu()(layers.BatchNormalization()(x))
    x = layers.GlobalAveragePooling2D()(x)
    return tf.keras.Model(image, layers.Dense(CLASSES)(x))


def main() -> None:
    options = recording.arguments(__doc__)
    tf.keras.utils.set_random_seed(recording.SEED)
    tf.keras.backend.set_floatx(options.dtype)
    decisions = recording.Decisions(options)
    model = build(decisions)
    optimizer = recording.make_optimizer(options.optimizer, 1e-4)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, jit_compile=False)
    random = np.random.default_rng(recording.SEED + 1)
    images = random.standard_normal((SAMPLES, SIZE, SIZE, 3)).astype("float32")
    labels = random.integers(0, CLASSES, SAMPLES).astype("int32")
    recording.fit(model, images.astype(options.dtype), labels, options, BATCH, decisions)


if __name__ == "__main__":
    main()
