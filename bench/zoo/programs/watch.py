"""What a program of the zoo calls after each step: its variables, slots and what it fetched.

Without ZOO_OUT nothing happens. With it the arrays of the first steps are kept in that folder, and
when each step ended. With ZOO_ULP `start` moves each variable to a neighbouring number, so that a
run tells what a rounding does to it. Ordinary user code: it knows numpy and nothing of what might
speed a step up.
"""

import os
import time

import numpy as np

FOLDER = os.environ.get("ZOO_OUT")
STEPS = 4
"""So many are kept: a step may become another one only after its first calls."""
_process, _count = os.getpid(), 0


def start(*watched):
    """Training begins with these variables, or what has some."""
    if os.environ.get("ZOO_ULP"):
        random = np.random.default_rng(int(os.environ["ZOO_ULP"]))
        for variable in _variables(watched):
            value = np.array(variable.numpy())
            if value.dtype.kind == "f":
                side = np.where(random.random(value.shape) < 0.5, -np.inf, np.inf)
                near = np.nextafter(value, side.astype(value.dtype))
                variable.assign(np.where(value == 0, value, near))


def step(*watched, **fetched):
    """A step has ended. `watched`: models, optimizers, variables, tensors, or lists of them."""
    global _count
    if not FOLDER or os.getpid() != _process:
        return
    with open(os.path.join(FOLDER, "times"), "a") as file:
        file.write(f"{time.perf_counter()}\n")
    if _count < STEPS:
        found = {**_arrays(watched), **_arrays(fetched)}
        np.savez(os.path.join(FOLDER, f"step{_count}.npz"), **found)
    _count += 1


def callback(keras):
    """A callback of this Keras, 2 or 3, that calls `step` after each batch."""

    class Watch(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            start(self.model)

        def on_train_batch_end(self, batch, logs=None):
            step(self.model, self.model.optimizer, **(logs or {}))

        def on_test_batch_end(self, batch, logs=None):
            step(self.model, **(logs or {}))

        def on_predict_batch_end(self, batch, logs=None):
            step((logs or {}).get("outputs"))

    return Watch()


def _arrays(thing, name=""):
    if thing is None:
        return {}
    if isinstance(thing, (list, tuple)):
        thing = {f"{position:03}": one for position, one in enumerate(thing)}
    if hasattr(thing, "items"):
        return {
            k: v for key, one in thing.items() for k, v in _arrays(one, f"{name} {key}").items()
        }
    if hasattr(thing, "variables"):
        return _arrays(_variables([thing]), name)
    if hasattr(thing, "flat_values"):
        return _arrays([thing.flat_values, thing.row_splits], name)
    if hasattr(thing, "indices") and hasattr(thing, "values"):
        return _arrays([thing.indices, thing.values], name)
    label = (
        f"{name} {getattr(thing, 'path', getattr(thing, 'name', ''))}" if _named(thing) else name
    )
    array = np.array(thing.numpy() if hasattr(thing, "numpy") else thing)
    if array.dtype.kind == "V" or array.dtype.name == "bfloat16":
        return {f"{label} bfloat16".strip(): array.astype(np.float32)}
    if array.dtype.kind in "OSU":
        array = array.astype("U")
    return {label.strip(): array}


def _variables(watched):
    found = []
    for one in watched:
        if isinstance(one, (list, tuple)):
            found += _variables(one)
        elif hasattr(one, "variables"):
            found += list(one.variables() if callable(one.variables) else one.variables)
        else:
            found.append(one)
    return found


def _named(thing):
    return hasattr(thing, "assign")
