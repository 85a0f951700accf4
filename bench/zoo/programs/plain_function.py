"""A `tf.function` without variables: k-means by numpy's data, distances and means in TensorFlow."""

import numpy as np
import tensorflow as tf
import watch

numbers = np.random.default_rng(39)
points = (numbers.normal(size=(300, 6)) + numbers.integers(0, 4, (300, 1)) * 3).astype("float32")


@tf.function(input_signature=[tf.TensorSpec([None, 6]), tf.TensorSpec([4, 6])])
def move(points, centres):
    apart = tf.reduce_sum(tf.math.squared_difference(points[:, None], centres[None]), -1)
    shares = tf.nn.softmax(-apart * 2.0, axis=1)
    weighted = tf.einsum("pc,pd->cd", shares, points)
    moved = weighted / (tf.reduce_sum(shares, 0)[:, None] + 1e-6)
    return (
        moved,
        tf.reduce_mean(tf.reduce_min(apart, 1)),
        tf.math.bincount(tf.argmin(apart, 1, tf.int32), minlength=4),
    )


centres = tf.constant(points[:4])
for call in range(30):
    centres, error, counts = move(tf.constant(points), centres)
    watch.step(centres, error=error, counts=counts)
    if call % 6 == 5:
        print("call", call, f"{float(error):.4f}", *sorted(counts.numpy()))
