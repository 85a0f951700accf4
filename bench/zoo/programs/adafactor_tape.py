"""Adafactor by GradientTape: factored second moments, a tied embedding, a softmax over words."""

import keras
import numpy as np
import tensorflow as tf
import watch

keras.utils.set_random_seed(6)
numbers = np.random.default_rng(6)
table = tf.Variable(numbers.normal(0, 0.05, (300, 64)).astype("float32"), name="table")
first = tf.Variable(numbers.normal(0, 0.1, (64, 128)).astype("float32"), name="first")
second = tf.Variable(numbers.normal(0, 0.1, (128, 64)).astype("float32"), name="second")
weights = [table, first, second]
optimizer = keras.optimizers.Adafactor(0.02)
optimizer.build(weights)


@tf.function(input_signature=[tf.TensorSpec([None, 4], tf.int32), tf.TensorSpec([None], tf.int32)])
def train(context, word):
    with tf.GradientTape() as tape:
        h = tf.reduce_mean(tf.nn.embedding_lookup(table, context), 1)
        h += tf.nn.silu(h @ first) @ second
        h *= tf.math.rsqrt(tf.reduce_mean(tf.square(h), -1, keepdims=True) + 1e-6)
        logits = tf.matmul(h, table, transpose_b=True)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(word, logits))
    gradients = [tf.convert_to_tensor(g) for g in tape.gradient(loss, weights)]
    optimizer.apply_gradients(zip(gradients, weights))
    return loss


watch.start(weights)
for step in range(30):
    words = numbers.integers(0, 300, (32, 5))
    loss = train(tf.constant(words[:, :4], tf.int32), tf.constant(words[:, 4], tf.int32))
    watch.step(weights, optimizer, loss=loss)
    if step % 6 == 5:
        print("step", step, f"{float(loss):.5f}")
