"""Callbacks: the learning rate is set by hand, halved on a plateau, and layers freeze in mid-run."""

import keras
import numpy as np
import watch

keras.utils.set_random_seed(26)
numbers = np.random.default_rng(26)
x = numbers.normal(size=(64, 24)).astype("float32")
y = np.sin(x[:, :2]).astype("float32")
base = keras.layers.Dense(32, activation="relu", name="base")
model = keras.Sequential(
    [keras.Input((24,)), base, keras.layers.Dense(16, "tanh"), keras.layers.Dense(2)]
)
rates = keras.callbacks.LearningRateScheduler(
    lambda epoch, rate: rate * (0.8 if epoch % 2 else 1.0)
)
plateau = keras.callbacks.ReduceLROnPlateau("loss", 0.5, patience=1, min_delta=0.05)
stop = keras.callbacks.EarlyStopping("loss", patience=3, restore_best_weights=True)
callbacks = [rates, plateau, stop, watch.callback(keras)]
model.compile(keras.optimizers.Adam(0.01), "mse")
for part in range(3):
    history = model.fit(x, y, batch_size=16, epochs=4, verbose=0, callbacks=callbacks)
    print("part", part, *(f"{value:.5f}" for value in history.history["loss"]))
    print("rate", f"{float(model.optimizer.learning_rate):.6f}", len(model.trainable_variables))
    if part == 0:
        base.trainable = False
        model.compile(keras.optimizers.Adam(0.005), "mse")
    else:
        base.trainable = True
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mae")
