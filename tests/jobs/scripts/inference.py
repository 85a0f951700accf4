"""What is called for its results: `inference.py HOW CALLS`. Prints a sum every hundred calls."""

from __future__ import annotations

import sys
import tempfile

import numpy as np
import tensorflow as tf

DRAW = np.random.RandomState(0)
BATCH = DRAW.rand(128, 64).astype("float32")
WEIGHTS = [DRAW.rand(64, 64).astype("float32") for _ in range(4)]


def block(x, weights):
    scores = tf.nn.softmax(tf.matmul(x, weights))
    return scores * tf.sqrt(tf.abs(x) + 1.0) + tf.tanh(x) - tf.reduce_mean(x, -1, keepdims=True)


def network(x, weights=WEIGHTS):
    for one in weights:
        x = block(x, one)
    return x


class Module(tf.Module):
    def __init__(self):
        self.weights = [tf.Variable(one) for one in WEIGHTS]

    @tf.function(input_signature=[tf.TensorSpec([None, 64], tf.float32)])
    def __call__(self, x):
        return network(x, self.weights)


def signature():
    with tempfile.TemporaryDirectory() as folder:
        module = Module()
        tf.saved_model.save(module, folder, signatures=module.__call__.get_concrete_function())
        loaded = tf.saved_model.load(folder)
    serve = loaded.signatures["serving_default"]
    return lambda: next(iter(serve(tf.constant(BATCH)).values())), loaded


def session():
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        holder = v1.placeholder(tf.float32, [None, 64])
        weights = [v1.get_variable(f"w{i}", initializer=one) for i, one in enumerate(WEIGHTS)]
        output = network(holder, weights)
        run = v1.Session()
        run.run(v1.global_variables_initializer())
    return lambda: run.run(output, {holder: BATCH}), run


def function(jit_compile):
    compiled = tf.function(network, jit_compile=jit_compile)
    return lambda: compiled(tf.constant(BATCH)), None


def keras(calls):
    import keras

    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(128, activation="gelu"), keras.layers.LayerNormalization()]
    model = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(5)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, metrics=["accuracy"])
    rows = np.tile(BATCH, (calls // 2, 1))
    labels = np.arange(len(rows)) % 5
    for _ in range(2):
        print(float(model.predict(rows, batch_size=128, verbose=0).sum()))
        print(*model.evaluate(rows, labels, batch_size=128, verbose=0))


WAYS = {
    "signature": signature,
    "session": session,
    "function": lambda: function(None),
    "compiled": lambda: function(True),
}

if __name__ == "__main__":
    how, calls = sys.argv[1], int(sys.argv[2])
    if how == "keras":
        keras(calls)
    else:
        call, _ = WAYS[how]()
        for number in range(calls):
            result = np.asarray(call())
            if number % 100 == 0:
                print(float(result.sum()))
