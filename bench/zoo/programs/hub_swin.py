"""keras-hub: a Swin transformer's windows and shifts, trained on batches one by one."""

import keras
import keras_hub
import numpy as np
import watch

keras.utils.set_random_seed(83)
numbers = np.random.default_rng(83)
backbone = keras_hub.models.SwinTransformerBackbone(
    image_shape=(32, 32, 3), patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4],
    window_size=4,
)  # fmt: skip
h = (
    keras.layers.GlobalAveragePooling2D()(backbone.output)
    if len(backbone.output.shape) == 4
    else keras.layers.GlobalAveragePooling1D()(backbone.output)
)
model = keras.Model(backbone.input, keras.layers.Dense(3)(h))
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(1e-3), loss)
watch.start(model)
for step in range(12):
    x = numbers.normal(size=(4, 32, 32, 3)).astype("float32")
    logs = model.train_on_batch(x, numbers.integers(0, 3, 4), return_dict=True)
    watch.step(model, model.optimizer, **logs)
    if step % 3 == 2:
        print("step", step, f"{logs['loss']:.4f}")
