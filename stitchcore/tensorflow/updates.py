"""Optimizers' dense update operations as the arithmetic of TensorFlow's CPU kernels.

`ResourceApplyAdam` and its like change several variables in one node. A region takes such a node in
as a member: reads of its variables become values, their new values results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class Write(Protocol):
    """Adds one operation on values of the update's type and returns its reference."""

    def __call__(self, operation: str, *inputs: str) -> str: ...


Expand = Callable[[Write, str, bool, Sequence[str], Sequence[str]], list[str]]
"""(write, reference of the number 1, flag, variables' values, other operands) -> new values."""


@dataclass(frozen=True)
class Update:
    """`variables` handles come first; operand `gradient` has the variables' shape. `flag` is the
    attribute that chooses between two ways of computing, if there are two."""

    variables: int
    gradient: int
    expand: Expand
    flag: str = ""


def _adam(
    write: Write, one: str, nesterov: bool, values: Sequence[str], operands: Sequence[str]
) -> list[str]:
    variable, m, v = values
    power1, power2, rate, beta1, beta2, epsilon, gradient = operands
    correction = write("Sqrt", write("Sub", one, power2))
    alpha = write("RealDiv", write("Mul", rate, correction), write("Sub", one, power1))
    fresh1, fresh2 = write("Sub", one, beta1), write("Sub", one, beta2)
    m = write("AddV2", m, write("Mul", write("Sub", gradient, m), fresh1))
    square = write("Mul", gradient, gradient)
    v = write("AddV2", v, write("Mul", write("Sub", square, v), fresh2))
    used = m
    if nesterov:
        used = write("AddV2", write("Mul", gradient, fresh1), write("Mul", beta1, m))
    change = write("RealDiv", write("Mul", used, alpha), write("AddV2", write("Sqrt", v), epsilon))
    return [write("Sub", variable, change), m, v]


def _gradient_descent(
    write: Write, one: str, nesterov: bool, values: Sequence[str], operands: Sequence[str]
) -> list[str]:
    rate, gradient = operands
    return [write("Sub", values[0], write("Mul", gradient, rate))]


def _momentum(
    write: Write, one: str, nesterov: bool, values: Sequence[str], operands: Sequence[str]
) -> list[str]:
    variable, accumulated = values
    rate, gradient, momentum = operands
    accumulated = write("AddV2", write("Mul", accumulated, momentum), gradient)
    change = write("Mul", accumulated, rate)
    if nesterov:
        further = write("Mul", write("Mul", accumulated, momentum), rate)
        change = write("AddV2", write("Mul", gradient, rate), further)
    return [write("Sub", variable, change), accumulated]


def _keras_momentum(
    write: Write, one: str, nesterov: bool, values: Sequence[str], operands: Sequence[str]
) -> list[str]:
    variable, accumulated = values
    rate, gradient, momentum = operands
    step = write("Mul", gradient, rate)
    accumulated = write("Sub", write("Mul", accumulated, momentum), step)
    change = write("Sub", write("Mul", accumulated, momentum), step) if nesterov else accumulated
    return [write("AddV2", variable, change), accumulated]


def _adagrad(
    write: Write, one: str, slots: bool, values: Sequence[str], operands: Sequence[str]
) -> list[str]:
    variable, accumulated = values
    rate, gradient = operands
    accumulated = _squares(write, slots, accumulated, gradient)
    change = write("Mul", write("Mul", gradient, rate), write("Rsqrt", accumulated))
    return [write("Sub", variable, change), accumulated]


def _adagrad_v2(
    write: Write, one: str, slots: bool, values: Sequence[str], operands: Sequence[str]
) -> list[str]:
    variable, accumulated = values
    rate, epsilon, gradient = operands
    accumulated = _squares(write, slots, accumulated, gradient)
    root = write("AddV2", write("Sqrt", accumulated), epsilon)
    change = write("RealDiv", write("Mul", gradient, rate), root)
    return [write("Sub", variable, change), accumulated]


def _squares(write: Write, slots: bool, accumulated: str, gradient: str) -> str:
    """`slots`: they are added up."""
    if not slots:
        return write("Identity", accumulated)
    return write("AddV2", accumulated, write("Mul", gradient, gradient))


