"""A `tf.range` loop of training steps in which two optimizers update two parts of a model."""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)
body = keras.Sequential(
    [keras.Input((256,)), keras.layers.Dense(256, activation="gelu"), keras.layers.Dense(256)]
)
head = keras.Sequential([keras.Input((256,)), keras.layers.Dense(64)])
slow, fast = keras.optimizers.SGD(0.05, momentum=0.9), keras.optimizers.Adam(1e-3)
slow.build(body.trainable_variables)
fast.build(head.trainable_variables)


@tf.function
def steps(x, y, count):
    loss = 0.0
    for _ in tf.range(count):
        with tf.GradientTape() as tape:
            hidden = tf.nn.softmax(body(x) / 4.0) * 16.0
            loss = tf.reduce_mean(tf.square(head(hidden) - y))
        variables = body.trainable_variables + head.trainable_variables
        gradients = tape.gradient(loss, variables)
        cut = len(body.trainable_variables)
        slow.apply_gradients(zip(gradients[:cut], body.trainable_variables))
        fast.apply_gradients(zip(gradients[cut:], head.trainable_variables))
    return loss


numbers = np.random.default_rng(2)
x = tf.constant(numbers.normal(size=(128, 256)), tf.float32)
y = tf.constant(numbers.normal(size=(128, 64)), tf.float32)
for i in range(10):
    print("call", i, f"{float(steps(x, y, 3)):.4g}")
print("iterations", int(slow.iterations), int(fast.iterations))
