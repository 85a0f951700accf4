"""What an optimizer's first update makes of a gradient's error, and whether a run applied it right.

Adam's first step is `-rate * g / (|g| + epsilon)`: where a gradient is almost zero, the rounding
of the gradient is divided by the gradient, and the variable moves by many times any rounding of its
own. So the error allowed in a gradient is carried through the update itself, computed in float64 at
both ends of the interval (no derivative: the function bends within it), and added to what the
variable may be off. That alone would let a wrong update hide behind a large condition number.
Therefore each run's slots and variables are also recomputed in float64 from the slots that the run
itself had: there nothing is amplified, and a few roundings are all that is allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

UNIT = float(np.finfo(np.float32).eps)
SMALLEST = float(np.finfo(np.float32).tiny)  # below it float32 is flushed to zero

OWN_UNITS = 4.0
"""Units in the last place that may lie between what an update wrote and float64's from the slots it
wrote: the first moment's rounding counts twice in its square, and four operations follow with one
rounded constant, each off by half a unit; so it is with the step. TensorFlow stays below 2."""


@dataclass(frozen=True)
class Adam:
    """The first update of Adam from zero slots, in float64. `scale` is the learning rate with the
    first step's correction of both moments."""

    scale: float
    beta_1: float
    beta_2: float
    epsilon: float

    def gradient(self, first: Array) -> Array:
        """The gradient of which `first` is the first moment."""
        return np.asarray(first / (1 - self.beta_1))

    def norm(self, second: Array) -> Array:
        """The magnitude of which `second` is the second moment: that of the gradient, or of the
        terms of a sparse one, which Keras squares before it adds those of one row."""
        return np.asarray(np.sqrt(second / (1 - self.beta_2)))

    def second(self, norm: Array) -> Array:
        return np.asarray((1 - self.beta_2) * np.square(norm))

    def step(self, gradient: Array, norm: Array) -> Array:
        """What is added to the variable."""
        root = np.sqrt(1 - self.beta_2) * np.abs(norm)
        return np.asarray(-self.scale * (1 - self.beta_1) * gradient / (root + self.epsilon))


@dataclass(frozen=True)
class Names:
    """The arrays of one variable in a record of step 1 (`initial` in that of the start)."""

    initial: str
    variable: str
    first: str
    second: str


def pairs(arrays: Mapping[str, Array], initial: Mapping[str, Array]) -> list[Names]:
    """The variables with their slots, which every TensorFlow lists as (first, second) moments in
    the order of the variables, after scalars. ValueError where the shapes do not tell so."""
    variables = [name for name in arrays if name.startswith("variable_")]
    slots = [name for name in arrays if name.startswith("slot_") and arrays[name].ndim]
    starts = sorted(initial)[: len(variables)]
    if len(slots) != 2 * len(variables) or len(starts) != len(variables):
        raise ValueError(f"{len(variables)} variables have {len(slots)} slots")
    found = [Names(*four) for four in zip(starts, variables, slots[::2], slots[1::2], strict=True)]
    for names in found:
        shapes = {arrays[name].shape for name in (names.variable, names.first, names.second)}
        if shapes != {initial[names.initial].shape}:
            raise ValueError(f"{names} differ in shape")
    return found


@dataclass(frozen=True)
class Update:
    """One variable's first update in one run: what it read and what it wrote, as float64."""

    adam: Adam
    start: Array
    variable: Array
    first: Array
    second: Array

    def gradient(self) -> Array:
        return self.adam.gradient(self.first)

    def norm(self) -> Array:
        return self.adam.norm(self.second)

    def step(self) -> Array:
        return self.adam.step(self.gradient(), self.norm())

    def dense(self) -> bool:
        """Whether the second moment is that of the gradient (of a float64 run)."""
        return bool(np.allclose(self.norm(), np.abs(self.gradient()), rtol=1e-6, atol=0.0))

    def explained(self) -> bool:
        """Whether a float64 run's variable is what this rule makes of its slots: else the constants
        or the pairing of the slots are wrong, and nothing may be judged by them."""
        step = self.step()
        limit = 1e-6 * float(np.max(np.abs(step), initial=0.0))
        return bool(np.allclose(self.variable, self.start + step, rtol=1e-15, atol=limit))


def update(adam: Adam, names: Names, arrays: Mapping[str, Array], start: Array) -> Update:
    read = (arrays[name] for name in (names.variable, names.first, names.second))
    return Update(adam, start.astype(np.float64), *(array.astype(np.float64) for array in read))


@dataclass(frozen=True)
class Moved:
    """How far an update's results move, element by element."""

    variable: Array
    second: Array


def carried(exact: Update, off: Array) -> Moved:
    """How far they move when the first moment is `off` its exact value and the second moment is
    that of a gradient (of terms) as far off: together in a dense gradient, whose magnitude it is,
    in any combination in a sparse one."""
    adam, gradient, norm = exact.adam, exact.gradient(), exact.norm()
    error = adam.gradient(off)
    nearer = np.maximum(norm - error, 0.0)
    ends = [gradient - error, gradient + error]
    corners = [
        (end, np.abs(end) if exact.dense() else other)
        for end in ends
        for other in (nearer, norm + error)
    ]
    moved = [np.abs(adam.step(*corner) - exact.step()) for corner in corners]
    second = [np.abs(adam.second(end) - exact.second) for end in (nearer, norm + error)]
    return Moved(np.max(moved, axis=0), np.max(second, axis=0))


def rounding(run: Update) -> Moved:
    """What the roundings of an update itself may amount to (OWN_UNITS)."""
    step = OWN_UNITS * UNIT * np.abs(run.step()) + UNIT * np.abs(run.variable)
    return Moved(step, OWN_UNITS * UNIT * run.second + SMALLEST)
