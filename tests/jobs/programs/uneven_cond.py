"""A custom loop with an uneven last batch and a `tf.cond` that updates every third step."""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)
net = keras.Sequential(
    [
        keras.Input((256,)),
        keras.layers.Dense(256, activation="gelu"),
        keras.layers.LayerNormalization(),
        keras.layers.Dense(32),
    ]
)
variables = net.trainable_variables
sums = [tf.Variable(tf.zeros_like(variable), trainable=False) for variable in variables]
optimizer = keras.optimizers.AdamW(1e-3)
optimizer.build(variables)


@tf.function
def step(x, y, last):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.reduce_sum(tf.square(tf.nn.softmax(net(x)) - y), -1))
    for total, gradient in zip(sums, tape.gradient(loss, variables)):
        total.assign_add(gradient / 3)

    def update():
        optimizer.apply_gradients(zip([tf.identity(total) for total in sums], variables))
        for total in sums:
            total.assign(tf.zeros_like(total))
        return tf.constant(1)

    return loss, tf.cond(last, update, lambda: tf.constant(0))


numbers = np.random.default_rng(2)
x = numbers.normal(size=(64 * 5 + 17, 256)).astype("float32")
y = np.eye(32, dtype="float32")[numbers.integers(0, 32, len(x))]
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(64)
updates = count = 0
for epoch in range(5):
    for features, labels in data:
        count += 1
        loss, updated = step(features, labels, tf.constant(count % 3 == 0))
        updates += int(updated)
    print("epoch", epoch, f"{float(loss):.4g}", updates)
