"""Exponential moving averages of the weights that overwrite them every ten steps; clip by value."""

import keras
import numpy as np
import watch

keras.utils.set_random_seed(9)
numbers = np.random.default_rng(9)
x = numbers.normal(size=(96, 20)).astype("float32")
y = (x.sum(1) > 0).astype("float32")[:, None]
model = keras.Sequential(
    [
        keras.Input((20,)),
        keras.layers.Dense(48, activation="selu", kernel_regularizer="l2"),
        keras.layers.GaussianNoise(0.1),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
)
optimizer = keras.optimizers.SGD(
    keras.optimizers.schedules.CosineDecay(0.1, 60), momentum=0.9, clipvalue=0.1,
    use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=10,
)  # fmt: skip
model.compile(optimizer, "binary_crossentropy", metrics=["AUC"])
history = model.fit(x, y, batch_size=16, epochs=6, verbose=0, callbacks=[watch.callback(keras)])
for name, values in history.history.items():
    print(name, *(f"{value:.4f}" for value in values))
