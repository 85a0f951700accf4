"""A short training run: dense, layer normalisation, GELU, SGD. Prints each loss exactly."""

import sys

import numpy as np
import tensorflow as tf

random = np.random.default_rng(0)
x = tf.constant(random.standard_normal((256, 64)).astype("float32"))
y = tf.constant(random.standard_normal((256, 8)).astype("float32"))
first = tf.Variable(random.standard_normal((64, 256)).astype("float32") / 8)
gamma, beta = tf.Variable(tf.ones([256])), tf.Variable(tf.zeros([256]))
last = tf.Variable(random.standard_normal((256, 8)).astype("float32") / 16)
weights = [first, gamma, beta, last]


@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        hidden = tf.matmul(x, first)
        mean, variance = tf.nn.moments(hidden, [-1], keepdims=True)
        hidden = tf.nn.batch_normalization(hidden, mean, variance, beta, gamma, 1e-5)
        loss = tf.reduce_mean(tf.square(tf.matmul(tf.nn.gelu(hidden), last) - y))
    for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
        weight.assign_sub(0.05 * gradient)
    return loss


for _ in range(int(sys.argv[1])):
    print(repr(float(step(x, y))))
