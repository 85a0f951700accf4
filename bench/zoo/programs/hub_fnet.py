"""keras-hub: FNet, whose mixing is a Fourier transform, classifies by `fit`."""

import keras
import keras_hub
import numpy as np
import watch

keras.utils.set_random_seed(84)
numbers = np.random.default_rng(84)
backbone = keras_hub.models.FNetBackbone(
    vocabulary_size=110, num_layers=2, hidden_dim=32, intermediate_dim=64, max_sequence_length=16
)
model = keras.Model(backbone.input, keras.layers.Dense(2)(backbone.output["pooled_output"]))
ids = numbers.integers(1, 110, (40, 16))
y = (ids[:, 0] > 55).astype("int32")
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
x = {"token_ids": ids, "segment_ids": ids * 0}
history = model.fit(x, y, batch_size=8, epochs=4, verbose=0, callbacks=[watch.callback(keras)])
for name, values in history.history.items():
    print(name, *(f"{value:.4f}" for value in values))
