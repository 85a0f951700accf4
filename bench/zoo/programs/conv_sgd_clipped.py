"""A residual network by GradientTape: batch normalization, SGD with Nesterov, global-norm clipping."""

import keras
import numpy as np
import tensorflow as tf
import watch

keras.utils.set_random_seed(3)
numbers = np.random.default_rng(3)


def block(x, filters):
    h = keras.layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
    h = keras.layers.BatchNormalization()(h)
    h = keras.layers.ReLU()(h)
    h = keras.layers.Conv2D(filters, 3, padding="same", use_bias=False)(h)
    h = keras.layers.BatchNormalization()(h)
    return keras.layers.ReLU()(keras.layers.Add()([x, h]))


image = keras.Input((16, 16, 3))
h = keras.layers.Conv2D(16, 3, padding="same")(image)
h = keras.layers.MaxPooling2D()(block(block(h, 16), 16))
h = keras.layers.GlobalAveragePooling2D()(h)
model = keras.Model(image, keras.layers.Dense(5)(h))
optimizer = keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True)
optimizer.build(model.trainable_variables)


@tf.function
def train(x, y):
    with tf.GradientTape() as tape:
        logits = model(x, training=True)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        loss += 1e-4 * tf.add_n([tf.nn.l2_loss(v) for v in model.trainable_variables])
    gradients = tape.gradient(loss, model.trainable_variables)
    gradients, norm = tf.clip_by_global_norm(gradients, 1.0)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss, norm


watch.start(model)
for step in range(24):
    x = tf.constant(numbers.normal(size=(8, 16, 16, 3)), tf.float32)
    y = tf.constant(numbers.integers(0, 5, 8))
    loss, norm = train(x, y)
    watch.step(model, optimizer, loss=loss, norm=norm)
    if step % 6 == 5:
        print("step", step, f"{float(loss):.4f} {float(norm):.4f}")
