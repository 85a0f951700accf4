"""Captions: a small CNN, GRU cells by hand, scheduled sampling by tf.cond, then beam search by while_loop with top_k."""

import numpy as np
import tensorflow as tf
import watch

numbers = np.random.default_rng(57)
V, D, T, B = 60, 32, 8, 3


def weight(*shape):
    return tf.Variable(numbers.normal(0, 0.25, shape).astype("float32"))


conv, table, wx, wh, bias, head, init = (
    weight(3, 3, 3, D),
    weight(V, D),
    weight(D, 3 * D),
    weight(D, 3 * D),
    tf.Variable(tf.zeros(3 * D)),
    weight(D, V),
    weight(D, D),
)
variables = [conv, table, wx, wh, bias, head, init]
optimizer = tf.keras.optimizers.Ftrl(0.1)
optimizer.build(variables)


def cell(x, h):
    a, b = (
        tf.split(tf.matmul(x, wx) + bias, [2 * D, D], 1),
        tf.split(tf.matmul(h, wh), [2 * D, D], 1),
    )
    z, r = tf.split(tf.sigmoid(a[0] + b[0]), 2, 1)
    return z * h + (1 - z) * tf.tanh(a[1] + r * b[1])


def features(images):
    x = tf.nn.relu(tf.nn.conv2d(images, conv, 2, "VALID"))
    return tf.tanh(tf.matmul(tf.reduce_mean(x, [1, 2]), init))


def chosen(own, logits, word):
    return tf.cond(own, lambda: tf.argmax(logits, 1, tf.int32), lambda: word)


@tf.function
def train(images, words, sampling):
    with tf.GradientTape() as tape:
        h, loss, last = features(images), 0.0, words[:, 0]
        for t in range(T - 1):
            h = cell(tf.gather(table, last), h)
            logits = tf.matmul(h, head)
            loss += tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(words[:, t + 1], logits)
            )
            last = chosen(sampling[t], logits, words[:, t + 1])
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
    return loss / (T - 1)


@tf.function
def beam(images):
    n = tf.shape(images)[0]
    h = tf.repeat(features(images), B, 0)
    scores = tf.tile(tf.constant([[0.0] + [-1e9] * (B - 1)]), [n, 1])
    words = tf.zeros([n, B, 1], tf.int32)
    t = tf.constant(0)
    while t < T - 1:
        tf.autograph.experimental.set_loop_options(
            shape_invariants=[(words, tf.TensorShape([None, B, None]))]
        )
        h = cell(tf.gather(table, tf.reshape(words[:, :, -1], [-1])), h)
        logp = tf.nn.log_softmax(tf.matmul(h, head))
        total = scores[:, :, None] + tf.reshape(logp, [n, B, V])
        scores, at = tf.math.top_k(tf.reshape(total, [n, B * V]), B)
        parent, token = at // V, at % V
        words = tf.concat([tf.gather(words, parent, batch_dims=1), token[:, :, None]], 2)
        h = tf.reshape(tf.gather(tf.reshape(h, [n, B, D]), parent, batch_dims=1), [-1, D])
        t += 1
    return words, scores


watch.start(variables)
for _step in range(60):
    words = numbers.integers(1, V, (24, T)).astype("int32")
    words[:, 0] = 0
    words[:, 1:] = (words[:, 1:2] + 3 * np.arange(T - 1)) % V
    images = (
        numbers.normal(0, 0.3, (24, 12, 12, 3)) + words[:, 1][:, None, None, None] / V
    ).astype("float32")
    loss = train(tf.constant(images), tf.constant(words), tf.constant(numbers.random(T) < 0.2))
    found, scores = beam(tf.constant(images))
    watch.step(variables, optimizer, loss=loss, scores=scores)
print(f"{float(loss):.3f}")
