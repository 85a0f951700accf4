"""A recommender: embeddings of users and items, crossed features, a deep part, Adagrad."""

import argparse

import numpy as np
import tensorflow as tf

USERS, ITEMS, WIDTH, BATCH = 5000, 2000, 16, 512

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=400)
steps = parser.parse_args().steps

user, item = tf.keras.Input((), dtype="int32"), tf.keras.Input((), dtype="int32")
context = tf.keras.Input((12,))
rows = [
    tf.keras.layers.Embedding(USERS, WIDTH)(user),
    tf.keras.layers.Embedding(ITEMS, WIDTH)(item),
    tf.keras.layers.Dense(WIDTH, activation="relu")(context),
]
crossed = [a * b for i, a in enumerate(rows) for b in rows[i + 1 :]]
x = tf.keras.layers.Concatenate()([*rows, *crossed])
for units in (128, 64):
    x = tf.keras.layers.BatchNormalization()(tf.keras.layers.Dense(units, activation="relu")(x))
model = tf.keras.Model([user, item, context], tf.keras.layers.Dense(1)(x))
model.compile("adagrad", tf.keras.losses.BinaryCrossentropy(from_logits=True))

random = np.random.default_rng(0)
rows_of_data = BATCH * 16
data = tf.data.Dataset.from_tensor_slices((
    (
        random.integers(0, USERS, rows_of_data).astype("int32"),
        random.integers(0, ITEMS, rows_of_data).astype("int32"),
        random.random((rows_of_data, 12), dtype="float32"),
    ),
    random.integers(0, 2, (rows_of_data, 1)).astype("float32"),
))  # fmt: skip
model.fit(
    data.repeat().batch(BATCH, drop_remainder=True), steps_per_epoch=steps, epochs=1, verbose=2
)
