"""A masked LSTM over sentences of many lengths: the recurrence is a loop in the step."""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)
net = keras.Sequential(
    [
        keras.layers.Embedding(50, 64, mask_zero=True),
        keras.layers.LSTM(128),
        keras.layers.Dense(128, activation="gelu"),
        keras.layers.Dense(4),
    ]
)
net.build((None, None))
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = keras.optimizers.Adam(2e-3)
optimizer.build(net.trainable_variables)


@tf.function(
    input_signature=[tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None], tf.int32)]
)
def step(words, labels):
    with tf.GradientTape() as tape:
        loss = loss_of(labels, net(words, training=True))
    gradients = tape.gradient(loss, net.trainable_variables)
    optimizer.apply_gradients(zip(gradients, net.trainable_variables))
    return loss


numbers = np.random.default_rng(2)
for i in range(24):
    length = 6 + i % 5
    words = numbers.integers(1, 50, (64, length)).astype("int32")
    words[::2, length // 2 :] = 0
    loss = step(tf.constant(words), tf.constant(words[:, 0] % 4))
    if i % 4 == 3:
        print("step", i, f"{float(loss):.4g}")
