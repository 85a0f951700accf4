"""TensorFlow 1: resource variables, MomentumOptimizer with clipping, several fetches a run."""

import numpy as np
import tensorflow.compat.v1 as tf
import watch

tf.disable_v2_behavior()
tf.enable_resource_variables()
numbers = np.random.default_rng(41)
tf.set_random_seed(41)
x = tf.placeholder(tf.float32, [None, 20], name="x")
y = tf.placeholder(tf.int32, [None], name="y")
with tf.variable_scope("net", initializer=tf.glorot_uniform_initializer(seed=1)):
    w1, b1 = (
        tf.get_variable("w1", [20, 48]),
        tf.get_variable("b1", [48], initializer=tf.zeros_initializer()),
    )
    w2 = tf.get_variable("w2", [48, 5])
h = tf.nn.dropout(tf.nn.elu(tf.matmul(x, w1) + b1), rate=0.1, seed=3)
logits = tf.matmul(h, w2)
loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
steps = tf.train.get_or_create_global_step()
rate = tf.train.exponential_decay(0.1, steps, 10, 0.8)
optimizer = tf.train.MomentumOptimizer(rate, 0.9, use_nesterov=True)
pairs = optimizer.compute_gradients(loss)
clipped, norm = tf.clip_by_global_norm([gradient for gradient, _ in pairs], 0.5)
train = optimizer.apply_gradients(zip(clipped, [v for _, v in pairs]), global_step=steps)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for step in range(32):
        feed = {x: numbers.normal(size=(16, 20)), y: numbers.integers(0, 5, 16)}
        _, value, size = session.run([train, loss, norm], feed)
        watch.step(loss=value, norm=size)
        if step % 8 == 7:
            print("step", step, f"{value:.5f} {size:.5f}")
    print(*(f"{np.abs(one).mean():.5f}" for one in session.run(tf.global_variables()) if one.ndim))
