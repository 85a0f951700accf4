"""DeepCTR: MMOE, two tasks over shared experts, two losses with weights."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"
import numpy as np
import tf_keras as keras
import watch
from deepctr.feature_column import DenseFeat, SparseFeat
from deepctr.models import MMOE

keras.utils.set_random_seed(93)
numbers = np.random.default_rng(93)
columns = [SparseFeat(f"c{n}", 30, embedding_dim=4) for n in range(4)] + [DenseFeat("d", 6)]
model = MMOE(
    columns, num_experts=3, expert_dnn_hidden_units=(16,), tower_dnn_hidden_units=(8,),
    task_types=("binary", "regression"), task_names=("click", "time"),
)  # fmt: skip
model.compile(
    keras.optimizers.RMSprop(0.005), ["binary_crossentropy", "mse"], loss_weights=[1.0, 0.5]
)
x = {f"c{n}": numbers.integers(0, 30, 64) for n in range(4)}
x["d"] = numbers.normal(size=(64, 6)).astype("float32")
y = [(x["c0"] > 14).astype("float32"), x["d"].sum(1)]
history = model.fit(x, y, batch_size=16, epochs=5, verbose=0, callbacks=[watch.callback(keras)])
for name, values in sorted(history.history.items()):
    print(name, *(f"{value:.4f}" for value in values))
