"""Keras `fit` of a small language model with a mask and sample weights, the batch unknown."""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)
LENGTH, WIDTH = 24, 128
words = keras.Input((LENGTH,), dtype="int32")
padding = keras.Input((LENGTH,), dtype="bool")
x = keras.layers.Embedding(100, WIDTH)(words)
for _ in range(2):
    mask = keras.layers.Lambda(lambda m: m[:, None, :], output_shape=(1, LENGTH))(padding)
    heads = keras.layers.MultiHeadAttention(4, WIDTH // 4)
    attended = heads(x, x, attention_mask=mask, use_causal_mask=True)
    x = keras.layers.LayerNormalization()(x + attended)
    hidden = keras.layers.Dense(2 * WIDTH, activation="gelu")(x)
    x = keras.layers.LayerNormalization()(x + keras.layers.Dense(WIDTH)(hidden))
net = keras.Model([words, padding], keras.layers.Dense(100)(x))
net.compile(
    keras.optimizers.Adam(1e-3),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    weighted_metrics=["accuracy"],
    jit_compile=False,
)
numbers = np.random.default_rng(2)
tokens = numbers.integers(0, 100, (32 * 6, LENGTH + 1)).astype("int32")
present = np.arange(LENGTH) < numbers.integers(LENGTH // 2, LENGTH, (32 * 6, 1))
data = tf.data.Dataset.from_tensor_slices(
    ((tokens[:, :-1], present), tokens[:, 1:], present.astype("float32"))
).batch(32)
history = net.fit(data, epochs=4, verbose=0)
for epoch, loss in enumerate(history.history["loss"]):
    print("epoch", epoch, f"{loss:.4g}")
