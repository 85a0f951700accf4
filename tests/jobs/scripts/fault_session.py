"""A TensorFlow 1 session with momentum and moving averages, and random numbers."""

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
tf.set_random_seed(5)
x = tf.placeholder(tf.float32, [None, 128])
w = tf.get_variable("w", initializer=np.random.RandomState(0).randn(128, 128).astype(np.float32))
mean = tf.get_variable("mean", [128], initializer=tf.zeros_initializer(), trainable=False)
noise = tf.random.uniform([128], seed=11)
h = tf.nn.relu(tf.matmul(x + 0.1 * noise, w))
mu = tf.reduce_mean(h, 0)
loss = tf.reduce_mean(tf.square(tf.nn.softmax(h - mu) - x))
with tf.control_dependencies([tf.assign_sub(mean, 0.1 * (mean - mu))]):
    train = tf.train.MomentumOptimizer(0.05, 0.9).minimize(loss)
data = np.random.RandomState(1).rand(64, 128).astype(np.float32)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for i in range(240):
        value, _, drawn = session.run([loss, train, noise], {x: data})
        print("step", i, f"{value:.7g}", f"{drawn.sum():.8g}")
    print("variables", *(f"{np.abs(v).sum():.7g}" for v in session.run([w, mean])))
