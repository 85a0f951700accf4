"""Contrastive pairs: one input has twice as many rows as the other, both unknown."""

import numpy as np
import tensorflow as tf

first = tf.Variable(tf.random.stateless_normal([256, 256], [1, 2]) / 16)
moment = tf.Variable(tf.zeros([256, 256]))


@tf.function(input_signature=[tf.TensorSpec([None, 256]), tf.TensorSpec([None])])
def step(pairs, same):
    with tf.GradientTape() as tape:
        hidden = tf.nn.gelu(pairs @ first)
        hidden = tf.reshape(hidden, [-1, 2, 256])
        left, right = hidden[:, 0], hidden[:, 1]
        apart = tf.reduce_sum(tf.square(left - right), -1) / 256
        losses = same * apart + (1 - same) * tf.square(tf.nn.relu(1 - tf.sqrt(apart + 1e-6)))
        loss = tf.reduce_mean(losses)
    gradient = tape.gradient(loss, first)
    moment.assign(0.9 * moment + 0.1 * gradient)
    first.assign_sub(2.0 * moment / (1.0 + tf.abs(moment)))
    return loss


numbers = np.random.default_rng(2)
for i in range(24):
    rows = 64 + 8 * (i % 2)
    pairs = tf.constant(numbers.normal(size=(2 * rows, 256)), tf.float32)
    loss = step(pairs, tf.constant(numbers.integers(0, 2, rows), tf.float32))
    print("step", i, f"{float(loss):.4g}")
