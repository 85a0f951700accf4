"""A SavedModel's signature called in a loop, with batches of several sizes."""

import tempfile

import numpy as np
import tensorflow as tf
import watch

numbers = np.random.default_rng(38)


class Scorer(tf.Module):
    def __init__(self):
        self.table = tf.Variable(numbers.normal(0, 0.5, (80, 24)).astype("float32"))
        self.weight = tf.Variable(numbers.normal(0, 0.2, (24, 24)).astype("float32"))

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 7], tf.int32, "ids"),
            tf.TensorSpec([None], name="time"),
        ]
    )
    def score(self, ids, time):
        h = tf.gather(self.table, ids)
        mask = tf.cast(ids > 0, tf.float32)[..., None]
        h = tf.reduce_sum(h * mask, 1) / (tf.reduce_sum(mask, 1) + 1e-3)
        h = tf.nn.silu(h @ self.weight) * tf.exp(-tf.abs(time))[:, None]
        return {"score": tf.reduce_sum(tf.square(h), -1), "best": tf.argmax(h, -1)}


folder = tempfile.mkdtemp()
made = Scorer()
tf.saved_model.save(made, folder, signatures=made.score)
score = tf.saved_model.load(folder).signatures["serving_default"]
for call in range(40):
    ids = numbers.integers(0, 80, (8 + call % 3, 7))
    time = numbers.normal(size=len(ids)).astype("float32")
    found = score(ids=tf.constant(ids, tf.int32), time=tf.constant(time))
    watch.step(**found)
    if call % 8 == 7:
        print(
            "call", call, f"{float(tf.reduce_mean(found['score'])):.5f}", *found["best"].numpy()[:5]
        )
