"""`tf.debugging.enable_check_numerics`: a step makes an infinity, the program stops with its error."""

import sys

import numpy as np
import tensorflow as tf
import watch

tf.debugging.enable_check_numerics()
numbers = np.random.default_rng(29)
weight = tf.Variable(numbers.normal(0, 0.2, (24, 24)).astype("float32"))


@tf.function(input_signature=[tf.TensorSpec([16, 24])])
def train(x):
    with tf.GradientTape() as tape:
        h = tf.nn.tanh(x @ weight)
        loss = tf.reduce_mean(
            tf.square(h / (tf.reduce_sum(tf.abs(x), -1, keepdims=True)) - 0.01 * x)
        )
    gradient = tape.gradient(loss, weight)
    weight.assign_sub(0.5 * gradient)
    return loss


watch.start(weight)
for step in range(30):
    x = numbers.normal(size=(16, 24)).astype("float32")
    if step == 20:
        x[3] = 0.0
    try:
        loss = train(tf.constant(x))
    except tf.errors.InvalidArgumentError as error:
        print("step", step, "NaN" in str(error), "Inf" in str(error), flush=True)
        sys.exit(3)
    watch.step(weight, loss=loss)
    if step % 5 == 4:
        print("step", step, f"{float(loss):.6f}")
