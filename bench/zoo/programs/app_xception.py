"""keras.applications: Xception, two training batches after another by `train_on_batch`, SGD."""

import keras
import numpy as np
import watch

keras.utils.set_random_seed(50)
numbers = np.random.default_rng(50)
base = keras.applications.Xception(
    weights=None, include_top=False, input_shape=(71, 71, 3), pooling="avg"
)
model = keras.Sequential([base, keras.layers.Dense(4)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(1e-3), loss)
watch.start(model)
for step in range(8):
    x = numbers.normal(size=(4, 71, 71, 3)).astype("float32")
    logs = model.train_on_batch(x, numbers.integers(0, 4, 4), return_dict=True)
    watch.step(model, model.optimizer, **logs)
    print("step", step, f"{logs['loss']:.3f}")
