"""A GAN over small images: transposed convolutions, two optimizers, two `tf.function`s in turn."""

import keras
import numpy as np
import tensorflow as tf
import watch

keras.utils.set_random_seed(15)
layers, numbers = keras.layers, np.random.default_rng(15)
maker = keras.Sequential(
    [
        keras.Input((8,)),
        layers.Dense(4 * 4 * 16, use_bias=False),
        layers.BatchNormalization(),
        layers.LeakyReLU(),
        layers.Reshape((4, 4, 16)),
        layers.Conv2DTranspose(1, 3, strides=2, padding="same", activation="tanh"),
    ]
)
critic = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        layers.Conv2D(16, 3, strides=2, padding="same"),
        layers.LeakyReLU(),
        layers.Dropout(0.3),
        layers.Flatten(),
        layers.Dense(1),
    ]
)
loss_of = keras.losses.BinaryCrossentropy(from_logits=True)
makes, judges = keras.optimizers.Adam(1e-3, beta_1=0.5), keras.optimizers.RMSprop(1e-3)
makes.build(maker.trainable_variables)
judges.build(critic.trainable_variables)


@tf.function
def judge(real, noise):
    with tf.GradientTape() as tape:
        true, fake = critic(real, training=True), critic(maker(noise, training=True), training=True)
        loss = loss_of(tf.ones_like(true), true) + loss_of(tf.zeros_like(fake), fake)
    gradients = tape.gradient(loss, critic.trainable_variables)
    judges.apply_gradients(zip(gradients, critic.trainable_variables))
    return loss


@tf.function
def make(noise):
    with tf.GradientTape() as tape:
        fake = critic(maker(noise, training=True), training=True)
        loss = loss_of(tf.ones_like(fake), fake)
    gradients = tape.gradient(loss, maker.trainable_variables)
    makes.apply_gradients(zip(gradients, maker.trainable_variables))
    return loss


watch.start(maker, critic)
for step in range(20):
    real = tf.constant(np.tanh(numbers.normal(size=(8, 8, 8, 1))), tf.float32)
    noise = tf.constant(numbers.normal(size=(8, 8)), tf.float32)
    judged, made = judge(real, noise), make(noise)
    watch.step(maker, critic, makes, judges, judged=judged, made=made)
    if step % 5 == 4:
        print("step", step, f"{float(judged):.4f} {float(made):.4f}")
