"""A user's program whose first steps are slow, as where data is not cached yet. STEPS [SLOW]

Without SLOW no step waits for anything."""

import sys
import time

import numpy as np
import tensorflow as tf

random = np.random.RandomState(0)
weights = [tf.Variable((random.randn(128, 128) / 12).astype("f")) for _ in range(3)]
slots = [tf.Variable(tf.zeros_like(w)) for w in weights]
x, y = (
    tf.constant(random.randn(64, 128).astype("f")),
    tf.constant(random.randn(64, 128).astype("f")),
)


@tf.function
def train_step():
    with tf.GradientTape() as tape:
        h = x
        for w in weights:
            h = tf.nn.gelu(tf.matmul(h, w)) + h
        loss = tf.reduce_mean(tf.square(h - y))
    for w, s, g in zip(weights, slots, tape.gradient(loss, weights)):
        s.assign(0.999 * s + 0.001 * g * g)
        w.assign_sub(1e-3 * g / (tf.sqrt(s) + 1e-6))
    return loss


steps, slow = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None
for i in range(steps):
    print(f"{float(train_step())!r}", flush=True)
    if slow is not None:
        time.sleep(0.03 if i < slow else 0.005)
