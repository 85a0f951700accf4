"""One step, retraced for each new batch and width: no signature, several graphs alive at once."""

import numpy as np
import tensorflow as tf
import watch

numbers = np.random.default_rng(27)
query = tf.Variable(numbers.normal(0, 0.3, (16, 16)).astype("float32"))
value = tf.Variable(numbers.normal(0, 0.3, (16, 16)).astype("float32"))
traces = []


@tf.function
def train(x):
    traces.append(x.shape)
    with tf.GradientTape() as tape:
        scores = tf.einsum("bik,bjk->bij", x @ query, x) / 4.0
        h = tf.nn.softmax(scores) @ (x @ value)
        loss = tf.reduce_mean(tf.square(h - tf.reduce_mean(x, 1, keepdims=True)))
    a, b = tape.gradient(loss, (query, value))
    query.assign_sub(0.3 * a)
    value.assign_sub(0.3 * b)
    return loss


watch.start(query, value)
for step in range(36):
    batch, length = (4, 8, 12)[step // 3 % 3], (6, 10)[step // 18]
    loss = train(tf.constant(numbers.normal(size=(batch, length, 16)), tf.float32))
    watch.step(query, value, loss=loss)
    if step % 6 == 5:
        print("step", step, len(traces), f"{float(loss):.5f}")
