"""A TensorFlow 1 graph and `Session.run`: a deep classifier with momentum."""

import argparse

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
tf.enable_resource_variables()
BATCH, FEATURES, WIDTH, CLASSES = 512, 64, 256, 10

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=400)
steps = parser.parse_args().steps


def dense(x, units, name):
    with tf.variable_scope(name):
        kernel = tf.get_variable("kernel", [int(x.shape[-1]), units])
        return tf.nn.bias_add(tf.matmul(x, kernel), tf.get_variable("bias", [units]))


x = tf.placeholder(tf.float32, [BATCH, FEATURES])
y = tf.placeholder(tf.int32, [BATCH])
hidden = x
for number in range(3):
    hidden = tf.nn.elu(dense(hidden, WIDTH, f"layer{number}"))
loss = tf.reduce_mean(
    tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=dense(hidden, CLASSES, "out"))
)
train = tf.train.MomentumOptimizer(0.01, 0.9).minimize(loss)

random = np.random.default_rng(0)
feed = {x: random.random((BATCH, FEATURES), dtype="float32"), y: random.integers(0, CLASSES, BATCH)}
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for number in range(steps):
        _, value = session.run([train, loss], feed)
        if number % 50 == 0 or number == steps - 1:
            print(f"step {number} loss {value:.4f}", flush=True)
