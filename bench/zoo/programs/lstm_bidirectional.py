"""Bidirectional LSTMs over padded words (`mask_zero`), `fit` with sample weights."""

import keras
import numpy as np
import watch

keras.utils.set_random_seed(7)
numbers = np.random.default_rng(7)
x = numbers.integers(1, 200, (48, 16))
for row, length in enumerate(numbers.integers(4, 17, 48)):
    x[row, length:] = 0
y = numbers.integers(0, 6, (48, 16))
weight = (x > 0).astype("float32")
model = keras.Sequential(
    [
        keras.Input((16,), dtype="int32"),
        keras.layers.Embedding(200, 24, mask_zero=True),
        keras.layers.Bidirectional(keras.layers.LSTM(24, return_sequences=True)),
        keras.layers.Dense(6),
    ]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Nadam(3e-3), loss, weighted_metrics=["accuracy"])
history = model.fit(
    x, y, batch_size=12, epochs=6, sample_weight=weight, verbose=0, shuffle=False,
    callbacks=[watch.callback(keras)],
)  # fmt: skip
for name, values in history.history.items():
    print(name, *(f"{value:.5f}" for value in values))
