"""Ragged rows of words: lookups in an embedding, means of uneven length, no padding anywhere."""

import numpy as np
import tensorflow as tf
import watch

numbers = np.random.default_rng(17)
table = tf.Variable(numbers.normal(0, 0.3, (150, 16)).astype("float32"), name="table")
weight = tf.Variable(numbers.normal(0, 0.3, (16, 3)).astype("float32"), name="weight")
slots = [tf.Variable(tf.zeros_like(v)) for v in (table, weight)]


@tf.function(
    input_signature=[tf.RaggedTensorSpec([None, None], tf.int32), tf.TensorSpec([None], tf.int32)]
)
def train(words, labels):
    with tf.GradientTape() as tape:
        looked = tf.gather(table, words)
        pooled = tf.reduce_mean(looked, axis=1) + 0.1 * tf.reduce_max(looked, axis=1)
        logits = tf.tanh(pooled) @ weight
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
    gradients = [tf.convert_to_tensor(g) for g in tape.gradient(loss, [table, weight])]
    for variable, slot, gradient in zip((table, weight), slots, gradients):
        slot.assign_add(tf.square(gradient))
        variable.assign_sub(0.1 * gradient * tf.math.rsqrt(slot + 1e-7))
    return loss


watch.start(table, weight)
for step in range(30):
    lengths = numbers.integers(1, 9, 12)
    rows = [numbers.integers(0, 150, n).tolist() for n in lengths]
    labels = tf.constant(lengths % 3, tf.int32)
    loss = train(tf.ragged.constant(rows, dtype=tf.int32), labels)
    watch.step(table, weight, slots, loss=loss)
    if step % 6 == 5:
        print("step", step, f"{float(loss):.5f}")
