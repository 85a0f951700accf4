"""Keras `fit` with several steps in one call: the training step is the body of a loop."""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)
net = keras.Sequential(
    [
        keras.Input((128,)),
        keras.layers.Dense(256, activation="gelu"),
        keras.layers.LayerNormalization(),
        keras.layers.Dense(256, activation="gelu"),
        keras.layers.Dense(10),
    ]
)
net.compile(
    keras.optimizers.Adam(1e-3),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    steps_per_execution=4,
    jit_compile=False,
)
numbers = np.random.default_rng(2)
x = numbers.normal(size=(64 * 8, 128)).astype("float32")
y = numbers.integers(0, 10, 64 * 8)
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(64)
history = net.fit(data, epochs=4, verbose=0)
for epoch, loss in enumerate(history.history["loss"]):
    print("epoch", epoch, f"{loss:.4g}")
