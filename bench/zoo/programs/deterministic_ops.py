"""`enable_op_determinism`: two runs of the same steps in one process must agree bit for bit."""

import keras
import numpy as np
import tensorflow as tf
import watch

tf.config.experimental.enable_op_determinism()
numbers = np.random.default_rng(30)
x = numbers.normal(size=(40, 10, 10, 3)).astype("float32")
y = numbers.integers(0, 3, 40)


def trained():
    keras.utils.set_random_seed(30)
    model = keras.Sequential(
        [
            keras.Input((10, 10, 3)),
            keras.layers.Conv2D(8, 3, activation="relu"),
            keras.layers.SpatialDropout2D(0.2),
            keras.layers.Flatten(),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.Dense(3),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss)
    history = model.fit(x, y, batch_size=10, epochs=5, verbose=0, callbacks=[watch.callback(keras)])
    print(*(f"{value:.5f}" for value in history.history["loss"]))
    return b"".join(v.numpy().tobytes() for v in model.trainable_variables)


print("the same bits", trained() == trained())
print("drawn", f"{float(tf.random.uniform([], seed=3)):.6f}")
