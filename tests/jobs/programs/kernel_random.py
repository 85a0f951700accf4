"""Dropout by random operations with seeds of their own: their state is in the kernels."""

import numpy as np
import tensorflow as tf

tf.random.set_seed(1)
first = tf.Variable(tf.random.stateless_normal([256, 512], [1, 2]) / 16)
second = tf.Variable(tf.random.stateless_normal([512, 64], [3, 4]) / 16)


@tf.function(input_signature=[tf.TensorSpec([None, 256]), tf.TensorSpec([None, 64])])
def step(x, y):
    with tf.GradientTape() as tape:
        hidden = tf.nn.gelu(x @ first)
        drawn = tf.random.uniform(tf.shape(hidden), seed=5)
        hidden = hidden * tf.cast(drawn >= 0.3, tf.float32) / 0.7
        noise = tf.random.normal(tf.shape(y), stddev=0.1, seed=6)
        loss = tf.reduce_mean(tf.square(tf.nn.tanh(hidden @ second) - y - noise))
    gradients = tape.gradient(loss, [first, second])
    for variable, gradient in zip([first, second], gradients):
        variable.assign_sub(0.5 * gradient)
    return loss, drawn[0, 0], noise[0, 0]


numbers = np.random.default_rng(2)
x = tf.constant(numbers.normal(size=(128, 256)), tf.float32)
y = tf.constant(numbers.normal(size=(128, 64)) / 4, tf.float32)
for i in range(24):
    loss, drawn, noise = step(x, y)
    print("step", i, f"{float(loss):.4g} {float(drawn):.7f} {float(noise):.6f}")
