"""SIGTERM in the middle of a step, sent from inside it: once caught, a second time it ends all."""

import os
import signal

import numpy as np
import tensorflow as tf
import watch

numbers = np.random.default_rng(34)
weight = tf.Variable(numbers.normal(0, 0.2, (28, 28)).astype("float32"))
caught = []
signal.signal(signal.SIGTERM, lambda number, _: caught.append(number))


def maybe(step):
    if step in (12, 24):
        os.kill(os.getpid(), signal.SIGTERM)
    return step


@tf.function(input_signature=[tf.TensorSpec([16, 28]), tf.TensorSpec([], tf.int32)])
def train(x, step):
    with tf.GradientTape() as tape:
        h = tf.nn.selu(x @ weight)
        h = h - tf.reduce_max(h, -1, keepdims=True)
        loss = tf.reduce_mean(tf.square(tf.exp(h) - tf.abs(x)))
    gradient = tape.gradient(loss, weight)
    with tf.control_dependencies([tf.numpy_function(maybe, [step], tf.int32)]):
        weight.assign_sub(0.05 * gradient)
    return loss


watch.start(weight)
for step in range(40):
    loss = train(tf.constant(numbers.normal(size=(16, 28)), tf.float32), tf.constant(step))
    watch.step(weight, loss=loss)
    if step % 4 == 3:
        print("step", step, f"{float(loss):.5f}", len(caught), flush=True)
    if caught:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
