"""keras.applications: EfficientNetB0 at 32 pixels by GradientTape: swish, squeeze, stochastic depth."""

import keras
import numpy as np
import tensorflow as tf
import watch

keras.utils.set_random_seed(53)
numbers = np.random.default_rng(53)
model = keras.applications.EfficientNetB0(weights=None, input_shape=(32, 32, 3), classes=5)
optimizer = keras.optimizers.RMSprop(1e-4)
optimizer.build(model.trainable_variables)


@tf.function
def train(x, y):
    with tf.GradientTape() as tape:
        shares = model(x, training=True)
        loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, shares))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


watch.start(model)
for step in range(8):
    x = tf.constant(numbers.random(size=(8, 32, 32, 3)) * 255, tf.float32)
    loss = train(x, tf.constant(numbers.integers(0, 5, 8)))
    watch.step(model, optimizer, loss=loss)
    print("step", step, f"{float(loss):.3f}")
