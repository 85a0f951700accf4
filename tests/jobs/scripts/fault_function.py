"""A tf.function that updates in place and draws random numbers of a kernel's own."""

import tensorflow as tf

w = tf.Variable(tf.random.stateless_normal([256, 256], [1, 2]))
m = tf.Variable(tf.zeros([256, 256]))


@tf.function
def step(x):
    noise = tf.random.uniform([128, 256], seed=7)
    with tf.GradientTape() as tape:
        h = tf.nn.gelu((x + 0.1 * noise) @ w)
        z = h - tf.reduce_mean(h, -1, keepdims=True)
        scale = tf.sqrt(tf.reduce_mean(z * z, -1, keepdims=True) + 1e-6)
        loss = tf.reduce_mean(tf.square(z / scale - x))
    g = tape.gradient(loss, w)
    m.assign(0.9 * m + 0.1 * g)
    w.assign_sub(0.01 * m / (tf.sqrt(tf.abs(m)) + 1e-3))
    return loss, tf.reduce_sum(noise)


tf.random.set_seed(3)
x = tf.random.stateless_normal([128, 256], [3, 4])
for i in range(240):
    loss, drawn = step(x)
    print("step", i, f"{float(loss):.7g}", f"{float(drawn):.8g}")
print("variables", *(f"{float(tf.reduce_sum(tf.abs(v))):.7g}" for v in (w, m)))
