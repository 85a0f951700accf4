"""A small transformer encoder in a loop of its own: attention, layer normalization, GELU."""

import argparse

import numpy as np
import tensorflow as tf

WIDTH, HEADS, LENGTH, BATCH, CLASSES = 128, 4, 64, 16, 8

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=400)
steps = parser.parse_args().steps


def layer(x):
    attention = tf.keras.layers.MultiHeadAttention(HEADS, WIDTH // HEADS, dropout=0.1)
    x = tf.keras.layers.LayerNormalization()(x + attention(x, x))
    y = tf.keras.layers.Dense(4 * WIDTH, activation="gelu")(x)
    return tf.keras.layers.LayerNormalization()(x + tf.keras.layers.Dense(WIDTH)(y))


inputs = tf.keras.Input((LENGTH, WIDTH))
x = tf.keras.layers.GlobalAveragePooling1D()(layer(layer(inputs)))
model = tf.keras.Model(inputs, tf.keras.layers.Dense(CLASSES)(x))
optimizer = tf.keras.optimizers.Adam(1e-3)
loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_of(y, model(x, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


random = np.random.default_rng(0)
x = tf.constant(random.standard_normal((BATCH, LENGTH, WIDTH), dtype="float32"))
y = tf.constant(random.integers(0, CLASSES, BATCH))
for number in range(steps):
    loss = step(x, y)
    if number % 50 == 0 or number == steps - 1:
        print(f"step {number} loss {float(loss):.4f}", flush=True)
