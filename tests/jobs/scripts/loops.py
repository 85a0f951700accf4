"""Training programs with loops inside their steps: `loops.py NAME` prints its losses."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

if tf.__version__.startswith("2.15"):
    from tensorflow import keras
else:
    import keras

generator = np.random.default_rng(7)


def normal(*shape: int, scale: float = 0.05) -> Any:
    return (generator.normal(size=shape) * scale).astype(np.float32)


def normalized(y: tf.Tensor) -> tf.Tensor:
    mean, variance = tf.nn.moments(y, [-1], keepdims=True)
    return tf.nn.gelu((y - mean) * tf.math.rsqrt(variance + 1e-5))


def two_optimizers() -> Iterator[Any]:
    """Several training steps in a tf.range loop, each half of the network with its optimizer."""
    first, second = tf.Variable(normal(128, 256)), tf.Variable(normal(256, 64))
    adam, sgd = keras.optimizers.Adam(1e-3), keras.optimizers.SGD(0.05, momentum=0.9)
    adam.build([first])
    sgd.build([second])

    @tf.function
    def train(x: tf.Tensor, target: tf.Tensor, steps: tf.Tensor) -> tf.Tensor:
        loss = 0.0
        for _ in tf.range(steps):
            with tf.GradientTape() as tape:
                y = normalized(x @ first) @ second
                loss = tf.reduce_mean(tf.math.squared_difference(y, target))
            gradients = tape.gradient(loss, [first, second])
            adam.apply_gradients([(gradients[0], first)])
            sgd.apply_gradients([(gradients[1], second)])
        return loss

    x, target = tf.constant(normal(64, 128, scale=1.0)), tf.constant(normal(64, 64, scale=1.0))
    for count in (3, 1, 4, 0, 2, 3, 3, 3):
        yield float(train(x, target, tf.constant(count)))
    yield float(tf.reduce_sum(first)), float(tf.reduce_sum(second))


def steps_per_execution() -> Iterator[Any]:
    """Keras fit with several steps in one call."""
    keras.utils.set_random_seed(3)
    norm, dense = keras.layers.LayerNormalization, keras.layers.Dense
    inputs = keras.Input((64,))
    hidden = norm()(dense(128, activation="gelu")(inputs))
    hidden = norm()(dense(128, activation="gelu")(hidden))
    model = keras.Model(inputs, dense(10)(hidden))
    model.compile(
        keras.optimizers.Adam(1e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        steps_per_execution=4 if tf.__version__.startswith("2.15") else 8,
    )
    x, y = normal(32 * 16, 64, scale=1.0), generator.integers(0, 10, 32 * 16)
    history = model.fit(x, y, batch_size=32, epochs=5, shuffle=False, verbose=0)
    yield from history.history["loss"]


def masked_lstm() -> Iterator[Any]:
    """Sequences of unknown length under a mask: the layer is a loop, and so is its gradient."""
    keras.utils.set_random_seed(4)
    layers = keras.layers
    inputs = keras.Input((None,), dtype="int32")
    hidden = layers.Embedding(50, 32, mask_zero=True)(inputs)
    hidden = layers.LSTM(64)(hidden)
    hidden = layers.Dense(128, activation="gelu")(hidden)
    model = keras.Model(inputs, layers.Dense(1)(layers.LayerNormalization()(hidden)))
    model.compile(keras.optimizers.Adam(1e-3), "mse")
    for length in (12, 12, 12, 12, 12, 12, 7, 9):
        tokens = generator.integers(0, 50, (32, length))
        tokens[:, length // 2 :] *= generator.integers(0, 2, (32, 1))
        yield float(model.train_on_batch(tokens, normal(32, 1, scale=1.0)))


def scan_and_map() -> Iterator[Any]:
    """A recurrence by tf.scan and a function of each row by tf.map_fn in a training step."""
    inner, outer = tf.Variable(normal(64, 64)), tf.Variable(normal(64, 64))

    @tf.function
    def train(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            states = tf.scan(lambda h, row: normalized(h @ inner + row), x, tf.zeros([32, 64]))
            mapped = tf.map_fn(lambda row: tf.tanh(row @ outer) * tf.sigmoid(row), states)
            loss = tf.reduce_mean(tf.square(mapped - x))
        gradients = tape.gradient(loss, [inner, outer])
        for variable, gradient in zip([inner, outer], gradients, strict=True):
            variable.assign_sub(0.05 * gradient / (tf.norm(gradient) + 1e-6))
        return loss

    x = tf.constant(normal(6, 32, 64, scale=1.0))
    for _ in range(8):
        yield float(train(x))


def decoding() -> Iterator[Any]:
    """Words are generated until all rows have ended, with a branch in each pass, then scored."""
    table, mix, out = (tf.Variable(normal(*s)) for s in ((40, 64), (64, 64), (64, 40)))

    @tf.function
    def train(start: tf.Tensor, target: tf.Tensor, most: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            state, position, loss = start, tf.constant(0), tf.constant(0.0)
            done = tf.zeros([32], tf.bool)
            while position < most and not tf.reduce_all(done):
                state = normalized(state @ mix) + state * 0.5
                logits = state @ out
                words = tf.argmax(logits, -1, tf.int32)
                if position % 2 == 0:
                    state = state + tf.tanh(tf.gather(table, words)) * 0.1
                    loss += tf.reduce_mean(tf.square(logits - target))
                else:
                    state = state * tf.sigmoid(state) - 0.1
                done = tf.logical_or(done, tf.equal(words, position * 7))
                position += 1
            loss /= tf.cast(position, tf.float32)
        gradients = tape.gradient(loss, [mix, out])
        for variable, gradient in zip([mix, out], gradients, strict=True):
            variable.assign_sub(0.05 * gradient)
        return loss

    start, target = tf.constant(normal(32, 64, scale=1.0)), tf.constant(normal(32, 40, scale=1.0))
    for most in (5, 4, 1, 6, 5, 5, 5, 5):
        yield float(train(start, target, tf.constant(most)))


def nested() -> Iterator[Any]:
    """A loop in a loop: the inner one reads what the outer one updates."""
    weight, momentum = tf.Variable(normal(128, 128)), tf.Variable(tf.zeros([128, 128]))

    @tf.function
    def train(x: tf.Tensor, steps: tf.Tensor) -> tf.Tensor:
        def refine(k: tf.Tensor, y: tf.Tensor) -> Any:
            return k + 1, normalized(y @ weight) + 0.5 * y

        def step(i: tf.Tensor, loss: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                _, y = tf.while_loop(lambda k, _: k < 2 + i, refine, [tf.constant(0), x])
                loss = tf.reduce_mean(tf.square(y - 1.0))
            gradient = tape.gradient(loss, weight)
            momentum.assign(0.9 * momentum + gradient)
            weight.assign_sub(0.1 * momentum / (tf.sqrt(tf.abs(momentum)) + 1.0))
            return i + 1, loss

        _, loss = tf.while_loop(lambda i, _: i < steps, step, [tf.constant(0), tf.constant(0.0)])
        return loss

    x = tf.constant(normal(64, 128, scale=1.0))
    for count in (2, 1, 3, 2, 2, 2, 2, 2):
        yield float(train(x, tf.constant(count)))


def session() -> Iterator[Any]:
    """TensorFlow 1: a while_loop of training steps in a Session."""
    v1 = tf.compat.v1
    v1.disable_eager_execution()
    v1.disable_control_flow_v2()
    graph = tf.Graph()
    with graph.as_default():
        v1.enable_resource_variables()
        x = v1.placeholder(tf.float32, [64, 128])
        steps = v1.placeholder(tf.int32, [])
        weight = v1.get_variable("weight", initializer=normal(128, 128))
        momentum = v1.get_variable("momentum", initializer=np.zeros((128, 128), np.float32))

        def step(i: tf.Tensor, loss: tf.Tensor) -> Any:
            value = weight.read_value()
            y = tf.matmul(x, value)
            mean, variance = tf.nn.moments(y, [-1], keepdims=True)
            z = tf.tanh((y - mean) * tf.math.rsqrt(variance + 1e-5))
            error = z - x
            loss = tf.reduce_mean(tf.square(error))
            gradient = tf.matmul(x, error * (1.0 - z * z), transpose_a=True) / 64.0
            faster = momentum.read_value() * 0.9 + gradient
            with tf.control_dependencies([loss, gradient, faster]):
                updates = [
                    momentum.assign(faster, read_value=False),
                    weight.assign_sub(0.05 * faster / (tf.abs(faster) + 1.0), read_value=False),
                ]
            with tf.control_dependencies(updates):
                return i + 1, tf.identity(loss)

        last = v1.while_loop(lambda i, _: i < steps, step, [0, 0.0])[1]
        initialize = v1.global_variables_initializer()
    given = normal(64, 128, scale=1.0)
    with v1.Session(graph=graph) as opened:
        opened.run(initialize)
        for count in (2, 3, 1, 2, 2, 2, 2, 2):
            yield float(opened.run(last, {x: given, steps: count}))


def lookups() -> Iterator[Any]:
    """Lookups and sums by segments in a loop; then an index that names no row, in a later pass."""
    table, weight = tf.Variable(normal(50, 128)), tf.Variable(normal(128, 128))

    @tf.function
    def train(tokens: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
        loss = 0.0
        for k in tf.range(tf.shape(tokens)[0]):
            with tf.GradientTape() as tape:
                rows = tf.gather(tf.tanh(table) * 2.0, tokens[k])
                loss = tf.reduce_mean(tf.square(normalized(rows @ weight) - target))
            gradients = tape.gradient(loss, [table, weight])
            table.assign_sub(0.5 * tf.convert_to_tensor(gradients[0]))
            weight.assign_sub(0.5 * gradients[1] / (tf.abs(gradients[1]) + 1.0))
        return loss

    tokens = generator.integers(0, 50, (3, 64)).astype(np.int32)
    target = tf.constant(normal(64, 128, scale=1.0))
    for _ in range(6):
        yield float(train(tf.constant(tokens), target))
    tokens[1, 5] = 50
    try:
        train(tf.constant(tokens), target)
    except tf.errors.InvalidArgumentError as error:
        yield next(line for line in str(error).splitlines() if "indices" in line).split("=", 1)[1]
    tokens[1, 5] = 0
    for _ in range(4):
        yield float(train(tf.constant(tokens), target))


PROGRAMS: dict[str, Callable[[], Iterator[Any]]] = {
    program.__name__: program
    for program in (
        two_optimizers, steps_per_execution, masked_lstm, scan_and_map, decoding, nested, session,
        lookups,
    )
}  # fmt: skip

if __name__ == "__main__":
    for number, printed in enumerate(PROGRAMS[sys.argv[1]]()):
        print("step", number, *np.atleast_1d(printed))
