"""`py_function` and `numpy_function` in the middle of a step, one of them with a gradient."""

import numpy as np
import tensorflow as tf
import watch

numbers = np.random.default_rng(20)
weight = tf.Variable(numbers.normal(0, 0.2, (40, 40)).astype("float32"))
bias = tf.Variable(tf.zeros([40]))
seen = []


def noted(norm):
    seen.append(round(float(norm), 4))
    return np.float32(1.0 if norm < 20 else 0.5)


@tf.function(input_signature=[tf.TensorSpec([16, 40])])
def train(x):
    with tf.GradientTape() as tape:
        h = tf.nn.softsign(x @ weight + bias)
        h = tf.py_function(lambda one: one * tf.cos(one), [h], tf.float32)
        h.set_shape([16, 40])
        loss = tf.reduce_mean(tf.square(tf.exp(-h) - x))
    gradients = tape.gradient(loss, [weight, bias])
    scale = tf.numpy_function(noted, [tf.linalg.global_norm(gradients)], tf.float32)
    weight.assign_sub(0.1 * scale * gradients[0])
    bias.assign_sub(0.1 * scale * gradients[1])
    return loss


watch.start(weight)
for step in range(24):
    loss = train(tf.constant(numbers.normal(size=(16, 40)), tf.float32))
    watch.step(weight, bias, loss=loss)
    if step % 6 == 5:
        print("step", step, f"{float(loss):.5f}", len(seen), *(f"{norm:.3f}" for norm in seen[-2:]))
