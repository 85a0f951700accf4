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
"""(write, reference of the number 1, nesterov, variables' values, other operands) -> new values."""


@dataclass(frozen=True)
class Update:
    """`variables` handles come first; operand `gradient` has the variables' shape."""

    variables: int
    gradient: int
    expand: Expand


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


UPDATES: dict[str, Update] = {
    "ResourceApplyAdam": Update(3, 9, _adam),
    "ResourceApplyGradientDescent": Update(1, 2, _gradient_descent),
    "ResourceApplyMomentum": Update(2, 3, _momentum),
    "ResourceApplyKerasMomentum": Update(2, 3, _keras_momentum),
}
"""By operation name."""


def is_nesterov(node: Any) -> bool:
    return bool(node.attr["use_nesterov"].b)
