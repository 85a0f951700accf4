"""Metric learning: a shared encoder on pairs, semi-hard triplets in the batch, ArcFace margins by cos and acos, label smoothing, gradient accumulation."""

import numpy as np
import tensorflow as tf
import watch

tf.keras.utils.set_random_seed(21)
L = tf.keras.layers
encoder = tf.keras.Sequential(
    [
        L.Input((24, 6)),
        L.Conv1D(32, 5, padding="causal", dilation_rate=2, activation="relu"),
        L.BatchNormalization(),
        L.Conv1D(32, 3, padding="same", activation="tanh"),
        L.GlobalMaxPooling1D(),
        L.Dense(32),
    ]
)
weights = tf.Variable(tf.random.stateless_normal([32, 7], [1, 2]))
variables = [*encoder.trainable_variables, weights]
sums = [tf.Variable(tf.zeros_like(v), trainable=False) for v in variables]
optimizer = tf.keras.optimizers.Adadelta(1.0)
optimizer.build(variables)


@tf.function
def accumulate(x, y):
    with tf.GradientTape() as tape:
        e = tf.math.l2_normalize(encoder(x, training=True), 1)
        d = tf.maximum(2.0 - 2.0 * tf.matmul(e, e, transpose_b=True), 0.0)
        same = y[:, None] == y[None]
        positive = tf.reduce_max(tf.where(same, d, 0.0), 1)
        negative = tf.reduce_min(tf.where(same, 9.0, d), 1)
        triplet = tf.reduce_mean(tf.nn.relu(positive - negative + 0.3))
        cos = tf.clip_by_value(tf.matmul(e, tf.math.l2_normalize(weights, 0)), -1 + 1e-6, 1 - 1e-6)
        hot = tf.one_hot(y, 7)
        arc = 16.0 * (hot * tf.cos(tf.acos(cos) + 0.3) + (1 - hot) * cos)
        smooth = hot * 0.9 + 0.1 / 7
        loss = triplet + tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(smooth, arc))
    for s, g in zip(sums, tape.gradient(loss, variables)):
        s.assign_add(g / 2)
    return loss


@tf.function
def apply():
    optimizer.apply_gradients([(s.read_value(), v) for s, v in zip(sums, variables)])
    for s in sums:
        s.assign(tf.zeros_like(s))


numbers = np.random.default_rng(14)
watch.start(encoder, weights)
for _step in range(60):
    for _part in range(2):
        y = numbers.integers(0, 7, 48).astype("int32")
        x = (
            numbers.normal(0, 1, (48, 24, 6))
            + np.sin(np.arange(24)[None, :, None] * (y[:, None, None] + 1) / 3)
        ).astype("float32")
        loss = accumulate(tf.constant(x), tf.constant(y))
    apply()
    watch.step(encoder, weights, optimizer, loss=loss)
print(f"{float(loss):.3f}")
