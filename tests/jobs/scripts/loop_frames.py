"""A training step in a tf.range loop: the job ends with an error in its first stitched call.

Seen: kernel_failed, "node while/merge has inputs from different frames", exit code 1. A launch in
the loop is given the variable's handle from outside the loop instead of the loop's own Enter.
Expected: the losses of the run without the product, exit code 0.
"""

import tensorflow as tf

w = tf.Variable(tf.random.stateless_normal([256, 256], [1, 2]))
m = tf.Variable(tf.zeros([256, 256]))


@tf.function
def two_steps(x):
    loss = 0.0
    for _ in tf.range(2):
        with tf.GradientTape() as tape:
            y = tf.nn.gelu(x @ w)
            z = y - tf.reduce_mean(y, -1, keepdims=True)
            loss = tf.reduce_mean(
                tf.square(z / tf.sqrt(tf.reduce_mean(z * z, -1, keepdims=True) + 1e-6) - x)
            )
        g = tape.gradient(loss, w)
        m.assign(0.9 * m + 0.1 * g)
        w.assign_sub(0.01 * m / (tf.sqrt(tf.abs(m)) + 1e-3))
    return loss


x = tf.random.stateless_normal([512, 256], [3, 4])
for i in range(8):
    print("step", i, float(two_steps(x)))
