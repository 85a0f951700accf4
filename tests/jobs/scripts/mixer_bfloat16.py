"""Gradients of a mixer of patches in mixed bfloat16, or in float64 from the same weights.

mixer_bfloat16.py POLICY GRADIENTS.npz
"""

import sys

import keras
import numpy as np
import tensorflow as tf


def mixer(policy):
    keras.mixed_precision.set_global_policy(policy)
    exact = policy == "float64"
    keras.backend.set_floatx("float64" if exact else "float32")
    patches = keras.Input((16, 24))
    h = keras.layers.Dense(32)(patches)
    for _ in range(2):
        m = keras.layers.Permute((2, 1))(keras.layers.LayerNormalization()(h))
        m = keras.layers.Dense(16)(keras.layers.Dense(32, activation="gelu")(m))
        h += keras.layers.Permute((2, 1))(m)
        m = keras.layers.LayerNormalization()(h)
        h += keras.layers.Dense(32)(keras.layers.Dense(64, activation="gelu")(m))
    h = keras.layers.GlobalAveragePooling1D()(h)
    return keras.Model(patches, keras.layers.Dense(3, dtype="float64" if exact else "float32")(h))


policy, out = sys.argv[1:]
keras.utils.set_random_seed(11)
random = np.random.default_rng(11)
weights = mixer("mixed_bfloat16").get_weights()
weights = [w + 0.1 * random.normal(size=w.shape) if w.ndim == 1 else w for w in weights]
model = mixer(policy)
model.set_weights([w.astype("float32") for w in weights])
x = tf.constant(random.normal(size=(64, 16, 24)).astype("float32"))
y = tf.constant(random.integers(0, 3, 64))
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        value = loss(y, model(x, training=True))
    return tape.gradient(value, model.trainable_variables)


for _ in range(40):
    gradients = step(x, y)
np.savez(out, *(np.asarray(gradient, "float64") for gradient in gradients))
