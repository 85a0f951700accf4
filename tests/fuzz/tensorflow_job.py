"""The job of the TensorFlow fuzzer: trains the programs it is given, one after another.

    python tensorflow_job.py OUT DRAWS FILE...

Ordinary user code, which runs untouched or under the hook. Of each program NAME.py it leaves
NAME.npz, the arrays of each step as `step/array`, or NAME.error with what was raised. DRAWS further
runs start from variables that are an ulp away and leave NAME.1.npz, NAME.2.npz and so on.
"""

import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

Keep = Callable[[int, Mapping[str, Any]], None]


def run(source: str, draws: int, keep: Keep) -> None:
    keras.utils.set_random_seed(1)
    space: dict[str, Any] = {"tf": tf, "keras": keras, "np": np}
    exec(source, space)
    numbers = np.random.default_rng(7)
    weights = [
        tf.Variable(numbers.normal(0, 0.4, shape).astype("float32"), name=f"w{number}")
        for number, shape in enumerate(space["shapes"])
    ]
    optimizer = space["optimizer"]
    optimizer.build(weights)
    variables = [*weights, *optimizer.variables]
    start = [np.array(variable.numpy()) for variable in variables]
    rows, width = None if space["unknown"] else space["batches"][0], space["width"]

    def train(x: Any, ids: Any, mask: Any) -> Any:
        with tf.GradientTape() as tape:
            loss, fetched = space["forward"](x, ids, mask, weights)
        gradients = tape.gradient(loss, weights, unconnected_gradients="zero")
        dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
        optimizer.apply(dense, weights)
        return loss, tf.cast(fetched, "float32")

    signature = [
        tf.TensorSpec([rows, width]),
        tf.TensorSpec([rows], tf.int32),
        tf.TensorSpec([rows, width], tf.bool),
    ]
    step_function = tf.function(train, input_signature=signature)

    data = []
    for batch in space["batches"]:
        x = numbers.normal(size=(batch, width)).astype("float32")
        ids = numbers.integers(0, 10, batch).astype("int32")
        mask = numbers.random((batch, width)) < 0.7
        data.append((tf.constant(x), tf.constant(ids), tf.constant(mask)))
    for draw in range(draws + 1):
        near = np.random.default_rng(draw)
        for number, (variable, value) in enumerate(zip(variables, start)):
            if draw and number < len(weights):
                side = np.where(near.random(value.shape) < 0.5, -np.inf, np.inf)
                value = np.nextafter(value, side.astype("float32"))
            if draw:
                variable.assign(value)
        found: dict[str, Any] = {}
        for step, given in enumerate(data):
            loss, fetched = step_function(*given)
            found |= {f"{step}/loss": loss.numpy(), f"{step}/fetched": fetched.numpy()}
            for number, variable in enumerate(variables):
                found[f"{step}/{number}"] = np.array(variable.numpy())
        if not draw:
            found["random/drawn"] = tf.random.uniform([4]).numpy()
        keep(draw, found)


def main(out: str, draws: str, files: Sequence[str]) -> None:
    for file in files:
        name = os.path.join(out, os.path.basename(file)[:-3])
        with open(file) as opened:
            source = opened.read()

        def keep(draw: int, found: Mapping[str, Any], name: str = name) -> None:
            np.savez(f"{name}.tmp.npz", **found)
            os.rename(f"{name}.tmp.npz", f"{name}.{draw}.npz")

        try:
            run(source, int(draws), keep)
        except Exception:
            with open(f"{name}.error", "w") as opened:
                opened.write(traceback.format_exc())
        keras.backend.clear_session()


main(sys.argv[1], sys.argv[2], sys.argv[3:])