def _rms_prop(
    write: Write, one: str, flag: bool, values: Sequence[str], operands: Sequence[str]
) -> list[str]:
    variable, mean_square, moment = values
    rate, rho, momentum, epsilon, gradient = operands
    mean_square = _towards(write, one, mean_square, write("Mul", gradient, gradient), rho)
    moment = _rms_moment(write, moment, mean_square, (rate, momentum, epsilon, gradient))
    return [write("Sub", variable, moment), mean_square, moment]


def _centered_rms_prop(
    write: Write, one: str, flag: bool, values: Sequence[str], operands: Sequence[str]
) -> list[str]:
    variable, mean, mean_square, moment = values
    rate, rho, momentum, epsilon, gradient = operands
    mean_square = _towards(write, one, mean_square, write("Mul", gradient, gradient), rho)
    mean = _towards(write, one, mean, gradient, rho)
    variance = write("Sub", mean_square, write("Mul", mean, mean))
    moment = _rms_moment(write, moment, variance, (rate, momentum, epsilon, gradient))
    return [write("Sub", variable, moment), mean, mean_square, moment]


def _towards(write: Write, one: str, mean: str, fresh: str, decay: str) -> str:
    """A mean that forgets."""
    step = write("Mul", write("Sub", fresh, mean), write("Sub", one, decay))
    return write("AddV2", mean, step)


def _rms_moment(write: Write, moment: str, square: str, operands: Sequence[str]) -> str:
    rate, momentum, epsilon, gradient = operands
    root = write("Sqrt", write("AddV2", square, epsilon))
    step = write("RealDiv", write("Mul", gradient, rate), root)
    return write("AddV2", write("Mul", moment, momentum), step)


def _adadelta(
    write: Write, one: str, flag: bool, values: Sequence[str], operands: Sequence[str]
) -> list[str]:
    variable, accumulated, updates = values
    rate, rho, epsilon, gradient = operands
    rest = write("Sub", one, rho)

    def forgetting(squares: str, fresh: str) -> str:
        square = write("Mul", write("Mul", fresh, fresh), rest)
        return write("AddV2", write("Mul", squares, rho), square)

    accumulated = forgetting(accumulated, gradient)
    root = write("Sqrt", write("AddV2", updates, epsilon))
    scale = write("Mul", root, write("Rsqrt", write("AddV2", accumulated, epsilon)))
    change = write("Mul", scale, gradient)
    variable = write("Sub", variable, write("Mul", change, rate))
    return [variable, accumulated, forgetting(updates, change)]


def _ada_max(
    write: Write, one: str, flag: bool, values: Sequence[str], operands: Sequence[str]
) -> list[str]:
    variable, m, v = values
    power, rate, beta1, beta2, epsilon, gradient = operands
    m = _towards(write, one, m, gradient, beta1)
    v = _larger(write, write("Mul", beta2, v), write("Abs", gradient))
    scale = write("RealDiv", rate, write("Sub", one, power))
    change = write("Mul", scale, write("RealDiv", m, write("AddV2", v, epsilon)))
    return [write("Sub", variable, change), m, v]


def _larger(write: Write, left: str, right: str) -> str:
    """Eigen's cwiseMax on a CPU: the left one where either is NaN."""
    return write("SelectV2", write("Less", left, right), right, left)


NESTEROV, SLOTS = "use_nesterov", "update_slots"
UPDATES: dict[str, Update] = {
    "ResourceApplyAdaMax": Update(3, 8, _ada_max),
    "ResourceApplyAdadelta": Update(3, 6, _adadelta),
    "ResourceApplyAdagrad": Update(2, 3, _adagrad, SLOTS),
    "ResourceApplyAdagradV2": Update(2, 4, _adagrad_v2, SLOTS),
    "ResourceApplyAdam": Update(3, 9, _adam, NESTEROV),
    "ResourceApplyCenteredRMSProp": Update(4, 8, _centered_rms_prop),
    "ResourceApplyGradientDescent": Update(1, 2, _gradient_descent),
    "ResourceApplyMomentum": Update(2, 3, _momentum, NESTEROV),
    "ResourceApplyKerasMomentum": Update(2, 3, _keras_momentum, NESTEROV),
    "ResourceApplyRMSProp": Update(3, 7, _rms_prop),
}
"""By operation name. The order of the arithmetic is that of TensorFlow's training_ops.cc."""


def flag_of(node: Any) -> bool:
    """The flag of an update's node."""
    flag = UPDATES[node.op].flag
    if flag == SLOTS and flag not in node.attr:
        return True  # its default
    return bool(node.attr[flag].b) if flag else False
