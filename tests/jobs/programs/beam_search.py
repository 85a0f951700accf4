"""Training through `tf.scan`, then a beam search with `tf.while_loop` after every few steps."""

import numpy as np
import tensorflow as tf

WORDS, WIDTH, BEAMS, LENGTH = 64, 256, 4, 8
table = tf.Variable(tf.random.stateless_normal([WORDS, WIDTH], [1, 2]) / 4)
inner = tf.Variable(tf.random.stateless_normal([WIDTH, WIDTH], [3, 4]) / 16)
outer = tf.Variable(tf.random.stateless_normal([WIDTH, WORDS], [5, 6]) / 16)
variables = [table, inner, outer]


def cell(state, x):
    state = tf.nn.tanh(state @ inner + x)
    centred = state - tf.reduce_mean(state, -1, keepdims=True)
    return centred * tf.math.rsqrt(tf.reduce_mean(tf.square(centred), -1, keepdims=True) + 1e-3)


@tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)])
def train(words):
    with tf.GradientTape() as tape:
        given = tf.gather(table, tf.transpose(words[:, :-1]))
        states = tf.scan(cell, given, tf.zeros_like(given[0]))
        logits = tf.einsum("tbw,wv->tbv", states, outer)
        wanted = tf.transpose(words[:, 1:])
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(wanted, logits)
        loss = tf.reduce_mean(losses)
    for variable, gradient in zip(variables, tape.gradient(loss, variables)):
        variable.assign_sub(0.2 * tf.convert_to_tensor(gradient))
    return loss


@tf.function(input_signature=[tf.TensorSpec([None], tf.int32)])
def search(begin):
    batch = tf.shape(begin)[0]
    state = tf.zeros([batch * BEAMS, WIDTH])
    words = tf.repeat(begin[:, None], BEAMS, 1)[:, :, None]
    scores = tf.tile([[0.0] + [-1e9] * (BEAMS - 1)], [batch, 1])

    def body(i, state, words, scores):
        state = cell(state, tf.gather(table, tf.reshape(words[:, :, -1], [-1])))
        odds = tf.nn.log_softmax(state @ outer)
        totals = scores[:, :, None] + tf.reshape(odds, [batch, BEAMS, WORDS])
        scores, chosen = tf.math.top_k(tf.reshape(totals, [batch, BEAMS * WORDS]), BEAMS)
        beam, word = chosen // WORDS, chosen % WORDS
        state = tf.reshape(state, [batch, BEAMS, WIDTH])
        state = tf.reshape(tf.gather(state, beam, batch_dims=1), [-1, WIDTH])
        words = tf.concat([tf.gather(words, beam, batch_dims=1), word[:, :, None]], 2)
        return i + 1, state, words, scores

    shapes = [
        tf.TensorShape([]),
        tf.TensorShape([None, WIDTH]),
        tf.TensorShape([None, BEAMS, None]),
    ]
    return tf.while_loop(
        lambda i, *_: i < LENGTH,
        body,
        [0, state, words, scores],
        [*shapes, tf.TensorShape([None, BEAMS])],
    )[2:]


numbers = np.random.default_rng(2)
steps = numbers.integers(1, 4, (64, 13)).cumsum(1) % WORDS
for i in range(20):
    loss = train(tf.constant(steps[:, : 9 + i % 4], tf.int32))
    if i % 5 == 4:
        words, scores = search(tf.constant([3, 14, 15], tf.int32))
        best = " ".join(str(int(word)) for word in words[0, 0])
        print("step", i, f"{float(loss):.4g}", f"{float(scores[0, 0]):.3g}", best)
