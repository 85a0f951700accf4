"""Keras 2 (tf-keras): a masked LSTM and a legacy optimizer, `train_on_batch`, then `predict`."""

import numpy as np
import tf_keras as keras
import watch

keras.utils.set_random_seed(61)
numbers = np.random.default_rng(61)
model = keras.Sequential(
    [
        keras.layers.Embedding(120, 16, mask_zero=True, input_length=12),
        keras.layers.LSTM(24, return_sequences=True),
        keras.layers.GRU(16),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(keras.optimizers.legacy.Adagrad(0.05), "binary_crossentropy", metrics=["accuracy"])
watch.start(model)
for step in range(24):
    x = numbers.integers(1, 120, (12, 12))
    x[np.arange(12) > numbers.integers(4, 12, (12, 1))] = 0
    logs = model.train_on_batch(x, (x.sum(1) > 500).astype("float32"), return_dict=True)
    watch.step(model, model.optimizer, **logs)
    if step % 6 == 5:
        print("step", step, f"{logs['loss']:.5f}")
print(f"{model.predict(x, verbose=0).mean():.5f}")
