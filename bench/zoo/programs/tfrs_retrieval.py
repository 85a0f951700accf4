"""TensorFlow Recommenders: two towers, in-batch softmax, users and films as strings."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"
import numpy as np
import tensorflow as tf
import tensorflow_recommenders as tfrs
import tf_keras as keras
import watch

keras.utils.set_random_seed(94)
numbers = np.random.default_rng(94)
users, films = ([f"{kind}{n}" for n in range(30)] for kind in ("user", "film"))


def tower(names):
    lookup = keras.layers.StringLookup(vocabulary=names)
    return keras.Sequential(
        [lookup, keras.layers.Embedding(31, 16), keras.layers.Dense(16, "relu")]
    )


class Recommender(tfrs.Model):
    def __init__(self):
        super().__init__()
        self.user, self.film = tower(users), tower(films)
        self.task = tfrs.tasks.Retrieval()

    def compute_loss(self, features, training=False):
        return self.task(
            self.user(features["user"]), self.film(features["film"]), compute_metrics=False
        )


model = Recommender()
model.compile(keras.optimizers.Adagrad(0.1))
drawn = numbers.integers(0, 30, (96, 2))
given = {
    "user": np.array(users)[drawn[:, 0]],
    "film": np.array(films)[drawn[:, 0] // 2 + drawn[:, 1] % 2],
}
data = tf.data.Dataset.from_tensor_slices(given).batch(16)
history = model.fit(data, epochs=5, verbose=0, callbacks=[watch.callback(keras)])
print(*(f"{value:.3f}" for value in history.history["loss"]))
