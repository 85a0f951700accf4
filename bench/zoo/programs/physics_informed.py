"""A physics-informed network: Burgers' equation, second derivatives by nested tapes, then a Jacobian."""

import itertools

import numpy as np
import tensorflow as tf
import watch

numbers = np.random.default_rng(72)
sizes = [2, 32, 32, 32, 1]
weights = [
    tf.Variable(numbers.normal(0, (2 / (a + b)) ** 0.5, (a, b)).astype("float32"))
    for a, b in itertools.pairwise(sizes)
]
biases = [tf.Variable(np.zeros(b, "float32")) for b in sizes[1:]]
slopes = [tf.Variable(1.0) for _ in sizes[2:]]
viscosity = tf.Variable(-3.0)
variables = [*weights, *biases, *slopes, viscosity]
optimizer = tf.keras.optimizers.Adam(2e-3)
optimizer.build(variables)


def network(t, x):
    h = tf.concat([t, x], 1)
    for w, b, s in zip(weights, biases, slopes):
        h = tf.tanh(s * (h @ w + b))
    return h @ weights[-1] + biases[-1]


def residual(t, x):
    with tf.GradientTape() as second:
        second.watch(x)
        with tf.GradientTape(persistent=True) as first:
            first.watch([t, x])
            u = network(t, x)
        u_t, u_x = first.gradient(u, t), first.gradient(u, x)
    u_xx = second.gradient(u_x, x)
    return u_t + u * u_x - tf.exp(viscosity) * u_xx


@tf.function
def train(t, x, boundary_t, boundary_x, known):
    with tf.GradientTape() as tape:
        inside = tf.reduce_mean(tf.square(residual(t, x)))
        border = tf.reduce_mean(tf.square(network(boundary_t, boundary_x) - known))
        loss = inside + 10.0 * border
    gradients = tape.gradient(loss, variables)
    optimizer.apply_gradients(zip(gradients, variables))
    return inside, border


@tf.function
def sensitivity(points):
    with tf.GradientTape() as tape:
        tape.watch(points)
        u = tf.concat([network(points[:, :1], points[:, 1:]), tf.square(points)], 1)
    jacobian = tape.batch_jacobian(u, points)
    return tf.linalg.det(tf.matmul(jacobian, jacobian, transpose_a=True)), tf.linalg.trace(
        jacobian[:, :2]
    )


watch.start(variables)
for step in range(150):
    t = tf.constant(numbers.uniform(0, 1, (256, 1)), tf.float32)
    x = tf.constant(numbers.uniform(-1, 1, (256, 1)), tf.float32)
    where = numbers.uniform(-1, 1, (64, 1))
    loss = train(
        t,
        x,
        tf.zeros([64, 1]),
        tf.constant(where, tf.float32),
        tf.constant(-np.sin(np.pi * where), tf.float32),
    )
    found = sensitivity(tf.concat([t, x], 1)[:32])
    watch.step(variables, optimizer, loss=loss, found=found)
    if step % 30 == 29:
        print("step", step, f"{float(loss[0]):.3f} {float(loss[1]):.3f}")
