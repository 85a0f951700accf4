"""`run_functions_eagerly` and `run_eagerly` switched on, and off again, in mid-run."""

import keras
import numpy as np
import tensorflow as tf
import watch

keras.utils.set_random_seed(31)
numbers = np.random.default_rng(31)
model = keras.Sequential(
    [keras.Input((12,)), keras.layers.Dense(24, "relu"), keras.layers.Dense(3)]
)
model.compile(keras.optimizers.Adam(0.01), "mse")
weight = tf.Variable(numbers.normal(0, 0.2, (12, 12)).astype("float32"))


@tf.function
def train(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(tf.nn.softmax(x @ weight) - tf.nn.softmax(tf.sin(x))))
    weight.assign_sub(5.0 * tape.gradient(loss, weight))
    return loss


watch.start(model, weight)
for step in range(48):
    if step in (16, 32):
        tf.config.run_functions_eagerly(step == 16)
        model.compile(model.optimizer, "mse", run_eagerly=step == 16)
    x = numbers.normal(size=(8, 12)).astype("float32")
    loss = train(tf.constant(x))
    logs = model.train_on_batch(x, x[:, :3] ** 2, return_dict=True)
    watch.step(model, weight, loss=loss, **{"of model": logs["loss"]})
    if step % 8 == 7:
        print("step", step, f"{float(loss):.6f} {float(logs['loss']):.5f}")
