"""Video: Conv3D, group normalization, ConvLSTM2D, class weights and steps_per_execution with fit on a dataset."""

import keras
import numpy as np
import tensorflow as tf
import watch

keras.utils.set_random_seed(2)
L = keras.layers
inputs = keras.Input((6, 16, 16, 3))
x = L.Conv3D(12, 3, padding="same")(inputs)
x = L.GroupNormalization(4)(x)
x = L.Activation("mish")(x)
x = L.AveragePooling3D((1, 2, 2))(x)
x = L.ConvLSTM2D(8, 3, padding="same")(x)
x = L.UpSampling2D(2, interpolation="bilinear")(x)
x = L.Conv2DTranspose(6, 3, strides=2, padding="same", activation="relu")(x)
x = L.GlobalMaxPooling2D()(x)
outputs = L.Dense(3, "softmax")(x)
model = keras.Model(inputs, outputs)
model.compile(
    keras.optimizers.RMSprop(1e-3, centered=True),
    "categorical_crossentropy",
    metrics=["accuracy"],
    steps_per_execution=4,
)
numbers = np.random.default_rng(6)
y = numbers.integers(0, 3, 96)
x = (
    numbers.normal(0, 1, (96, 6, 16, 16, 3))
    + y[:, None, None, None, None] * np.arange(6)[None, :, None, None, None] * 0.1
).astype("float32")
data = (
    tf.data.Dataset.from_tensor_slices((x, np.eye(3, dtype="float32")[y]))
    .batch(8, drop_remainder=True)
    .repeat()
    .prefetch(2)
)
history = model.fit(
    data,
    steps_per_epoch=12,
    epochs=3,
    verbose=0,
    class_weight={0: 1.0, 1: 2.0, 2: 0.5},
    callbacks=[watch.callback(keras)],
)
print([f"{v:.3f}" for v in history.history["loss"]])
