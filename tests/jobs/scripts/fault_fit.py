"""Keras fit with dropout and Adam."""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(4)
layers = keras.layers
net = keras.Sequential(
    [keras.Input((64,)), layers.Dense(128, activation="gelu"), layers.LayerNormalization(),
     layers.Dropout(0.2, seed=6), layers.Dense(10)]
)  # fmt: skip
net.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
random = np.random.RandomState(2)
x, y = random.rand(1920, 64).astype("float32"), random.randint(0, 10, 1920)


class Told(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        print("step", batch, f"{logs['loss']:.7g}")


net.fit(x, y, batch_size=32, epochs=4, shuffle=False, verbose=0, callbacks=[Told()])
print("variables", *(f"{float(tf.reduce_sum(tf.abs(v))):.7g}" for v in net.trainable_variables))
