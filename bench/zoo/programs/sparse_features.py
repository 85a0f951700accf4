"""Sparse features times a dense table (`sparse_dense_matmul`), FTRL-like shrinking of the weights."""

import numpy as np
import tensorflow as tf
import watch

numbers = np.random.default_rng(18)
weight = tf.Variable(numbers.normal(0, 0.1, (400, 24)).astype("float32"))
out = tf.Variable(numbers.normal(0, 0.2, (24, 1)).astype("float32"))


@tf.function(
    input_signature=[tf.SparseTensorSpec([None, 400], tf.float32), tf.TensorSpec([None, 1])]
)
def train(x, y):
    with tf.GradientTape() as tape:
        h = tf.nn.relu6(tf.sparse.sparse_dense_matmul(x, weight) + 0.5)
        logits = h @ out
        losses = tf.nn.sigmoid_cross_entropy_with_logits(y, logits)
        loss = tf.reduce_mean(losses)
    for variable, gradient in zip((weight, out), tape.gradient(loss, (weight, out))):
        moved = variable - 0.5 * tf.convert_to_tensor(gradient)
        variable.assign(tf.sign(moved) * tf.maximum(tf.abs(moved) - 1e-4, 0.0))
    return loss, tf.math.zero_fraction(weight)


watch.start(weight, out)
for step in range(30):
    places = np.unique(numbers.integers(0, 20 * 400, 200))
    indices = np.stack([places // 400, places % 400], 1)
    x = tf.SparseTensor(indices, numbers.random(len(places)).astype("float32"), [20, 400])
    y = tf.reshape(tf.cast(tf.sparse.reduce_sum(x, 1) > 5.0, tf.float32), [20, 1])
    loss, zeros = train(x, y)
    watch.step(weight, out, loss=loss, zeros=zeros)
    if step % 6 == 5:
        print("step", step, f"{float(loss):.5f} {float(zeros):.4f}")
