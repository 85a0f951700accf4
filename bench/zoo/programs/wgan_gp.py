"""WGAN with gradient penalty: gradients of gradients, two optimizers, several critic steps."""

import numpy as np
import tensorflow as tf
import watch

tf.keras.utils.set_random_seed(3)
L = tf.keras.layers
generator = tf.keras.Sequential(
    [
        L.Input((16,)),
        L.Dense(64),
        L.LayerNormalization(),
        L.LeakyReLU(),
        L.Dense(64, "softplus"),
        L.Dense(20, "tanh"),
    ]
)
critic = tf.keras.Sequential(
    [L.Input((20,)), L.Dense(96), L.LeakyReLU(), L.Dense(96, "swish"), L.Dense(1)]
)
gen_opt = tf.keras.optimizers.Adam(1e-3, 0.0, 0.9)
critic_opt = tf.keras.optimizers.Adam(1e-3, 0.0, 0.9)


@tf.function
def critic_step(real, seed):
    z = tf.random.stateless_normal([tf.shape(real)[0], 16], seed)
    mix = tf.random.stateless_uniform([tf.shape(real)[0], 1], seed + 1)
    fake = generator(z, training=True)
    with tf.GradientTape() as tape:
        between = mix * real + (1 - mix) * fake
        with tf.GradientTape() as inner:
            inner.watch(between)
            scores = critic(between, training=True)
        slope = tf.norm(inner.gradient(scores, between) + 1e-8, axis=1)
        loss = (
            tf.reduce_mean(critic(fake))
            - tf.reduce_mean(critic(real))
            + 10 * tf.reduce_mean((slope - 1) ** 2)
        )
    critic_opt.apply_gradients(
        zip(tape.gradient(loss, critic.trainable_variables), critic.trainable_variables)
    )
    return loss


@tf.function
def generator_step(seed):
    z = tf.random.stateless_normal([64, 16], seed)
    with tf.GradientTape() as tape:
        loss = -tf.reduce_mean(critic(generator(z, training=True)))
    gen_opt.apply_gradients(
        zip(tape.gradient(loss, generator.trainable_variables), generator.trainable_variables)
    )
    return loss


numbers = np.random.default_rng(1)
watch.start(generator, critic)
for step in range(60):
    for part in range(3):
        real = np.tanh(
            numbers.normal(0, 1, (64, 4)) @ np.ones((4, 20)) * 0.3
            + numbers.normal(0, 0.1, (64, 20))
        ).astype("float32")
        c = critic_step(tf.constant(real), tf.constant([step, part]))
    g = generator_step(tf.constant([step, 99]))
    watch.step(generator, critic, gen_opt, critic_opt, c=c, g=g)
print(f"{float(c):.3f} {float(g):.3f}")
