"""Errors of the user's own data, caught: each is told as without the product, word for word."""

import tensorflow as tf

w = tf.Variable(tf.random.stateless_normal([256, 256], [1, 2]))
m = tf.Variable(tf.zeros([256, 256]))
table = tf.Variable(tf.random.stateless_normal([100, 256], [5, 6]))


@tf.function(reduce_retracing=True)
def step(x, y, ids):
    tf.debugging.assert_less(x, 5.0, message="feature out of range")
    with tf.GradientTape() as tape:
        h = tf.nn.gelu((x + tf.gather(table, ids)) @ w)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(y, h[:, :6])
        loss = tf.reduce_mean(loss)
    g, t = tape.gradient(loss, [w, table])
    m.assign(0.9 * m + 0.1 * g)
    w.assign_sub(0.01 * m / (tf.sqrt(tf.abs(m)) + 1e-3))
    table.assign_sub(0.1 * tf.convert_to_tensor(t))
    return loss


for i in range(24):
    x, y, ids = tf.ones([64, 256]), tf.fill([64], 2), tf.fill([64], 3)
    if i % 8 == 0:
        x = 9 * x
    if i % 8 == 1:
        y = tf.fill([64], 6)
    if i % 8 == 2:
        ids = tf.fill([64], 300)
    try:
        print("step", i, f"{float(step(x, y, ids)):.5g}")
    except tf.errors.InvalidArgumentError as error:
        print(type(error).__name__, error.error_code, error)
