"""`tf.recompute_grad` around each block: the forward pass runs again inside the gradient."""

import numpy as np
import tensorflow as tf
import watch

tf.random.set_seed(13)
numbers = np.random.default_rng(13)
weights = [tf.Variable(numbers.normal(0, 0.15, (48, 48)).astype("float32")) for _ in range(4)]
scales = [tf.Variable(tf.ones([48])) for _ in range(4)]
variables = weights + scales


def block(weight, scale):
    @tf.recompute_grad
    def run(h):
        mean, variance = tf.nn.moments(h, [-1], keepdims=True)
        normal = (h - mean) * tf.math.rsqrt(variance + 1e-5) * scale
        return h + tf.nn.gelu(tf.matmul(normal, weight))

    return run


blocks = [block(*pair) for pair in zip(weights, scales)]


@tf.function(input_signature=[tf.TensorSpec([None, 48])])
def train(x):
    with tf.GradientTape() as tape:
        h = x
        for run in blocks:
            h = run(h)
        loss = tf.reduce_mean(tf.square(h - tf.reverse(x, [1])))
    for variable, gradient in zip(variables, tape.gradient(loss, variables)):
        variable.assign_sub(0.1 * gradient)
    return loss


watch.start(variables)
for step in range(30):
    loss = train(tf.constant(numbers.normal(size=(24, 48)), tf.float32))
    watch.step(variables, loss=loss)
    if step % 6 == 5:
        print("step", step, f"{float(loss):.5f}")
