"""Keras train_step of one's own: VAE with KL warm-up, EMA weights, validation, ReduceLROnPlateau and EarlyStopping."""

import keras
import numpy as np
import tensorflow as tf
import watch

keras.utils.set_random_seed(19)
L = keras.layers


class VAE(keras.Model):
    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential(
            [
                L.Conv2D(16, 3, strides=2, padding="same"),
                L.BatchNormalization(),
                L.PReLU(),
                L.Conv2D(24, 3, strides=2, padding="same", activation="elu"),
                L.Flatten(),
                L.Dense(2 * 8),
            ]
        )
        self.decoder = keras.Sequential(
            [
                L.Dense(5 * 5 * 24, "selu"),
                L.Reshape((5, 5, 24)),
                L.Conv2DTranspose(16, 3, strides=2, padding="same"),
                L.LeakyReLU(),
                L.Conv2DTranspose(1, 3, strides=2, padding="same"),
            ]
        )
        self.warm = self.add_weight(shape=(), initializer="zeros", trainable=False)
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.kl_tracker = keras.metrics.Mean(name="kl")

    @property
    def metrics(self):
        return [self.loss_tracker, self.kl_tracker]

    def losses_of(self, x, training):
        mean, logv = tf.split(self.encoder(x, training=training), 2, 1)
        noise = tf.random.stateless_normal(
            tf.shape(mean), tf.stack([tf.cast(self.warm * 1000, tf.int32), 3])
        )
        z = mean + tf.exp(0.5 * logv) * noise
        out = self.decoder(z, training=training)
        rec = tf.reduce_mean(
            tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(x, out), [1, 2, 3])
        )
        kl = -0.5 * tf.reduce_mean(tf.reduce_sum(1 + logv - mean**2 - tf.exp(logv), 1))
        return rec, kl

    def train_step(self, data):
        with tf.GradientTape() as tape:
            rec, kl = self.losses_of(data, True)
            loss = rec + self.warm * kl
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        self.warm.assign(tf.minimum(1.0, self.warm + 0.02))
        self.loss_tracker.update_state(loss)
        self.kl_tracker.update_state(kl)
        return {m.name: m.result() for m in self.metrics}

    def test_step(self, data):
        rec, kl = self.losses_of(data, False)
        self.loss_tracker.update_state(rec + kl)
        self.kl_tracker.update_state(kl)
        return {m.name: m.result() for m in self.metrics}


numbers = np.random.default_rng(8)
grid = np.stack(np.meshgrid(np.arange(20), np.arange(20)), -1)
centres = numbers.uniform(5, 15, (320, 1, 1, 2))
images = (np.exp(-((grid - centres) ** 2).sum(-1) / 12) > 0.5).astype("float32")[..., None]
model = VAE()
model.compile(keras.optimizers.AdamW(2e-3, clipnorm=5.0, use_ema=True, ema_momentum=0.95))
model.encoder(images[:2]), model.decoder(np.zeros((2, 8), "float32"))
model.built = True
history = model.fit(
    images[:256],
    batch_size=32,
    epochs=5,
    validation_data=(images[256:],),
    verbose=0,
    callbacks=[
        watch.callback(keras),
        keras.callbacks.ReduceLROnPlateau(patience=1),
        keras.callbacks.EarlyStopping(patience=4),
    ],
)
print([f"{v:.2f}" for v in history.history["loss"]])
