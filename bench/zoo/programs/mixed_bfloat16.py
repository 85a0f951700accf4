"""`mixed_bfloat16`: a mixer of patches by `fit`, layer normalization in short numbers."""

import keras
import numpy as np
import watch

keras.utils.set_random_seed(11)
keras.mixed_precision.set_global_policy("mixed_bfloat16")
numbers = np.random.default_rng(11)
x = numbers.normal(size=(64, 16, 24)).astype("float32")
y = numbers.integers(0, 3, 64)
patches = keras.Input((16, 24))
h = keras.layers.Dense(32)(patches)
for _ in range(2):
    m = keras.layers.Permute((2, 1))(keras.layers.LayerNormalization()(h))
    m = keras.layers.Dense(16)(keras.layers.Dense(32, activation="gelu")(m))
    h += keras.layers.Permute((2, 1))(m)
    m = keras.layers.LayerNormalization()(h)
    h += keras.layers.Dense(32)(keras.layers.Dense(64, activation="gelu")(m))
h = keras.layers.GlobalAveragePooling1D()(h)
model = keras.Model(patches, keras.layers.Dense(3, dtype="float32")(h))
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.AdamW(1e-3), loss)
history = model.fit(x, y, batch_size=16, epochs=6, verbose=0, callbacks=[watch.callback(keras)])
print(*(f"{value:.2f}" for value in history.history["loss"]))
