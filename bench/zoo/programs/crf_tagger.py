"""A linear-chain CRF: forward algorithm by a loop, Viterbi decoding, both under one train and one test step."""

import numpy as np
import tensorflow as tf
import watch

numbers = np.random.default_rng(79)
TAGS, WIDTH = 7, 24
table = tf.Variable(numbers.normal(0, 0.3, (60, WIDTH)).astype("float32"))
kernel = tf.Variable(numbers.normal(0, 0.2, (3, WIDTH, WIDTH)).astype("float32"))
head = tf.Variable(numbers.normal(0, 0.2, (WIDTH, TAGS)).astype("float32"))
moves = tf.Variable(numbers.normal(0, 0.1, (TAGS, TAGS)).astype("float32"))
variables = [table, kernel, head, moves]
squares = [tf.Variable(tf.zeros_like(v)) for v in variables]


def scores(words):
    x = tf.gather(table, words)
    x = x + tf.nn.elu(tf.nn.conv1d(x, kernel, 1, "SAME"))
    return tf.tensordot(x, head, 1)


def log_partition(unary, lengths):
    alpha = unary[:, 0]
    for t in tf.range(1, tf.shape(unary)[1]):
        tf.autograph.experimental.set_loop_options(maximum_iterations=40)
        new = tf.reduce_logsumexp(alpha[:, :, None] + moves[None], 1) + unary[:, t]
        alpha = tf.where((t < lengths)[:, None], new, alpha)
    return tf.reduce_logsumexp(alpha, 1)


def path_score(unary, tags, mask):
    picked = tf.reduce_sum(tf.gather(unary, tags, batch_dims=2) * mask, 1)
    pairs = tf.gather_nd(moves, tf.stack([tags[:, :-1], tags[:, 1:]], -1))
    return picked + tf.reduce_sum(pairs * mask[:, 1:], 1)


SIGNATURE = [
    tf.TensorSpec([None, None], tf.int32),
    tf.TensorSpec([None, None], tf.int32),
    tf.TensorSpec([None], tf.int32),
]


@tf.function(input_signature=SIGNATURE)
def train(words, tags, lengths):
    mask = tf.sequence_mask(lengths, tf.shape(words)[1], tf.float32)
    with tf.GradientTape() as tape:
        unary = scores(words)
        loss = tf.reduce_mean(log_partition(unary, lengths) - path_score(unary, tags, mask))
    for v, s, g in zip(variables, squares, tape.gradient(loss, variables)):
        g = tf.convert_to_tensor(g)
        s.assign_add(g * g)
        v.assign_sub(0.2 * g * tf.math.rsqrt(s + 1e-6))
    return loss


@tf.function(input_signature=SIGNATURE[1:])
def viterbi(words, lengths):
    unary = tf.transpose(scores(words), [1, 0, 2])
    length = tf.shape(unary)[0]
    best = unary[0]
    back = tf.TensorArray(tf.int32, length - 1)
    for t in tf.range(1, length):
        through = best[:, :, None] + moves[None]
        alive = (t < lengths)[:, None]
        back = back.write(
            t - 1,
            tf.where(alive, tf.argmax(through, 1, output_type=tf.int32), tf.range(TAGS)[None]),
        )
        best = tf.where(alive, tf.reduce_max(through, 1) + unary[t], best)
    last = tf.argmax(best, 1, output_type=tf.int32)
    path = tf.TensorArray(tf.int32, length).write(length - 1, last)
    pointers = back.stack()
    for t in tf.range(length - 2, -1, -1):
        last = tf.gather(pointers[t], last, batch_dims=1)
        path = path.write(t, last)
    return tf.transpose(path.stack()), tf.reduce_max(best, 1)


watch.start(variables)
for step in range(80):
    length = 8 + step % 3 * 4
    words = numbers.integers(1, 60, (16, length)).astype("int32")
    lengths = numbers.integers(4, length + 1, 16).astype("int32")
    tags = ((words + np.roll(words, 1, 1)) % TAGS).astype("int32")
    loss = train(tf.constant(words), tf.constant(tags), tf.constant(lengths))
    found, best = viterbi(tf.constant(words), tf.constant(lengths))
    watch.step(variables, loss=loss, best=best)
    if step % 20 == 19:
        print("step", step, f"{float(loss):.2f}")
