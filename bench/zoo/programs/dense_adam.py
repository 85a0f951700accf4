"""keras.Sequential by `fit`: dropout, layer normalization, Adam, a remainder batch."""

import keras
import numpy as np
import watch

keras.utils.set_random_seed(1)
numbers = np.random.default_rng(1)
x = numbers.normal(size=(120, 64)).astype("float32")
y = numbers.integers(0, 10, 120)
model = keras.Sequential(
    [
        keras.Input((64,)),
        keras.layers.Dense(128, activation="gelu"),
        keras.layers.LayerNormalization(),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(10),
    ]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("adam", loss, metrics=["accuracy"])
history = model.fit(x, y, batch_size=16, epochs=4, verbose=0, callbacks=[watch.callback(keras)])
for name, values in history.history.items():
    print(name, *(f"{value:.5f}" for value in values))
