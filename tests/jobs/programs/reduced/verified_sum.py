"""A lookup whose gradient is summed after a host's lookup in the sizes of what it made (found by the
fuzzer of TensorFlow programs: the sum's verifier waited for the region that waits for it)."""

import numpy as np
import tensorflow as tf

numbers = np.random.default_rng(3)
rows = tf.Variable(numbers.normal(size=(10, 3)).astype("float32"))


@tf.function(input_signature=[tf.TensorSpec([None, 3]), tf.TensorSpec([None], tf.int32)])
def train(x, ids):
    with tf.GradientTape() as tape:
        found = tf.gather(rows, (ids * 3 + 1) % (tf.shape(x)[0] * 0 + 10))
        loss = tf.reduce_mean(tf.square(x + found))
    gradient = tf.convert_to_tensor(tape.gradient(loss, rows))
    rows.assign_sub(0.05 * gradient)
    return loss


for step in range(24):
    size = (4, 7, 4, 3)[step % 4]
    x = numbers.normal(size=(size, 3)).astype("float32")
    print(float(train(x, np.arange(size, dtype="int32"))))
