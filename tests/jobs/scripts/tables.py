"""Tables that are looked up, with momentum written out: each update is dense, and TensorFlow holds
one table's at a time."""

from __future__ import annotations

import os

import numpy as np
import tensorflow as tf

TABLES, ROWS, WIDTH, BATCH = 6, 60_000, 32, 64
STEPS = int(os.environ.get("STEPS", "60"))

generator = np.random.default_rng(0)
tables = [tf.Variable(tf.zeros((ROWS, WIDTH)) + 0.1) for _ in range(TABLES)]
slots = [tf.Variable(tf.zeros((ROWS, WIDTH))) for _ in range(TABLES)]
layer = tf.Variable(generator.normal(0, 0.1, (TABLES * WIDTH, 1)).astype(np.float32))


@tf.function
def step(rows: tf.Tensor, wanted: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
        found = [tf.gather(table, rows[:, number]) for number, table in enumerate(tables)]
        answer = tf.tanh(tf.concat(found, 1)) @ layer
        loss = tf.reduce_mean(tf.math.squared_difference(answer, wanted))
    gradients = tape.gradient(loss, tables)
    for table, slot, gradient in zip(tables, slots, gradients, strict=True):
        dense = tf.convert_to_tensor(gradient)
        slot.assign_add((dense - slot) * 0.1)
        table.assign_sub(0.01 * slot / (tf.sqrt(tf.square(dense)) + 1.0))
    return loss


rows = tf.constant(generator.integers(0, ROWS, (BATCH, TABLES)), tf.int32)
wanted = tf.constant(generator.normal(size=(BATCH, 1)).astype(np.float32))
for _ in range(STEPS):
    last = step(rows, wanted)
print(f"loss {float(last):.6f}")
