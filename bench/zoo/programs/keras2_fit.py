"""Keras 2 (tf-keras): a functional network by `fit`, its own Adam, regularizers, a callback."""

import numpy as np
import tf_keras as keras
import watch

keras.utils.set_random_seed(60)
numbers = np.random.default_rng(60)
x = numbers.normal(size=(100, 30)).astype("float32")
y = numbers.integers(0, 4, 100)
inputs = keras.Input((30,))
h = keras.layers.Dense(64, activation="relu", kernel_regularizer="l2")(inputs)
h = keras.layers.BatchNormalization()(h)
h = keras.layers.Dropout(0.2)(h)
model = keras.Model(inputs, keras.layers.Dense(4)(h))
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(2e-3, clipnorm=1.0), loss, metrics=["accuracy"])
callbacks = [watch.callback(keras), keras.callbacks.TerminateOnNaN()]
history = model.fit(x, y, batch_size=16, epochs=5, verbose=0, callbacks=callbacks)
for name, values in history.history.items():
    print(name, *(f"{value:.4f}" for value in values))
