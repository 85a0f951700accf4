"""A user's program that holds the old values of its large variables over their updates. STEPS"""

import sys

import numpy as np
import tensorflow as tf

random = np.random.RandomState(0)
weights = [tf.Variable(random.randn(256, 256).astype("f") / 16) for _ in range(3)]  # 256 KiB each
slots = [tf.Variable(tf.zeros_like(weight)) for weight in weights]


@tf.function
def train_step(x):
    held = [weight.read_value() for weight in weights]
    with tf.GradientTape() as tape:
        tape.watch(held)
        y = x
        for value in held:
            y = tf.tanh(tf.matmul(y, value))
        loss = tf.reduce_mean(tf.square(y))
    for weight, slot, gradient in zip(weights, slots, tape.gradient(loss, held)):
        slot.assign(0.99 * slot + 0.01 * tf.square(gradient))
        weight.assign_sub(1e-3 * gradient / (tf.sqrt(slot) + 1e-4))
    return loss, held


x = tf.constant(random.randn(32, 256).astype("f"))
last = None
for _ in range(int(sys.argv[1])):
    before, (loss, last) = last, train_step(x)
    print(f"{float(loss)!r}", flush=True)
    changed = [not np.array_equal(a, b) for a, b in zip(before or (), last)]
    assert all(changed), changed
