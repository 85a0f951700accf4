"""A small encoder by GradientTape under LAMB, with label smoothing and a causal mask."""

import keras
import numpy as np
import tensorflow as tf
import watch

keras.utils.set_random_seed(4)
numbers = np.random.default_rng(4)
tokens = keras.Input((24,), dtype="int32")
places = keras.ops.arange(24)
h = keras.layers.Embedding(100, 32)(tokens) + keras.layers.Embedding(24, 32)(places)
for _ in range(2):
    a = keras.layers.LayerNormalization(epsilon=1e-6)(h)
    h += keras.layers.MultiHeadAttention(4, 8, dropout=0.1)(a, a, use_causal_mask=True)
    m = keras.layers.LayerNormalization(epsilon=1e-6)(h)
    m = keras.layers.Dense(64, activation="gelu")(m)
    h += keras.layers.Dropout(0.1)(keras.layers.Dense(32)(m))
model = keras.Model(tokens, keras.layers.Dense(100)(h))
optimizer = keras.optimizers.Lamb(5e-3)
optimizer.build(model.trainable_variables)
loss_of = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)


@tf.function
def train(x):
    with tf.GradientTape() as tape:
        logits = model(x[:, :-1], training=True)
        loss = loss_of(tf.one_hot(x[:, 1:], 100), logits)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


watch.start(model)
for step in range(24):
    loss = train(tf.constant(numbers.integers(0, 100, (8, 25)), tf.int32))
    watch.step(model, optimizer, loss=loss)
    if step % 6 == 5:
        print("step", step, f"{float(loss):.5f}")
