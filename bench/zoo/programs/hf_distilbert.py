"""transformers: DistilBERT classifies sentences of several lengths, `fit` with its own loss."""

import numpy as np
import tensorflow as tf
import tf_keras as keras
import watch
from transformers import DistilBertConfig, TFDistilBertForSequenceClassification

keras.utils.set_random_seed(70)
numbers = np.random.default_rng(70)
config = DistilBertConfig(
    vocab_size=200, dim=32, hidden_dim=64, n_layers=2, n_heads=4, max_position_embeddings=32, num_labels=3
)  # fmt: skip
model = TFDistilBertForSequenceClassification(config)
ids = numbers.integers(5, 200, (48, 14))
mask = (np.arange(14) < numbers.integers(5, 15, (48, 1))).astype("int64")
y = numbers.integers(0, 3, 48)
model({"input_ids": ids[:2], "attention_mask": mask[:2]})
model.compile(keras.optimizers.Adam(1e-3))
data = tf.data.Dataset.from_tensor_slices(
    ({"input_ids": ids, "attention_mask": mask, "labels": y}, y)
)
history = model.fit(data.batch(8), epochs=4, verbose=0, callbacks=[watch.callback(keras)])
print(*(f"{value:.4f}" for value in history.history["loss"]))
