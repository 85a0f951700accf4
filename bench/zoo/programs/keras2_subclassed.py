"""Keras 2 (tf-keras): a subclassed autoencoder with its own `train_step` and `add_loss`."""

import numpy as np
import tensorflow as tf
import tf_keras as keras
import watch

keras.utils.set_random_seed(62)
numbers = np.random.default_rng(62)


class Autoencoder(keras.Model):
    def __init__(self):
        super().__init__()
        self.encode = keras.layers.Dense(16)
        self.decode = keras.Sequential([keras.layers.Dense(48, "elu"), keras.layers.Dense(28)])
        self.mean = keras.metrics.Mean(name="loss")

    def call(self, x, training=False):
        mean, log = tf.split(self.encode(x), 2, -1)
        self.add_loss(0.01 * tf.reduce_mean(tf.square(mean) + tf.exp(log) - log - 1.0))
        noise = tf.random.stateless_normal(tf.shape(mean), [1, 2]) if training else 0.0
        return self.decode(mean + tf.exp(0.5 * log) * noise)

    def train_step(self, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - x)) + sum(self.losses)
        self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
        self.mean.update_state(loss)
        return {"loss": self.mean.result()}


model = Autoencoder()
model.compile(keras.optimizers.AdamW(3e-3))
x = numbers.normal(size=(80, 28)).astype("float32")
model(x[:1])
history = model.fit(x, batch_size=16, epochs=6, verbose=0, callbacks=[watch.callback(keras)])
print(*(f"{value:.5f}" for value in history.history["loss"]))
