"""TF1: a session is fed a tensor in the middle of the graph, without what comes before it."""

import time

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
tf.enable_resource_variables()
x = tf.placeholder(tf.float32, [None, 96], "x")
y = tf.placeholder(tf.float32, [None, 96], "y")
start = tf.glorot_uniform_initializer(seed=3)
w = tf.get_variable("w", [96, 96], initializer=start)
scale = tf.get_variable("scale", [96], initializer=tf.ones_initializer())
seen = tf.get_variable("seen", [96], initializer=tf.zeros_initializer(), trainable=False)
between = tf.multiply(tf.nn.sigmoid(x * 2.0), scale, "between")
spread = tf.sqrt(tf.reduce_mean(tf.square(between - tf.reduce_mean(between, 1, keepdims=True)), 1))
result = between
for factor in (3.0, 2.0, 1.0):
    result = tf.nn.softmax(tf.tanh(result * factor) + tf.cos(result)) * spread[:, None]
counted = tf.assign(seen, 0.9 * seen + tf.reduce_sum(tf.abs(result), 0))
loss = tf.reduce_mean(tf.square(tf.matmul(result, w) - y))
train = tf.train.MomentumOptimizer(0.5, 0.9).minimize(loss)
numbers = np.random.default_rng(2)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for i in range(160):
        rows = numbers.normal(size=(64 + i % 3, 96))
        trained, _, lies = session.run([loss, train, between], {x: rows, y: 0.1 * rows})
        whole, _ = session.run([result, counted], {x: rows})
        part, _, _ = session.run([result, counted, spread], {between: 0.5 * lies})
        time.sleep(0.08)  # compilation takes as long as some hundred steps
        if i % 32 == 31:
            print("step", i, f"{trained:.5g} {np.abs(whole).sum():.5g} {np.square(part).sum():.5g}")
    print("seen", f"{np.abs(session.run(seen)).mean():.5g}")
