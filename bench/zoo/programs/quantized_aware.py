"""Quantization-aware training: fake quantization, straight-through estimators, folded batch norm, moving ranges."""

import numpy as np
import tensorflow as tf
import watch

numbers = np.random.default_rng(23)
kernels = [
    tf.Variable(numbers.normal(0, 0.2, s).astype("float32"))
    for s in [(3, 3, 3, 16), (3, 3, 16, 24)]
]
gammas = [tf.Variable(tf.ones(c)) for c in (16, 24)]
betas = [tf.Variable(tf.zeros(c)) for c in (16, 24)]
dense = tf.Variable(numbers.normal(0, 0.2, (24, 6)).astype("float32"))
lows = [tf.Variable(-1.0, trainable=False) for _ in range(3)]
highs = [tf.Variable(1.0, trainable=False) for _ in range(3)]
means = [tf.Variable(tf.zeros(c), trainable=False) for c in (16, 24)]
variances = [tf.Variable(tf.ones(c), trainable=False) for c in (16, 24)]
trained = [*kernels, *gammas, *betas, dense]
optimizer = tf.keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True)
optimizer.build(trained)


@tf.custom_gradient
def binary(x):
    def grad(dy):
        return dy * tf.cast(tf.abs(x) <= 1, x.dtype)

    return tf.sign(x), grad


def quantize(x, i):
    lows[i].assign(0.95 * lows[i] + 0.05 * tf.minimum(tf.reduce_min(x), 0.0))
    highs[i].assign(0.95 * highs[i] + 0.05 * tf.maximum(tf.reduce_max(x), 0.01))
    return tf.quantization.fake_quant_with_min_max_vars(x, lows[i], highs[i], 8)


@tf.function
def train(x, y):
    with tf.GradientTape() as tape:
        for i, (k, g, b) in enumerate(zip(kernels, gammas, betas)):
            w = tf.quantization.fake_quant_with_min_max_vars_per_channel(
                k, tf.reduce_min(k, [0, 1, 2]), tf.reduce_max(k, [0, 1, 2]), 4, narrow_range=True
            )
            x = tf.nn.conv2d(x, w, 2, "SAME")
            mean, var = tf.nn.moments(x, [0, 1, 2])
            means[i].assign_sub(0.1 * (means[i] - mean))
            variances[i].assign_sub(0.1 * (variances[i] - var))
            x = tf.nn.relu6(tf.nn.batch_normalization(x, mean, var, b, g, 1e-3))
            x = quantize(x, i)
        x = tf.reduce_mean(x, [1, 2])
        x = quantize(x, 2) + 0.1 * binary(x - 0.3)
        logits = tf.matmul(x, dense)
        loss = tf.reduce_mean(
            tf.nn.softmax_cross_entropy_with_logits(tf.one_hot(y, 6, 0.95, 0.01), logits)
        )
    optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained))
    return loss, tf.math.in_top_k(y, logits, 2)


watch.start(trained)
for _step in range(60):
    y = numbers.integers(0, 6, 32).astype("int32")
    x = numbers.normal(0, 1, (32, 20, 20, 3)) + y[:, None, None, None] * 0.3
    loss, top = train(tf.constant(x.astype("float32")), tf.constant(y))
    watch.step(
        trained,
        means,
        variances,
        lows,
        highs,
        loss=loss,
        top=tf.reduce_mean(tf.cast(top, tf.float32)),
    )
print(f"{float(loss):.3f}")
