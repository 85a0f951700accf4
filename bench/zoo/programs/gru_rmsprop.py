"""A GRU over masked sequences of several lengths, by `fit`, RMSprop centred with momentum."""

import keras
import numpy as np
import watch

keras.utils.set_random_seed(5)
numbers = np.random.default_rng(5)
x = numbers.normal(size=(64, 20, 8)).astype("float32")
for row, length in enumerate(numbers.integers(5, 21, 64)):
    x[row, length:] = 0
y = x.sum((1, 2), keepdims=False)[:, None]
model = keras.Sequential(
    [
        keras.Input((20, 8)),
        keras.layers.Masking(0.0),
        keras.layers.GRU(32, return_sequences=True),
        keras.layers.GRU(16),
        keras.layers.Dense(1),
    ]
)
model.compile(keras.optimizers.RMSprop(1e-3, momentum=0.5, centered=True), "huber")
history = model.fit(x, y, batch_size=16, epochs=6, verbose=0, callbacks=[watch.callback(keras)])
print(*(f"{value:.5f}" for value in history.history["loss"]))
