"""A language model of two LSTM layers, trained by Keras `fit`."""

import argparse

import numpy as np
import tensorflow as tf

VOCABULARY, LENGTH, WIDTH, BATCH = 500, 24, 96, 32

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=300)
steps = parser.parse_args().steps

model = tf.keras.Sequential([
    tf.keras.layers.Embedding(VOCABULARY, WIDTH),
    tf.keras.layers.LSTM(WIDTH, return_sequences=True),
    tf.keras.layers.LSTM(WIDTH, return_sequences=True),
    tf.keras.layers.Dense(VOCABULARY),
])  # fmt: skip
model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
text = np.random.default_rng(0).integers(0, VOCABULARY, (BATCH * 8, LENGTH + 1))
data = tf.data.Dataset.from_tensor_slices((text[:, :-1], text[:, 1:])).repeat()
model.fit(data.batch(BATCH, drop_remainder=True), steps_per_epoch=steps, epochs=1, verbose=2)
