"""`mixed_float16` with dynamic loss scaling: one batch overflows, and the scale halves."""

import keras
import numpy as np
import watch

keras.utils.set_random_seed(10)
keras.mixed_precision.set_global_policy("mixed_float16")
numbers = np.random.default_rng(10)
x = numbers.normal(size=(96, 12, 12, 3)).astype("float32")
x[40:44] *= 3e4
y = numbers.integers(0, 4, 96)
model = keras.Sequential(
    [
        keras.Input((12, 12, 3)),
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(32, activation="gelu"),
        keras.layers.Dense(4, dtype="float32"),
    ]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(1e-3), loss)
watch.start(model)
for step in range(24):
    rows = slice(step % 12 * 8, step % 12 * 8 + 8)
    logs = model.train_on_batch(x[rows], y[rows], return_dict=True)
    watch.step(model, model.optimizer, **logs)
    if step % 6 == 5:
        print("step", step, f"{logs['loss']:.2f} scale {float(model.optimizer.dynamic_scale):.0f}")
