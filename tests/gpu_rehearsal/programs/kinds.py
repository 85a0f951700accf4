"""Small jobs of each kind, to the same figures whether they are stitched or not.

    kinds.py OUT fit|while_loop|inference|failing|session|mixed|mirrored|unaligned|both [STEPS]

OUT gets numbers that the job computed: losses, or sums of results.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np

OUT, KIND = Path(sys.argv[1]), sys.argv[2]
STEPS = int(sys.argv[3]) if len(sys.argv) > 3 else 40
RNG = np.random.default_rng(0)
X = RNG.standard_normal((64, 32)).astype(np.float32)
LABELS = (np.abs(X).sum(1) * 3).astype(np.int64) % 10

import tensorflow as tf  # noqa: E402


def normal(*dims):
    return (RNG.standard_normal(dims) * 0.1).astype(np.float32)


def fit():
    """Keras `fit`, with a layer normalisation."""
    tf.keras.utils.set_random_seed(1)
    layers = [
        tf.keras.layers.Dense(64, activation="relu"),
        tf.keras.layers.LayerNormalization(),
        tf.keras.layers.Dense(10),
    ]
    model = tf.keras.Sequential([tf.keras.Input((32,)), *layers])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.SGD(0.05), loss, jit_compile=False)
    done = model.fit(X, LABELS, batch_size=64, epochs=STEPS, verbose=0, shuffle=False)
    return done.history["loss"]


def hidden_of(x, w, gain):
    hidden = tf.matmul(x, w)
    hidden -= tf.reduce_mean(hidden, 1, keepdims=True)
    hidden *= tf.math.rsqrt(tf.reduce_mean(tf.square(hidden), 1, keepdims=True) + 1e-5) * gain
    return tf.nn.relu(hidden) + 0.1 * tf.tanh(hidden)


def trained(loss_of, variables, turned=False):
    """Losses of plain gradient descent. Rows that are `turned` cannot be written where they lie."""

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = loss_of(x)
        for variable, grad in zip(variables, tape.gradient(loss, variables), strict=True):
            change = 0.05 * tf.cast(grad, variable.dtype)
            if turned:
                variable.assign(tf.reverse(variable, [0]) - change)
            else:
                variable.assign_sub(change)
        return loss

    x = tf.constant(X)
    return [float(step(x)) for _ in range(STEPS)]


def while_loop():
    """A recurrent layer written as a loop in the graph, trained."""
    w, gain = tf.Variable(normal(32, 32)), tf.Variable(np.ones(32, np.float32))

    def loss_of(x):
        for _ in tf.range(4):
            x = hidden_of(x, w, gain)
        return tf.reduce_mean(tf.square(x - 1.0))

    return trained(loss_of, [w, gain])


def inference():
    """A function called for its results."""
    w, gain = tf.Variable(normal(32, 128)), tf.Variable(np.ones(128, np.float32))
    deep = tf.Variable(normal(128, 128))

    @tf.function
    def predicted(x):
        return tf.nn.softmax(hidden_of(hidden_of(x, w, gain), deep, gain) * 3.0)

    return [float(tf.reduce_max(predicted(tf.constant(X * i)))) for i in range(1, STEPS)]


def failing():
    """A function called for its results, of which the last call ends with the user's error."""
    w, gain = tf.Variable(normal(32, 128)), tf.Variable(np.ones(128, np.float32))
    deep = tf.Variable(normal(128, 128))

    @tf.function(input_signature=[tf.TensorSpec([64, 32]), tf.TensorSpec([None, 1])])
    def predicted(x, last):
        hidden = hidden_of(hidden_of(x, w, gain), deep, gain)
        return tf.matmul(tf.nn.softmax(hidden * 3.0), last)

    x = tf.constant(X)
    return [float(predicted(x, tf.ones([n, 1]))[0, 0]) for n in [128] * STEPS + [127]]


def session():
    """TensorFlow 1: a graph, a session, resource variables."""
    tf.compat.v1.disable_eager_execution()
    x = tf.compat.v1.placeholder(tf.float32, (64, 32))
    with tf.device("/GPU:0"):
        w = tf.compat.v1.get_variable("w", initializer=normal(32, 128), use_resource=True)
        gain = tf.compat.v1.get_variable(
            "g", initializer=np.ones(128, np.float32), use_resource=True
        )
        loss = tf.reduce_mean(tf.square(hidden_of(x, w, gain) - 1.0))
    train = tf.compat.v1.train.GradientDescentOptimizer(0.05).minimize(loss)
    with tf.compat.v1.Session() as running:
        running.run(tf.compat.v1.global_variables_initializer())
        return [float(running.run([loss, train], {x: X})[0]) for _ in range(STEPS)]


def mixed():
    """float16 between float32 variables."""
    w, gain = tf.Variable(normal(32, 128)), tf.Variable(np.ones(128, np.float32))

    def loss_of(x):
        half = hidden_of(tf.cast(x, tf.float16), tf.cast(w, tf.float16), tf.cast(gain, tf.float16))
        return tf.reduce_mean(tf.square(tf.cast(half, tf.float32) - 1.0))

    return trained(loss_of, [w, gain])


def unaligned():
    """Data in memory that is aligned to an element only, by an operation of the user's."""
    from tensorflow.python.framework import op_def_library

    w, gain = tf.Variable(normal(32, 128)), tf.Variable(np.ones(128, np.float32))

    def loss_of(x):
        flat = tf.pad(tf.reshape(x, [-1]), [[1, 0]])
        shifted = op_def_library.apply_op("FakeGpuShift", x=flat)
        scaled = tf.tanh(tf.reshape(shifted, x.shape) * 0.5) + 1.0
        return tf.reduce_mean(tf.square(hidden_of(scaled, w, gain) - 1.0))

    return trained(loss_of, [w, gain])


def both():
    """A step on a GPU and one on the processor, whose variables are large."""
    w, gain = tf.Variable(normal(32, 128)), tf.Variable(np.ones(128, np.float32))

    def loss_of(x):
        return tf.reduce_mean(tf.square(hidden_of(x, w, gain) - 1.0))

    first = trained(loss_of, [w, gain], turned=True)
    with tf.device("/CPU:0"):
        large = [tf.Variable(normal(32, 1 << 15)), tf.Variable(np.ones(1 << 15, np.float32))]
        return first + trained(lambda x: tf.reduce_mean(hidden_of(x, *large)), large, True)


def mirrored():
    """Two devices under MirroredStrategy."""
    one_step = tf.distribute.ReductionToOneDevice()
    strategy = tf.distribute.MirroredStrategy(["GPU:0", "GPU:1"], cross_device_ops=one_step)
    with strategy.scope():
        w, gain = tf.Variable(normal(32, 128)), tf.Variable(np.ones(128, np.float32))
        optimizer = tf.keras.optimizers.SGD(0.05)

    def replica(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(hidden_of(x, w, gain) - 1.0))
        optimizer.apply_gradients(zip(tape.gradient(loss, [w, gain]), [w, gain], strict=True))
        return loss

    @tf.function
    def step(x):
        losses = strategy.run(replica, args=(x,))
        return strategy.reduce(tf.distribute.ReduceOp.MEAN, losses, axis=None)

    x = tf.constant(X)
    return [float(step(x)) for _ in range(STEPS)]


os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
OUT.write_text(json.dumps({"figures": globals()[KIND]()}))
