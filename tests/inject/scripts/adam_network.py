"""A network with layer normalization and a hand-written Adam: what some of these scripts train."""

import numpy as np
import tensorflow as tf

random = np.random.RandomState(0)


def matrix(*shape):
    return tf.Variable((random.randn(*shape) / np.sqrt(shape[0])).astype("f"))


w1, w2, w3 = matrix(64, 128), matrix(128, 128), matrix(128, 10)
b1, b2, gain = tf.Variable(tf.zeros([128])), tf.Variable(tf.zeros([128])), tf.Variable(tf.ones(128))
weights = [w1, b1, gain, w2, b2, w3]
first = [tf.Variable(tf.zeros_like(w)) for w in weights]
second = [tf.Variable(tf.zeros_like(w)) for w in weights]
time_step = tf.Variable(0.0)


def model(x):
    x = tf.nn.gelu(tf.matmul(x, w1) + b1)
    mean = tf.reduce_mean(x, -1, keepdims=True)
    spread = tf.reduce_mean(tf.square(x - mean), -1, keepdims=True)
    x = (x - mean) * tf.math.rsqrt(spread + 1e-6) * gain
    return tf.matmul(tf.nn.gelu(tf.matmul(x, w2) + b2), w3)


def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x))
        loss = tf.reduce_mean(loss)
    time_step.assign_add(1.0)
    for w, m, s, g in zip(weights, first, second, tape.gradient(loss, weights)):
        m.assign(0.9 * m + 0.1 * g)
        s.assign(0.999 * s + 0.001 * g * g)
        scale = tf.sqrt(s / (1 - 0.999**time_step)) + 1e-8
        w.assign_sub(1e-3 * (m / (1 - 0.9**time_step)) / scale)
    return loss
