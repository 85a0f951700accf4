"""tf.data: buckets by length, a map that calls a `tf.function`, remainder batches; a gated CNN tagger."""

import keras
import numpy as np
import tensorflow as tf
import watch

keras.utils.set_random_seed(65)
layers, numbers = keras.layers, np.random.default_rng(65)
TAGS = 6


@tf.function
def with_tags(words):
    tags = (words + tf.concat([words[1:], [0]], 0)) % (TAGS - 1) + 1
    return words, tags


def sentences():
    random = np.random.default_rng(650)
    for _ in range(150):
        yield random.integers(1, 80, random.integers(4, 30)).astype("int32")


data = (
    tf.data.Dataset.from_generator(sentences, output_signature=tf.TensorSpec([None], tf.int32))
    .map(with_tags, num_parallel_calls=2, deterministic=True)
    .bucket_by_sequence_length(
        lambda words, _: tf.size(words), [10, 20], [16, 12, 8], drop_remainder=False
    )
    .prefetch(2)
)


class Gated(layers.Layer):
    def __init__(self, filters, rate):
        super().__init__()
        self.conv = layers.Conv1D(2 * filters, 3, padding="causal", dilation_rate=rate)
        self.norm = layers.LayerNormalization(epsilon=1e-6)

    def call(self, x, mask):
        a, b = tf.split(self.conv(self.norm(x) * mask), 2, -1)
        return (x + a * tf.sigmoid(b)) * 0.70710678


class Tagger(keras.Model):
    def __init__(self):
        super().__init__()
        self.table = layers.Embedding(80, 32)
        self.blocks = [Gated(32, 2**i) for i in range(3)]
        self.head = layers.Dense(TAGS)

    def call(self, words):
        mask = tf.cast(words[..., None] > 0, tf.float32)
        x = self.table(words)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x)


model = Tagger()
model(tf.ones([2, 9], tf.int32))
optimizer = keras.optimizers.Nadam(
    keras.optimizers.schedules.PolynomialDecay(3e-3, 150, 1e-4), weight_decay=1e-4
)
optimizer.build(model.trainable_variables)
accuracy = keras.metrics.SparseCategoricalAccuracy()


@tf.function(
    input_signature=[tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None, None], tf.int32)]
)
def train(words, tags):
    with tf.GradientTape() as tape:
        logits = model(words, training=True)
        weights = tf.cast(tags > 0, tf.float32)
        losses = tf.nn.softmax_cross_entropy_with_logits(
            0.95 * tf.one_hot(tags, TAGS) + 0.05 / TAGS, logits
        )
        loss = tf.reduce_sum(losses * weights) / tf.reduce_sum(weights)
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    accuracy.update_state(tags, logits, sample_weight=weights)
    return loss


watch.start(model)
for epoch in range(8):
    accuracy.reset_state()
    for words, tags in data:
        loss = train(words, tags)
        watch.step(model, optimizer, accuracy, loss=loss)
    print("epoch", epoch, f"{float(loss):.3f} {float(accuracy.result()):.2f}")
