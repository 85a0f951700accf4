"""A convolutional network with batch normalization, trained by Keras `fit`."""

import argparse

import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=400)
steps = parser.parse_args().steps

random = np.random.default_rng(0)
images = random.random((1024, 32, 32, 3), dtype="float32")
labels = random.integers(0, 10, 1024)
data = tf.data.Dataset.from_tensor_slices((images, labels)).repeat()
data = data.batch(32, drop_remainder=True).prefetch(2)


def block(x, filters):
    x = tf.keras.layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
    x = tf.keras.layers.BatchNormalization()(x)
    return tf.keras.layers.Activation("relu")(x)


inputs = tf.keras.Input((32, 32, 3))
x = block(inputs, 32)
x = tf.keras.layers.MaxPooling2D()(x)
x = block(x, 64)
x = tf.keras.layers.GlobalAveragePooling2D()(x)
model = tf.keras.Model(inputs, tf.keras.layers.Dense(10)(x))
model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(data, steps_per_epoch=steps, epochs=1, verbose=2)
