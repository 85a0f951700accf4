"""Keras' own gradient accumulation: variables move with every fourth batch."""

import keras
import numpy as np
import watch

keras.utils.set_random_seed(8)
numbers = np.random.default_rng(8)
x = numbers.normal(size=(128, 32)).astype("float32")
y = np.tanh(x @ numbers.normal(size=(32, 4)) / 6).astype("float32")
model = keras.Sequential(
    [
        keras.Input((32,)),
        keras.layers.Dense(64, activation="elu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(64, activation="softplus"),
        keras.layers.Dense(4, activation="tanh"),
    ]
)
optimizer = keras.optimizers.Adam(2e-3, gradient_accumulation_steps=4, clipnorm=1.0)
model.compile(optimizer, "mse", metrics=["mae"])
history = model.fit(x, y, batch_size=8, epochs=3, verbose=0, callbacks=[watch.callback(keras)])
for name, values in history.history.items():
    print(name, *(f"{value:.5f}" for value in values))
