"""The process forks in mid-run: the child computes without TensorFlow, both go on and end well."""

import os

import numpy as np
import tensorflow as tf
import watch

numbers = np.random.default_rng(32)
weight = tf.Variable(numbers.normal(0, 0.2, (32, 32)).astype("float32"))


@tf.function
def train(x):
    with tf.GradientTape() as tape:
        h = tf.nn.softmax(tf.nn.gelu(x @ weight) + x)
        loss = tf.reduce_mean(tf.square(h - tf.nn.softmax(2.0 * x)))
    gradient = tape.gradient(loss, weight)
    weight.assign_sub(20.0 * gradient / (1.0 + tf.norm(gradient)))
    return loss


watch.start(weight)
for step in range(40):
    loss = train(tf.constant(numbers.normal(size=(16, 32)), tf.float32))
    watch.step(weight, loss=loss)
    if step % 10 == 9:
        total = weight.numpy().astype("float64").sum()
        print("step", step, f"{float(loss):.6f}", flush=True)
        child = os.fork()
        if child == 0:
            os._exit(int(np.isfinite(total)) * 7)
        print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
