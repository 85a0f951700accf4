"""What every training script here shares: its options, its data and the record of its run.

Ordinary user code: it knows TensorFlow and numpy and nothing of what might speed the script up.
A run leaves in its --out folder: `initial.npz` (variables before step 1), `step1.npz` (variables,
optimizer slots and gradients after step 1), `losses.json` (one float a step) and `run.json`
(seconds of each step, peak resident bytes). With --record-decisions also `decisions.npz`: the
inputs of the ReLUs in step 1; --decisions makes a run let through what was positive there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

SEED = 20


def arguments(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--optimizer", choices=("adam", "sgd"), default="adam")
    parser.add_argument("--out", type=Path, required=True, help="folder for the record of the run")
    parser.add_argument("--checkpoint", type=Path, help="initial.npz of another run: start there")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--record-decisions", action="store_true", help="of step 1's ReLUs")
    parser.add_argument("--jit", action="store_true", help="compile mlp_function's step with XLA")
    # A first step is a warm-up: what makes a program faster may only look on in it.
    parser.add_argument("--skip", type=int, default=1, help="steps taken back, not recorded")
    parser.add_argument("--hold", type=int, default=-1, help="steps before it waits for --until")
    parser.add_argument("--until", type=Path, help="file that ends --skip (at an epoch) or --hold")
    parser.add_argument("--decisions", type=Path, help="decisions.npz of another run: take those")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    return options


class Recorder:
    """Collects losses and seconds of each step and writes the record."""

    def __init__(self, out: Path, hold: int = -1, until: Path | None = None) -> None:
        self.out = out
        self.hold = hold
        self.until = until
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self._began = 0.0

    def begin(self) -> None:
        while self.until and len(self.losses) == self.hold and not self.until.exists():
            time.sleep(0.1)
        self._began = time.perf_counter()

    def end(self, loss: float) -> int:
        """Record one step; returns how many there are now."""
        self.seconds.append(time.perf_counter() - self._began)
        self.losses.append(loss)
        return len(self.losses)

    def save(self, name: str, values: dict[str, np.ndarray]) -> None:
        np.savez(self.out / name, **values)

    def finish(self, update: dict[str, float]) -> None:
        """Write the record; `update` holds the optimizer's hyper-parameters (`update_rule`)."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        (self.out / "losses.json").write_text(json.dumps(self.losses))
        record = {"seconds": self.seconds, "peak_bytes": peak, "tf": tf.__version__}
        record["update"] = update
        (self.out / "run.json").write_text(json.dumps(record))
        print(f"steps {len(self.losses)} first loss {self.losses[0]!r} last {self.losses[-1]!r}")


def values(kind: str, tensors: list) -> dict[str, np.ndarray]:
    """Name the values of variables or tensors by kind, position and (if any) their own name."""
    named = {}
    for position, tensor in enumerate(tensors):
        name = getattr(tensor, "path", None) or getattr(tensor, "name", "")
        label = str(name).split(":")[0].replace("/", ".")
        named[f"{kind}_{position:03d}_{label}"] = np.asarray(tf.convert_to_tensor(tensor))
    return named


def restore(checkpoint: Path, variables: list) -> None:
    """Assign the values of a checkpoint, in order, to the variables."""
    saved = np.load(checkpoint)
    assert len(saved.files) == len(variables), "the checkpoint is of another model"
    for variable, name in zip(variables, sorted(saved.files), strict=True):
        value = saved[name]
        assert tuple(variable.shape) == value.shape, name
        variable.assign(value.astype(str(tf.as_dtype(variable.dtype).name)))


def take_back(options: argparse.Namespace, variables: list, step: Callable[[], object]) -> None:
    """Runs the steps that are not recorded."""
    values = [np.asarray(variable) for variable in variables]
    for _ in range(options.skip):
        step()
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)


def make_optimizer(name: str, rate: float) -> tf.keras.optimizers.Optimizer:
    if name == "adam":
        return tf.keras.optimizers.Adam(rate)
    return tf.keras.optimizers.SGD(10 * rate, momentum=0.9)


def update_rule(optimizer: tf.keras.optimizers.Optimizer) -> dict[str, float]:
    """The constants of an Adam's first update; none of other optimizers."""
    settings = optimizer.get_config()
    if "beta_2" not in settings:
        return {}
    beta_1, beta_2 = (float(settings[name]) for name in ("beta_1", "beta_2"))
    scale = first_scale(float(settings["learning_rate"]), beta_1, beta_2)
    epsilon = float(settings["epsilon"])
    return {"scale": scale, "beta_1": beta_1, "beta_2": beta_2, "epsilon": epsilon}


def first_scale(rate: float, beta_1: float, beta_2: float) -> float:
    """The learning rate with Adam's correction of the first step. TensorFlow reads the constants
    from float32 whatever the precision of the variables."""
    rounded = [float(np.float32(value)) for value in (rate, beta_1, beta_2)]
    return rounded[0] * float(np.sqrt(1 - rounded[2])) / (1 - rounded[1])


def dropout(x: tf.Tensor, rate: float, seed: tf.Tensor) -> tf.Tensor:
    """Dropout whose mask depends on the seed alone, not on the precision of x."""
    if x.dtype == tf.float32:
        return tf.nn.experimental.stateless_dropout(x, rate, seed=seed)
    kept = tf.nn.experimental.stateless_dropout(tf.ones(tf.shape(x)), rate, seed=seed) > 0
    return tf.where(kept, x / (1 - rate), tf.zeros_like(x))


