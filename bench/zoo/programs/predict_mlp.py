"""`model.predict` in a loop, with a remainder batch; nothing is ever trained."""

import keras
import numpy as np
import watch

keras.utils.set_random_seed(36)
numbers = np.random.default_rng(36)
inputs = keras.Input((48,))
h = inputs
for width in (96, 64):
    h = keras.layers.Dense(width, activation="gelu")(h)
    h = keras.layers.LayerNormalization()(h)
h = keras.layers.Dense(12)(h)
model = keras.Model(inputs, keras.layers.Softmax()(h))
for call in range(6):
    x = numbers.normal(size=(70, 48)).astype("float32")
    y = model.predict(x, batch_size=16, verbose=0, callbacks=[watch.callback(keras)])
    print("call", call, y.shape, f"{y.max():.5f} {np.log(y).mean():.5f}", *y.argmax(1)[:6])
