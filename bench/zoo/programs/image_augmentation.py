"""Augmentation in the model: flips, crops, contrast, drawn anew for each batch, then Lion."""

import keras
import numpy as np
import watch

keras.utils.set_random_seed(45)
numbers = np.random.default_rng(45)
x = (numbers.random(size=(60, 20, 20, 3)) * 255).astype("float32")
y = numbers.integers(0, 2, 60)
model = keras.Sequential(
    [
        keras.Input((20, 20, 3)),
        keras.layers.Rescaling(1 / 127.5, offset=-1),
        keras.layers.RandomFlip("horizontal", seed=1),
        keras.layers.RandomTranslation(0.1, 0.1, seed=2),
        keras.layers.RandomContrast(0.2, seed=3, value_range=(-1, 1)),
        keras.layers.DepthwiseConv2D(3, activation="relu"),
        keras.layers.Conv2D(8, 1, activation="relu"),
        keras.layers.GlobalMaxPooling2D(),
        keras.layers.Dense(2),
    ]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Lion(1e-3), loss)
history = model.fit(x, y, batch_size=12, epochs=5, verbose=0, callbacks=[watch.callback(keras)])
print(*(f"{value:.5f}" for value in history.history["loss"]))
