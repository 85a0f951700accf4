"""DeepCTR: AutoInt's self-attention over features, `train_on_batch`, Adam."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"
import numpy as np
import tf_keras as keras
import watch
from deepctr.feature_column import SparseFeat
from deepctr.models import AutoInt

keras.utils.set_random_seed(91)
numbers = np.random.default_rng(91)
columns = [SparseFeat(f"c{n}", 30, embedding_dim=8) for n in range(6)]
model = AutoInt(columns, columns, att_layer_num=2, att_embedding_size=4, dnn_hidden_units=(16,))
model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy")
watch.start(model)
for step in range(24):
    x = {f"c{n}": numbers.integers(0, 30, 16) for n in range(6)}
    logs = model.train_on_batch(x, (x["c0"] % 2).astype("float32"), return_dict=True)
    watch.step(model, model.optimizer, **logs)
    if step % 6 == 5:
        print("step", step, f"{logs['loss']:.5f}")
