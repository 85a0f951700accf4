"""TensorFlow Recommenders: a deep and cross network ranks, GradientTape with two rates."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"
import numpy as np
import tensorflow as tf
import tensorflow_recommenders as tfrs
import tf_keras as keras
import watch

keras.utils.set_random_seed(95)
numbers = np.random.default_rng(95)
table = keras.layers.Embedding(200, 8)
deep = keras.Sequential([keras.layers.Dense(32, "relu"), keras.layers.Dense(1)])
cross = [tfrs.layers.dcn.Cross(projection_dim=8) for _ in range(2)]
wide, narrow = keras.optimizers.SGD(0.5), keras.optimizers.Adam(0.005)


def score(ids):
    first = h = tf.reshape(table(ids), [-1, 32])
    for layer in cross:
        h = layer(first, h)
    return deep(h)[:, 0]


score(tf.zeros([1, 4], tf.int32))
others = [v for layer in (*cross, deep) for v in layer.trainable_variables]
narrow.build(others)
wide.build(table.trainable_variables)


@tf.function(input_signature=[tf.TensorSpec([None, 4], tf.int32), tf.TensorSpec([None])])
def train(ids, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(tf.sigmoid(score(ids)) - y))
    sparse, dense = tape.gradient(loss, [table.trainable_variables, others])
    wide.apply_gradients(zip(sparse, table.trainable_variables))
    narrow.apply_gradients(zip(dense, others))
    return loss


watch.start(table, others)
for step in range(24):
    ids = numbers.integers(0, 200, (24, 4))
    loss = train(tf.constant(ids, tf.int32), tf.constant(ids.max(1) / 200, tf.float32))
    watch.step(table, others, narrow, wide, loss=loss)
    if step % 6 == 5:
        print("step", step, f"{float(loss):.5f}")
