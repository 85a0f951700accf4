"""keras-hub: ALBERT (one layer's weights for all), masked words predicted by `fit`."""

import keras
import keras_hub
import numpy as np
import watch

keras.utils.set_random_seed(80)
numbers = np.random.default_rng(80)
backbone = keras_hub.models.AlbertBackbone(
    vocabulary_size=120, num_layers=2, num_heads=4, embedding_dim=16, hidden_dim=32,
    intermediate_dim=64, max_sequence_length=16, dropout=0.1,
)  # fmt: skip
words = keras.layers.Dense(120)(backbone.output["sequence_output"])
model = keras.Model(backbone.input, words)
ids = numbers.integers(1, 120, (32, 12))
mask = (np.arange(12) < numbers.integers(5, 13, (32, 1))).astype("int32")
x = {"token_ids": ids, "segment_ids": ids * 0, "padding_mask": mask}
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.AdamW(1e-3), loss)
history = model.fit(
    x, ids, sample_weight=mask, batch_size=8, epochs=4, verbose=0, callbacks=[watch.callback(keras)]
)
print(*(f"{value:.4f}" for value in history.history["loss"]))
