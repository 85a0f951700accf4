"""What a script with wrong input tells of its steps: ordinary user code, like the scripts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

import numpy as np
import tensorflow as tf


def tell(
    step: Callable[..., tf.Tensor], variables: list[tf.Variable], given: Iterable[list[np.ndarray]]
) -> None:
    """Run `step` on each of `given` and print, as JSON: the losses, the errors of the steps that
    fail, and how far the variables moved over each of those."""
    losses, errors, moved = [], [], []
    for arrays in given:
        before = [variable.numpy() for variable in variables]
        try:
            losses.append(float(step(*map(tf.constant, arrays))))
        except tf.errors.OpError as error:
            after = [variable.numpy() for variable in variables]
            errors.append([type(error).__name__, error.message])
            moved.append([float(np.abs(a - b).max()) for a, b in zip(after, before)])
    print(json.dumps({"losses": losses, "errors": errors, "moved": moved}))
