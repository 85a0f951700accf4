"""TF1, reference variables, unknown batch: batch normalization, moving averages, `tf.cond`."""

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
tf.disable_resource_variables()
tf.set_random_seed(1)
x = tf.placeholder(tf.float32, [None, 256])
y = tf.placeholder(tf.float32, [None, 64])
training = tf.placeholder(tf.bool, [])
start = tf.glorot_uniform_initializer(seed=3)
w1 = tf.get_variable("w1", [256, 256], initializer=start)
w2 = tf.get_variable("w2", [256, 64], initializer=start)
mean = tf.get_variable("mean", [256], initializer=tf.zeros_initializer(), trainable=False)
spread = tf.get_variable("spread", [256], initializer=tf.ones_initializer(), trainable=False)
calls = tf.get_variable("calls", [], tf.int32, tf.zeros_initializer(), trainable=False)
hidden = tf.matmul(x, w1)
of_batch, variance = tf.nn.moments(hidden, [0])


def moved():
    updates = [
        tf.assign_sub(mean, 0.1 * (mean - of_batch), use_locking=True),
        tf.assign_sub(spread, 0.1 * (spread - variance)),
    ]
    with tf.control_dependencies(updates):
        return tf.identity(of_batch), tf.identity(variance)


shift, scale = tf.cond(training, moved, lambda: (tf.identity(mean), tf.identity(spread)))
normal = tf.nn.relu((hidden - shift) * tf.rsqrt(scale + 1e-3))
loss = tf.reduce_mean(tf.square(tf.nn.softmax(tf.matmul(normal, w2)) - y))
train = tf.train.MomentumOptimizer(0.5, 0.9).minimize(loss, var_list=[w1, w2])
average = tf.train.ExponentialMovingAverage(0.9)
with tf.control_dependencies([train]):
    step = tf.group(average.apply([w1, w2]), tf.assign_add(calls, 1, use_locking=True))
kept = tf.reduce_mean(tf.abs(average.average(w1)))
numbers = np.random.default_rng(2)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for i in range(24):
        fed = {
            x: numbers.normal(size=(64 + i % 3, 256)),
            y: numbers.random((64 + i % 3, 64)) / 32,
            training: i % 6 != 5,
        }
        found, _ = session.run([loss, step], fed)
        if i % 4 == 3:
            print("step", i, f"{found:.4g}")
    print("calls", session.run(calls), f"{session.run(kept):.4g}")
    print("mean", f"{np.abs(session.run(mean)).mean():.4g}", f"{session.run(spread).mean():.4g}")
