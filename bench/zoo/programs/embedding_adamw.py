"""Text classification by `train_on_batch`: an embedding, convolutions over words, AdamW."""

import keras
import numpy as np
import watch

keras.utils.set_random_seed(2)
numbers = np.random.default_rng(2)
words = keras.Input((40,), dtype="int32")
h = keras.layers.Embedding(500, 32)(words)
h = keras.layers.Conv1D(64, 5, padding="same", activation="relu")(h)
h = keras.layers.GlobalMaxPooling1D()(h)
h = keras.layers.Dense(32, activation="swish")(h)
model = keras.Model(words, keras.layers.Dense(1)(h))
optimizer = keras.optimizers.AdamW(2e-3, weight_decay=0.01)
loss = keras.losses.BinaryCrossentropy(from_logits=True)
model.compile(optimizer, loss, metrics=[keras.metrics.BinaryAccuracy(threshold=0.0)])
watch.start(model)
for step in range(40):
    x = numbers.integers(0, 500, (16, 40))
    y = (x[:, :1] > 250).astype("float32")
    logs = model.train_on_batch(x, y, return_dict=True)
    watch.step(model, optimizer, **logs)
    if step % 8 == 7:
        print("step", step, f"{logs['loss']:.5f} {logs['binary_accuracy']:.4f}")
