"""`model.evaluate` and `test_on_batch` of a small network, several metrics at once."""

import keras
import numpy as np
import watch

keras.utils.set_random_seed(37)
numbers = np.random.default_rng(37)
model = keras.Sequential(
    [
        keras.Input((14, 14, 2)),
        keras.layers.Conv2D(12, 3, activation="leaky_relu"),
        keras.layers.BatchNormalization(),
        keras.layers.SeparableConv2D(16, 3, activation="hard_silu"),
        keras.layers.AveragePooling2D(2),
        keras.layers.Flatten(),
        keras.layers.Dense(5, activation="softmax"),
    ]
)
metrics = ["accuracy", keras.metrics.TopKCategoricalAccuracy(2), keras.metrics.KLDivergence()]
model.compile(loss="categorical_crossentropy", metrics=metrics)
for call in range(5):
    x = numbers.normal(size=(60, 14, 14, 2)).astype("float32")
    y = np.eye(5, dtype="float32")[numbers.integers(0, 5, 60)]
    found = model.evaluate(
        x, y, batch_size=12, verbose=0, return_dict=True, callbacks=[watch.callback(keras)]
    )
    print("call", call, *(f"{name} {value:.5f}" for name, value in found.items()))
print(*(f"{value:.5f}" for value in model.test_on_batch(x[:12], y[:12])))
