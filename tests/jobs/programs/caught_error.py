"""A step that raises for some batches; its user catches the error and goes on with the next."""

import numpy as np
import tensorflow as tf

first = tf.Variable(tf.random.stateless_normal([256, 256], [1, 2]) / 16)
moment = tf.Variable(tf.zeros([256, 256]))


@tf.function(input_signature=[tf.TensorSpec([None, 256]), tf.TensorSpec([None], tf.int32)])
def step(x, labels):
    tf.debugging.assert_non_negative(labels, message="a label below zero")
    x = tf.debugging.check_numerics(x, "the input")
    with tf.GradientTape() as tape:
        hidden = tf.nn.gelu(x @ first)
        hidden -= tf.reduce_mean(hidden, -1, keepdims=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, hidden)
        loss = tf.reduce_mean(losses)
    gradient = tape.gradient(loss, first)
    moment.assign(0.9 * moment + 0.1 * gradient)
    first.assign_sub(0.5 * moment / (tf.sqrt(tf.reduce_mean(tf.square(moment))) + 1.0))
    return loss


numbers = np.random.default_rng(2)
for i in range(30):
    x = numbers.normal(size=(128, 256)).astype("float32")
    labels = numbers.integers(0, 256, 128).astype("int32")
    if i % 10 == 4:
        labels[3] = -1
    if i % 10 == 7:
        x[5, 6] = np.nan
    try:
        print("step", i, f"{float(step(tf.constant(x), tf.constant(labels))):.4g}")
    except tf.errors.InvalidArgumentError as error:
        told = [text for text in ("label below zero", "the input") if text in str(error)]
        print("step", i, type(error).__name__, *told)
print("moment", f"{float(tf.reduce_mean(tf.abs(moment))):.4g}")
