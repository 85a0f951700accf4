"""`switch_case` picks one of three experts for each batch; each has its own activation."""

import numpy as np
import tensorflow as tf
import watch

numbers = np.random.default_rng(23)
experts = [tf.Variable(numbers.normal(0, 0.2, (24, 24)).astype("float32")) for _ in range(3)]
gate = tf.Variable(numbers.normal(0, 0.2, (24, 24)).astype("float32"))
variables = [*experts, gate]
shapes = (tf.nn.gelu, tf.nn.silu, lambda h: tf.math.softplus(h) - tf.sigmoid(h))


@tf.function(input_signature=[tf.TensorSpec([None, 24]), tf.TensorSpec([], tf.int32)])
def train(x, which):
    with tf.GradientTape() as tape:
        g = tf.sigmoid(x @ gate)
        made = [lambda w=w, f=f: f(x @ w) + 0.1 * tf.square(x) for w, f in zip(experts, shapes)]
        h = g * tf.switch_case(which, made) + (1 - g) * x
        loss = tf.reduce_mean(tf.abs(h - tf.roll(x, 1, axis=1)))
    gradients = tape.gradient(loss, variables, unconnected_gradients="zero")
    for variable, gradient in zip(variables, gradients):
        variable.assign_sub(0.2 * gradient)
    return loss


watch.start(variables)
for step in range(30):
    x = tf.constant(numbers.normal(size=(20, 24)), tf.float32)
    loss = train(x, tf.constant(step * step % 3))
    watch.step(variables, loss=loss)
    if step % 6 == 5:
        print("step", step, f"{float(loss):.5f}")
