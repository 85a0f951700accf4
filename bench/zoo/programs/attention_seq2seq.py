"""A translator with additive attention: AutoGraph loops over time, teacher forcing, weight tying."""

import keras
import numpy as np
import tensorflow as tf
import watch

keras.utils.set_random_seed(76)
layers, numbers = keras.layers, np.random.default_rng(76)
WORDS, WIDTH = 40, 32


class Translator(keras.Model):
    def __init__(self):
        super().__init__()
        self.table = layers.Embedding(WORDS, WIDTH)
        self.encoder = layers.Bidirectional(layers.GRU(WIDTH // 2, return_sequences=True))
        self.cell = layers.LSTMCell(WIDTH)
        self.query, self.memory = layers.Dense(WIDTH, use_bias=False), layers.Dense(WIDTH)
        self.score = layers.Dense(1, use_bias=False)
        self.mix = layers.Dense(WIDTH, activation="tanh")

    def one(self, word, h, c, memory, keys, mask):
        weights = self.score(tf.tanh(self.query(h)[:, None] + keys))[..., 0]
        weights = tf.nn.softmax(weights - 1e9 * (1.0 - mask))
        context = tf.reduce_sum(weights[..., None] * memory, 1)
        out, (h, c) = self.cell(tf.concat([self.table(word), context], -1), [h, c])
        made = self.mix(tf.concat([out, context], -1))
        return tf.matmul(made, self.table.embeddings, transpose_b=True), h, c


model = Translator()
optimizer = keras.optimizers.Adam(3e-3)


@tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)] * 2)
def train(source, target):
    with tf.GradientTape() as tape:
        mask = tf.cast(source > 0, tf.float32)
        memory = model.encoder(model.table(source))
        keys = model.memory(memory)
        h = tf.reduce_mean(memory, 1)
        c = tf.zeros_like(h)
        total, count = 0.0, 0.0
        for t in tf.range(tf.shape(target)[1] - 1):
            logits, h, c = model.one(target[:, t], h, c, memory, keys, mask)
            wanted = target[:, t + 1]
            there = tf.cast(wanted > 0, tf.float32)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(wanted, logits)
            total += tf.reduce_sum(losses * there)
            count += tf.reduce_sum(there)
            if tf.reduce_sum(there) < 0.5:
                break
        loss = total / tf.maximum(count, 1.0)
    gradients = tape.gradient(loss, model.trainable_variables)
    gradients, _ = tf.clip_by_global_norm(gradients, 1.0)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


def batch(size, length):
    source = numbers.integers(3, WORDS, (size, length)).astype("int32")
    cut = numbers.integers(3, length + 1, size)
    source[np.arange(length)[None] >= cut[:, None]] = 0
    target = np.concatenate([np.full((size, 1), 1), source[:, ::1], np.zeros((size, 2))], 1).astype(
        "int32"
    )
    return tf.constant(source), tf.constant(target)


source, target = batch(2, 5)
memory = model.encoder(model.table(source))
model.one(target[:, 0], memory[:, 0], memory[:, 0], memory, model.memory(memory), tf.ones([2, 5]))
optimizer.build(model.trainable_variables)
watch.start(model)
for step in range(60):
    loss = train(*batch(12, 6 + step % 3))
    watch.step(model, optimizer, loss=loss)
    if step % 15 == 14:
        print("step", step, f"{float(loss):.3f}")
