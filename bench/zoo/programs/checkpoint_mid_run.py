"""Checkpoints in mid-run: saved after step 12, restored after step 24, trained on from there."""

import tempfile

import keras
import numpy as np
import tensorflow as tf
import watch

keras.utils.set_random_seed(25)
numbers = np.random.default_rng(25)
x = tf.constant(numbers.normal(size=(12, 16, 20)), tf.float32)
model = keras.Sequential(
    [
        keras.Input((20,)),
        keras.layers.Dense(32, "gelu"),
        keras.layers.LayerNormalization(),
        keras.layers.Dense(20),
    ]
)
optimizer = keras.optimizers.Adam(1e-2)
optimizer.build(model.trainable_variables)


@tf.function
def train(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x, training=True) - tf.sin(x)))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


def run(first, last):
    losses = []
    for step in range(first, last):
        loss = train(x[step % 12])
        watch.step(model, optimizer, loss=loss)
        losses.append(float(loss))
    print("steps", first, last, *(f"{loss:.5f}" for loss in losses[::4]))
    return losses


watch.start(model)
checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
manager = tf.train.CheckpointManager(checkpoint, tempfile.mkdtemp(), max_to_keep=2)
run(0, 12)
manager.save()
once = run(12, 24)
checkpoint.restore(manager.latest_checkpoint).assert_consumed()
again = run(12, 24)
print("the same", np.allclose(once, again, rtol=1e-5))
model.save_weights(manager.directory + "/w.weights.h5")
run(24, 32)
model.load_weights(manager.directory + "/w.weights.h5")
run(24, 32)
