"""A GAN with an unknown batch: two optimizers, labels of as many rows as the images have."""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)


def dense(inputs, outputs):
    return keras.Sequential(
        [
            keras.Input((inputs,)),
            keras.layers.Dense(256),
            keras.layers.LeakyReLU(negative_slope=0.2),
            keras.layers.LayerNormalization(),
            keras.layers.Dense(outputs),
        ]
    )


generator, critic = dense(32, 128), dense(128, 1)
loss_of = keras.losses.BinaryCrossentropy(from_logits=True)
makes, judges = keras.optimizers.Adam(1e-3), keras.optimizers.Adam(1e-3)
makes.build(generator.trainable_variables)
judges.build(critic.trainable_variables)


@tf.function(input_signature=[tf.TensorSpec([None, 128])])
def step(real):
    noise = tf.random.normal([tf.shape(real)[0], 32], seed=7)
    with tf.GradientTape() as of_generator, tf.GradientTape() as of_critic:
        fake = generator(noise, training=True)
        both = critic(tf.concat([real, fake], 0), training=True)
        truth, lie = tf.split(both, 2)
        labels = tf.concat([tf.ones_like(truth), tf.zeros_like(lie)], 0)
        judged = loss_of(labels, both)
        made = loss_of(tf.ones_like(lie), lie)
    gradients = of_critic.gradient(judged, critic.trainable_variables)
    judges.apply_gradients(zip(gradients, critic.trainable_variables))
    gradients = of_generator.gradient(made, generator.trainable_variables)
    makes.apply_gradients(zip(gradients, generator.trainable_variables))
    return judged, made, tf.reduce_mean(noise)


numbers = np.random.default_rng(2)
for i in range(24):
    real = tf.constant(numbers.normal(1.0, 0.5, (64, 128)), tf.float32)
    judged, made, noise = step(real)
    if i % 4 == 3:
        print("step", i, f"{float(judged):.4g} {float(made):.4g} {float(noise):.5f}")
