"""keras.applications: NASNetMobile, predictions through a `tf.function` around it."""

import keras
import numpy as np
import tensorflow as tf
import watch

keras.utils.set_random_seed(55)
numbers = np.random.default_rng(55)
model = keras.applications.NASNetMobile((32, 32, 3), include_top=True, weights=None, classes=6)


@tf.function(reduce_retracing=True)
def infer(x):
    shares = model(x, training=False)
    return shares, -tf.reduce_sum(shares * tf.math.log(shares), -1)


for call in range(16):
    shares, entropy = infer(tf.constant(numbers.normal(size=(4 + call % 2, 32, 32, 3)), tf.float32))
    watch.step(shares, entropy)
    if call % 4 == 3:
        print("call", call, f"{float(tf.reduce_max(shares)):.4f} {float(entropy[0]):.4f}")
