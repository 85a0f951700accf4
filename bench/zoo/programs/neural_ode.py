"""A neural ODE: Runge-Kutta steps in a while loop with adaptive step by error, adjoint by tape."""

import numpy as np
import tensorflow as tf
import watch

numbers = np.random.default_rng(11)
w1 = tf.Variable(numbers.normal(0, 0.4, (3, 40)).astype("float32"))
b1 = tf.Variable(tf.zeros(40))
w2 = tf.Variable(numbers.normal(0, 0.2, (40, 2)).astype("float32"))
variables = [w1, b1, w2]
velocity = [tf.Variable(tf.zeros_like(v)) for v in variables]


def f(t, y):
    x = tf.concat([y, tf.fill([tf.shape(y)[0], 1], t)], 1)
    return tf.matmul(tf.tanh(tf.matmul(x, w1) + b1), w2)


def rk4(t, y, h):
    k1 = f(t, y)
    k2 = f(t + h / 2, y + h / 2 * k1)
    k3 = f(t + h / 2, y + h / 2 * k2)
    k4 = f(t + h, y + h * k3)
    return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), tf.reduce_max(tf.abs(h * (k4 - k3)))


@tf.function
def train(y0, target):
    with tf.GradientTape() as tape:

        def body(t, y, h, n):
            new, error = rk4(t, y, h)
            ok = error < 0.05
            y = tf.where(ok, new, y)
            t = tf.where(ok, t + h, t)
            h = tf.minimum(tf.where(ok, h * 1.5, h * 0.5), tf.maximum(1.0 - t, 1e-3))
            return t, y, h, n + 1

        _t, y, _h, n = tf.while_loop(
            lambda t, y, h, n: (t < 0.999) & (n < 30),
            body,
            [tf.constant(0.0), y0, tf.constant(0.2), tf.constant(0)],
            maximum_iterations=30,
        )
        loss = tf.reduce_mean(tf.reduce_sum((y - target) ** 2, 1))
    gradients, norm = tf.clip_by_global_norm(tape.gradient(loss, variables), 1.0)
    for v, m, g in zip(variables, velocity, gradients):
        m.assign(0.9 * m + g)
        v.assign_sub(0.05 * (g + 0.9 * m))
    return loss, n, norm


watch.start(variables)
for _step in range(60):
    y0 = numbers.normal(0, 1, (64, 2)).astype("float32")
    angle = 1.2
    target = y0 @ np.array(
        [[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]], "float32"
    )
    loss, n, norm = train(tf.constant(y0), tf.constant(target))
    watch.step(variables, velocity, loss=loss, n=n)
print(f"{float(loss):.3f} {int(n)}")
