"""A mask of the full batch in most calls and of one row, which broadcasts, in some."""

import numpy as np
import tensorflow as tf

first = tf.Variable(tf.random.stateless_normal([256, 256], [1, 2]) / 16)
moment = tf.Variable(tf.zeros([256, 256]))


@tf.function(
    input_signature=[
        tf.TensorSpec([None, 256]),
        tf.TensorSpec([None, 256]),
        tf.TensorSpec([None], tf.int32),
    ]
)
def step(x, mask, labels):
    with tf.GradientTape() as tape:
        hidden = tf.nn.gelu(x @ first) * mask
        hidden -= tf.reduce_mean(hidden, -1, keepdims=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, hidden)
        loss = tf.reduce_mean(losses)
    gradient = tape.gradient(loss, first)
    moment.assign(0.9 * moment + 0.1 * gradient)
    first.assign_sub(2.0 * moment / (1.0 + tf.abs(moment)))
    return loss


numbers = np.random.default_rng(2)
for i in range(30):
    x = tf.constant(numbers.normal(size=(96, 256)), tf.float32)
    rows = 1 if i in (18, 24, 25) else 96
    mask = tf.constant(numbers.random((rows, 256)), tf.float32)
    labels = tf.constant(numbers.integers(0, 256, 96), tf.int32)
    print("step", i, f"{float(step(x, mask, labels)):.4g}")
