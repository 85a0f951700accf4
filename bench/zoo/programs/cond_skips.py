"""`tf.cond`: a batch whose gradient is too large is left out, its norm is counted all the same."""

import numpy as np
import tensorflow as tf
import watch

numbers = np.random.default_rng(22)
weight = tf.Variable(numbers.normal(0, 0.2, (32, 32)).astype("float32"))
moment = tf.Variable(tf.zeros([32, 32]))
skipped = tf.Variable(0, dtype=tf.int32)


@tf.function(input_signature=[tf.TensorSpec([None, 32])])
def train(x):
    with tf.GradientTape() as tape:
        h = tf.nn.elu(x @ weight)
        loss = tf.reduce_mean(tf.reduce_logsumexp(h, -1) - tf.reduce_sum(h * tf.nn.softmax(x), -1))
    gradient = tape.gradient(loss, weight)
    norm = tf.norm(gradient)

    def update():
        moment.assign(0.9 * moment + 0.1 * gradient / (norm + 1e-6))
        weight.assign_sub(0.05 * moment)
        return tf.reduce_sum(tf.abs(moment))

    def skip():
        skipped.assign_add(1)
        return tf.constant(0.0)

    moved = tf.cond(norm < 3.0, update, skip)
    return loss, norm, moved


watch.start(weight)
for step in range(32):
    scale = 12.0 if step % 5 == 3 else 1.0
    loss, norm, moved = train(tf.constant(numbers.normal(0, scale, (16, 32)), tf.float32))
    watch.step(weight, moment, skipped, loss=loss, norm=norm, moved=moved)
    if step % 8 == 7:
        print("step", step, f"{float(loss):.5f} {float(norm):.5f}", int(skipped))
