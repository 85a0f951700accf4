"""DeepCTR: DeepFM over sparse and dense features, Adagrad, AUC of its predictions."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"
import numpy as np
import tf_keras as keras
import watch
from deepctr.feature_column import DenseFeat, SparseFeat, get_feature_names
from deepctr.models import DeepFM

keras.utils.set_random_seed(90)
numbers = np.random.default_rng(90)
columns = [SparseFeat(f"c{n}", 40, embedding_dim=8) for n in range(5)]
columns += [DenseFeat(f"d{n}", 1) for n in range(3)]
x = {f"c{n}": numbers.integers(0, 40, 96) for n in range(5)}
x |= {f"d{n}": numbers.normal(size=96).astype("float32") for n in range(3)}
y = ((x["c0"] + x["c1"]) % 2).astype("float32")
model = DeepFM(columns, columns, dnn_hidden_units=(32, 16), task="binary")
model.compile(keras.optimizers.Adagrad(0.05), "binary_crossentropy")
given = {name: x[name] for name in get_feature_names(columns)}
history = model.fit(given, y, batch_size=16, epochs=5, verbose=0, callbacks=[watch.callback(keras)])
print(*(f"{value:.4f}" for value in history.history["loss"]))
print(f"{model.predict(given, batch_size=16, verbose=0).mean():.5f}")
