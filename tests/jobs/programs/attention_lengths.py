"""Attention from targets to sources: batch and both lengths unknown, a mask for the sources."""

import numpy as np
import tensorflow as tf

WIDTH = 64
names = ("query", "key", "value")
kernels = [
    tf.Variable(tf.random.stateless_normal([WIDTH, WIDTH], [k, 2]) / 8, name=name)
    for k, name in enumerate(names)
]


@tf.function(
    input_signature=[
        tf.TensorSpec([None, None, WIDTH]),
        tf.TensorSpec([None, None, WIDTH]),
        tf.TensorSpec([None, None]),
    ]
)
def step(target, source, present):
    with tf.GradientTape() as tape:
        query = tf.einsum("btw,wv->btv", target, kernels[0])
        key = tf.einsum("bsw,wv->bsv", source, kernels[1])
        value = tf.nn.gelu(tf.einsum("bsw,wv->bsv", source, kernels[2]))
        scores = tf.matmul(query, key, transpose_b=True) / 8.0 + (present[:, None, :] - 1.0) * 1e9
        found = tf.matmul(tf.nn.softmax(scores), value)
        loss = tf.reduce_mean(tf.square(found - target))
    for variable, gradient in zip(kernels, tape.gradient(loss, kernels)):
        variable.assign_sub(0.5 * gradient)
    return loss


numbers = np.random.default_rng(2)
for i in range(24):
    batch, targets, sources = 16 + i % 2, 20 + i % 3, 32 - i % 5
    target = tf.constant(numbers.normal(size=(batch, targets, WIDTH)), tf.float32)
    source = tf.constant(numbers.normal(size=(batch, sources, WIDTH)), tf.float32)
    present = np.arange(sources) < numbers.integers(sources // 2, sources, (batch, 1))
    print("step", i, f"{float(step(target, source, tf.constant(present, tf.float32))):.4g}")