class Dropout(tf.keras.layers.Layer):
    """keras.layers.Dropout with a seed; in float64 it drops what it would drop in float32."""

    def __init__(self, rate: float, seed: int) -> None:
        super().__init__()
        self.rate = rate
        self.inner = tf.keras.layers.Dropout(rate, seed=seed, dtype="float32")

    def call(self, x: tf.Tensor, training: bool = False) -> tf.Tensor:
        if x.dtype == tf.float32 or not training:
            return self.inner(x, training=training)
        kept = self.inner(tf.ones(tf.shape(x)), training=True) > 0
        return tf.where(kept, x / (1 - self.rate), tf.zeros_like(x))


class Decisions:
    """What decides the ReLUs of a model in its first step: recorded, or taken from another run.

    A pre-activation within rounding of zero may fall on the other side in another precision or
    order of additions, and then its whole gradient comes or goes; to compare two runs beyond that,
    one takes the decisions of the other.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.recording = options.record_decisions
        self.forced = list(np.load(options.decisions).values()) if options.decisions else None
        self.made: list[tf.Variable] = []

    def relu(self) -> tf.keras.layers.Layer:
        """The next ReLU of the model, an ordinary one unless decisions are wanted."""
        if not self.recording and self.forced is None:
            return tf.keras.layers.ReLU()
        position = len(self.made)
        empty = np.zeros((0,), tf.keras.backend.floatx())
        self.made.append(tf.Variable(empty, shape=tf.TensorShape(None), trainable=False))
        passed = None if self.forced is None else self.forced[position] > 0
        return Deciding(self.made[-1], passed)

    def save(self, out: Path) -> None:
        if self.recording:
            named = {f"activation_{i:03d}": made.numpy() for i, made in enumerate(self.made)}
            np.savez(out / "decisions.npz", **named)


class Deciding(tf.keras.layers.Layer):
    """A ReLU that keeps its input in a variable; it lets through what is positive, or `passed`."""

    def __init__(self, given: tf.Variable, passed: np.ndarray | None) -> None:
        super().__init__()
        self.keep = given.assign
        self.passed = passed

    def call(self, x: tf.Tensor) -> tf.Tensor:
        self.keep(x)
        return tf.nn.relu(x) if self.passed is None else tf.where(self.passed, x, tf.zeros_like(x))


class StepCallback(tf.keras.callbacks.Callback):
    """Records a Keras fit step by step and stops it after `steps`."""

    def __init__(
        self, recorder: Recorder, options: argparse.Namespace, decisions: Decisions | None
    ) -> None:
        super().__init__()
        self.recorder = recorder
        self.steps = options.steps
        self.skip = options.skip
        self.until: Path | None = options.until
        self.decisions = decisions
        self.start: list[np.ndarray] | None = None

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        if self.until is not None and self.until.exists():
            self.skip = 0

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        if self.skip and self.start is None:
            self.start = [np.asarray(weight) for weight in weights(self.model)]
        self.model.reset_metrics()  # so that logs["loss"] is this batch's, not a running mean
        self.recorder.begin()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        if self.skip:
            self.skip -= 1
            self.take_back()
            return
        count = self.recorder.end(float(logs["loss"]))
        if count == 1:
            variables = values("variable", list(self.model.trainable_variables))
            variables |= values("state", list(self.model.non_trainable_variables))
            self.recorder.save("step1.npz", variables | values("slot", slots(self.model.optimizer)))
            if self.decisions:
                self.decisions.save(self.recorder.out)
        if count >= self.steps:
            self.model.stop_training = True
            raise StopTraining

    def take_back(self) -> None:
        """Weights as before the first step, slots as before any."""
        for weight, value in zip(weights(self.model), self.start or [], strict=True):
            weight.assign(value)
        for slot in slots(self.model.optimizer):
            if "learning_rate" not in slot.name:
                slot.assign(np.zeros_like(np.asarray(slot)))


def weights(model: tf.keras.Model) -> list:
    return list(model.trainable_variables) + list(model.non_trainable_variables)


class StopTraining(Exception):
    """Ends a fit in the middle of an epoch."""


def slots(optimizer: tf.keras.optimizers.Optimizer) -> list:
    listed = optimizer.variables
    return list(listed() if callable(listed) and not isinstance(listed, list) else listed)


def fit(
    model: tf.keras.Model,
    inputs: np.ndarray | tf.data.Dataset,
    targets: np.ndarray | None,
    options: argparse.Namespace,
    batch: int | None,
    decisions: Decisions | None = None,
) -> None:
    """Keras fit over the data until `options.steps` steps have run, recorded. A dataset has its
    targets and batches in it."""
    recorder = Recorder(options.out)
    if options.checkpoint:
        restore(options.checkpoint, weights(model))
    recorder.save("initial.npz", values("weight", weights(model)))
    callback = StepCallback(recorder, options, decisions)
    epochs = options.skip + options.steps
    settings = {"batch_size": batch, "epochs": epochs, "shuffle": False, "verbose": 0}
    with contextlib.suppress(StopTraining):
        model.fit(inputs, targets, callbacks=[callback], **settings)
    recorder.finish(update_rule(model.optimizer))
