"""float64: a heat equation by explicit steps, its source fitted through the unrolled loop."""

import numpy as np
import tensorflow as tf
import watch

numbers = np.random.default_rng(43)
source = tf.Variable(numbers.normal(0, 0.1, (34, 34)))
moment = tf.Variable(tf.zeros([34, 34], tf.float64))
target = tf.constant(np.outer(np.sin(np.linspace(0, 3, 34)), np.cos(np.linspace(0, 3, 34))))


@tf.function
def train():
    with tf.GradientTape() as tape:
        field = tf.zeros([34, 34], tf.float64)
        for _ in range(6):
            inner = field[1:-1, 1:-1]
            around = field[:-2, 1:-1] + field[2:, 1:-1] + field[1:-1, :-2] + field[1:-1, 2:]
            field = tf.pad(inner + 0.2 * (around - 4 * inner), [[1, 1], [1, 1]]) + 0.3 * source
        loss = tf.reduce_mean(tf.square(field - target))
    gradient = tape.gradient(loss, source)
    moment.assign(0.9 * moment + gradient)
    source.assign_sub(20.0 * moment)
    return loss


watch.start(source)
for step in range(40):
    loss = train()
    watch.step(source, moment, loss=loss)
    if step % 8 == 7:
        print("step", step, f"{float(loss):.8f}")
