"""DeepCTR: DIN attends over a history of uneven length with respect to the item shown."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"
import numpy as np
import tf_keras as keras
import watch
from deepctr.feature_column import SparseFeat, VarLenSparseFeat
from deepctr.models import DIN

keras.utils.set_random_seed(92)
numbers = np.random.default_rng(92)
item = SparseFeat("item", 50, embedding_dim=8)
past = SparseFeat("hist_item", 50, embedding_dim=8, embedding_name="item")
columns = [SparseFeat("user", 20, embedding_dim=4), item]
columns.append(VarLenSparseFeat(past, maxlen=6, length_name="length"))
model = DIN(columns, ["item"], dnn_hidden_units=(24, 8), att_hidden_size=(16, 8))
model.compile(keras.optimizers.Adam(0.005), "binary_crossentropy", metrics=["accuracy"])
x = {
    "user": numbers.integers(0, 20, 80),
    "item": numbers.integers(1, 50, 80),
    "hist_item": numbers.integers(1, 50, (80, 6)),
    "length": numbers.integers(1, 7, 80),
}
x["hist_item"][np.arange(6) >= x["length"][:, None]] = 0
y = (x["item"] % 3 == 0).astype("float32")
history = model.fit(x, y, batch_size=16, epochs=5, verbose=0, callbacks=[watch.callback(keras)])
for name, values in history.history.items():
    print(name, *(f"{value:.4f}" for value in values))
