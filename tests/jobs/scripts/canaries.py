"""A training step with things of the user's in it: a large table, small text, telling names."""

from __future__ import annotations

import numpy as np
import recording
import tensorflow as tf

ROWS, FEATURES, WIDTH = 256, 64, 256
TABLE = np.frombuffer(b"CanaryWeightsOfTheUser__", np.float32)  # six floats
TEXT = "CanaryTextOfTheUser"


def main() -> None:
    options = recording.arguments(__doc__)
    tf.random.set_seed(recording.SEED)
    random = np.random.default_rng(recording.SEED)
    table = np.resize(TABLE, (ROWS, WIDTH))
    first = tf.Variable(random.standard_normal((FEATURES, WIDTH)).astype("float32") / 8)
    optimizer = recording.make_optimizer("sgd", 1e-4)

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            h = tf.nn.gelu(x @ first) * tf.constant(table, name="CanaryName")
            # Such floats are huge, and a softmax of them NaN where oneDNN is off.
            h = tf.debugging.check_numerics(tf.nn.softmax(tf.tanh(h)), TEXT)
            loss = tf.reduce_mean(tf.square(h))
        optimizer.apply_gradients([(tape.gradient(loss, first), first)])
        return loss

    recorder = recording.Recorder(options.out)
    x = tf.constant(random.standard_normal((ROWS, FEATURES)).astype("float32"))
    recorder.save("initial.npz", recording.values("variable", [first]))
    for _ in range(options.steps):
        recorder.begin()
        recorder.end(float(step(x)))
    recorder.finish({})


if __name__ == "__main__":
    main()
