"""Four threads call one step on variables of their own; a fifth evaluates beside them."""

import threading

import numpy as np
import tensorflow as tf
import watch

starts = np.random.default_rng(33).normal(0, 0.2, (4, 24, 24)).astype("float32")
shared = tf.Variable(starts.mean(0))
weights = [tf.Variable(start) for start in starts]
lock, losses = threading.Lock(), {}


@tf.function(input_signature=[tf.TensorSpec([16, 24]), tf.TensorSpec([24, 24])])
def gradient_of(x, w):
    with tf.GradientTape() as tape:
        tape.watch(w)
        h = tf.nn.gelu(x @ w) * tf.sigmoid(x @ shared)
        loss = tf.reduce_mean(tf.square(h - tf.reduce_mean(h, 1, keepdims=True) - x))
    return loss, tape.gradient(loss, w)


def work(rank):
    numbers = np.random.default_rng(rank)
    for step in range(30):
        loss, gradient = gradient_of(
            tf.constant(numbers.normal(size=(16, 24)), tf.float32), weights[rank]
        )
        weights[rank].assign_sub(0.5 * gradient)
        with lock:
            losses[rank, step] = float(loss)


watch.start(weights)
loss, gradient = gradient_of(tf.ones([16, 24]), weights[0])
watch.step(loss=loss, gradient=gradient)
threads = [threading.Thread(target=work, args=(rank,)) for rank in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
watch.step(weights)
for rank in range(4):
    print("thread", rank, *(f"{losses[rank, step]:.5f}" for step in range(5, 30, 6)))
