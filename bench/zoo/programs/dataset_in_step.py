"""The loop over the data is in the graph: `for batch in iterator` inside one `tf.function`."""

import numpy as np
import tensorflow as tf
import watch

numbers = np.random.default_rng(44)
x = numbers.normal(size=(90, 20)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, np.tanh(x[:, :4]))).shuffle(90, seed=1).batch(16)
weight = tf.Variable(numbers.normal(0, 0.2, (20, 32)).astype("float32"))
out = tf.Variable(numbers.normal(0, 0.2, (32, 4)).astype("float32"))


@tf.function
def epoch(data):
    total, count = tf.constant(0.0), tf.constant(0)
    for a, b in data:
        with tf.GradientTape() as tape:
            h = tf.nn.relu(a @ weight)
            h *= tf.math.rsqrt(tf.reduce_mean(tf.square(h), 1, keepdims=True) + 1e-5)
            loss = tf.reduce_mean(tf.math.log(tf.cosh(h @ out - b) + 1e-3))
        for variable, gradient in zip((weight, out), tape.gradient(loss, (weight, out))):
            variable.assign_sub(0.3 * gradient)
        total, count = total + loss, count + 1
    return total / tf.cast(count, tf.float32)


watch.start(weight, out)
for number in range(12):
    loss = epoch(data)
    watch.step(weight, out, loss=loss)
    if number % 3 == 2:
        print("epoch", number, f"{float(loss):.5f}")
