"""Words as strings: `StringLookup` and `Hashing` inside the model, from a `tf.data` pipeline."""

import keras
import numpy as np
import tensorflow as tf
import watch

keras.utils.set_random_seed(19)
numbers = np.random.default_rng(19)
vocabulary = [f"word{n}" for n in range(60)]
drawn = numbers.integers(0, 70, (80, 6))
names = np.array([[f"word{n}" for n in row] for row in drawn])
target = (drawn.sum(1) % 2).astype("float32")
data = tf.data.Dataset.from_tensor_slices((names, target)).batch(16)
lookup = keras.layers.StringLookup(vocabulary=vocabulary)
hashing = keras.layers.Hashing(32)
words = keras.Input((6,), dtype="string")
looked = keras.layers.Embedding(61, 16)(lookup(words))
hashed = keras.layers.Embedding(32, 8)(hashing(words))
h = keras.layers.Flatten()(keras.layers.Concatenate()([looked, hashed]))
h = keras.layers.Dense(32, activation="mish")(h)
model = keras.Model(words, keras.layers.Dense(1, activation="sigmoid")(h))
model.compile(keras.optimizers.Adagrad(0.1), "binary_crossentropy", metrics=["accuracy"])
history = model.fit(data, epochs=8, verbose=0, callbacks=[watch.callback(keras)])
for name, values in history.history.items():
    print(name, *(f"{value:.5f}" for value in values))
