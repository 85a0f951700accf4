"""A step that calls Python amid its operations, which can tell in whose thread it is, and looks at
what belongs to the thread that called the step."""

import threading

import numpy as np
import tensorflow as tf

of_thread = threading.local()
of_thread.name = "the caller's"
seen = set()


def asked(value):
    seen.add((threading.current_thread() is threading.main_thread(), hasattr(of_thread, "name")))
    return value * np.float32(0.5)


weights = tf.Variable(tf.random.stateless_normal([64, 64], [1, 2]) / 8)
moment = tf.Variable(tf.zeros([64, 64]))


@tf.function
def step(x):
    with tf.GradientTape() as tape:
        hidden = tf.nn.gelu(x @ weights)
        hidden = (hidden - tf.reduce_mean(hidden, -1, keepdims=True)) * tf.sigmoid(hidden)
        loss = tf.reduce_mean(tf.square(hidden - x))
    gradient = tf.numpy_function(asked, [tape.gradient(loss, weights)], tf.float32)
    gradient = tf.ensure_shape(gradient, [64, 64])
    moment.assign(0.9 * moment + 0.1 * gradient)
    weights.assign_sub(moment / (tf.sqrt(tf.reduce_mean(tf.square(moment))) + 1.0))
    return loss


numbers = np.random.default_rng(2)
for i in range(60):
    loss = step(tf.constant(numbers.normal(size=(128, 64)).astype("float32")))
    if i % 10 == 0:
        print("step", i, f"{float(loss):.4g}")
print(sorted(seen))
