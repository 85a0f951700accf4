"""A U-Net with skip connections, dice and focal losses, IoU metric, Lion, fit with a generator."""

import keras
import numpy as np
import tensorflow as tf
import watch

keras.utils.set_random_seed(29)
L = keras.layers


def block(x, width):
    for _ in range(2):
        x = L.SeparableConv2D(width, 3, padding="same", use_bias=False)(x)
        x = L.BatchNormalization()(x)
        x = L.Activation("relu6")(x)
    return x


inputs = keras.Input((32, 32, 3))
a = block(inputs, 16)
b = block(L.MaxPooling2D()(a), 24)
c = block(L.MaxPooling2D()(b), 32)
se = L.Dense(32, "hard_sigmoid")(L.Dense(8, "gelu")(L.GlobalAveragePooling2D()(c)))
c = L.Multiply()([c, L.Reshape((1, 1, 32))(se)])
x = block(L.Concatenate()([L.UpSampling2D(2)(c), b]), 24)
x = L.SpatialDropout2D(0.1, seed=5)(x)
x = block(L.Concatenate()([L.Conv2DTranspose(16, 2, strides=2)(x), a]), 16)
outputs = L.Conv2D(1, 1, activation="sigmoid")(x)
model = keras.Model(inputs, outputs)


def dice_focal(y, p):
    inter = tf.reduce_sum(y * p, [1, 2, 3])
    dice = 1 - (2 * inter + 1) / (tf.reduce_sum(y, [1, 2, 3]) + tf.reduce_sum(p, [1, 2, 3]) + 1)
    p = tf.clip_by_value(p, 1e-6, 1 - 1e-6)
    pt = tf.where(y > 0.5, p, 1 - p)
    focal = -tf.reduce_mean((1 - pt) ** 2 * tf.math.log(pt), [1, 2, 3])
    return tf.reduce_mean(dice + 2 * focal)


model.compile(keras.optimizers.Lion(3e-4), dice_focal, metrics=[keras.metrics.BinaryIoU([1])])
numbers = np.random.default_rng(12)


def batches():
    while True:
        x = numbers.normal(0, 1, (8, 32, 32, 3)).astype("float32")
        y = (x.sum(-1, keepdims=True) > 0.5).astype("float32")
        yield x, y


history = model.fit(
    batches(), steps_per_epoch=15, epochs=3, verbose=0, callbacks=[watch.callback(keras)]
)
print([f"{v:.3f}" for v in history.history["loss"]])
