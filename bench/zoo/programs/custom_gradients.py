"""Custom gradients: a straight-through rounding, a gradient that is clipped on its way back."""

import numpy as np
import tensorflow as tf
import watch

numbers = np.random.default_rng(14)
first = tf.Variable(numbers.normal(0, 0.2, (32, 64)).astype("float32"))
second = tf.Variable(numbers.normal(0, 0.2, (64, 32)).astype("float32"))


@tf.custom_gradient
def rounded(x):
    return tf.round(x * 8) / 8, lambda upstream: upstream * tf.cast(tf.abs(x) < 2, x.dtype)


@tf.custom_gradient
def calmed(x):
    def back(upstream):
        norm = tf.norm(upstream, axis=-1, keepdims=True)
        return upstream / tf.maximum(norm * 50.0, 1.0)

    return tf.identity(x), back


@tf.function
def train(x):
    with tf.GradientTape() as tape:
        h = calmed(tf.nn.leaky_relu(x @ first, 0.1))
        h = h * tf.sigmoid(h) + 0.1 * rounded(h)
        loss = tf.reduce_mean(tf.square(h @ second - x))
    a, b = tape.gradient(loss, (first, second))
    first.assign_sub(0.2 * a)
    second.assign_sub(0.2 * b)
    return loss, tf.norm(a)


watch.start([first, second])
for step in range(36):
    loss, norm = train(tf.constant(numbers.normal(size=(32, 32)), tf.float32))
    watch.step([first, second], loss=loss, norm=norm)
    if step % 9 == 8:
        print("step", step, f"{float(loss):.5f} {float(norm):.5f}")
