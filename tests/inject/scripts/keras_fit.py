"""A user's program: Keras fit whose last batch is smaller. EPOCHS [PAUSE_SECONDS]"""

import sys
import time

import keras
import numpy as np

keras.utils.set_random_seed(0)
inputs = keras.Input((64,))
h = keras.layers.Dense(128, activation="relu")(inputs)
h = keras.layers.LayerNormalization()(h)
model = keras.Model(inputs, keras.layers.Dense(10)(h))
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
x, y = np.random.randn(330, 64).astype("f"), np.random.randint(0, 10, 330)
pause = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0


class Print(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        print(f"{float(logs['loss'])!r}", flush=True)
        time.sleep(pause)


model.fit(
    x, y, epochs=int(sys.argv[1]), batch_size=32, verbose=0, shuffle=False, callbacks=[Print()]
)
