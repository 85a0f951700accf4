"""A launch, and where its buffers are: the one description that regions and whole modules share.

Wire formats are made from it: a StitchedFusion node's table (docs/contracts.md 3), and a CUDA
program's (12).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from stitchcore.hlo.ir.literal import Literal
from stitchcore.hlo.ir.numerics import Array
from stitchcore.loop_ir.nodes import Buffer, Kernel, Role

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Input:
    """Input `position` of the program: of a region or module, its parameter's."""

    position: int


@dataclass(frozen=True)
class Output:
    """Memory of output `position` of the program."""

    position: int


@dataclass(frozen=True)
class Temporary:
    """Memory between launches: written by one, read by later ones."""

    position: int


Place = Input | Output | Temporary


@dataclass(frozen=True)
class Constant:
    """An array that is known: a region reads it from the graph (a Const node), a program of a
    device has it as an input."""

    literal: Literal


@dataclass(frozen=True)
class Launch:
    """One launch of `kernel`: what its input buffers and its output buffers are, in their order."""

    kernel: Kernel
    inputs: tuple[Place | Constant, ...]
    outputs: tuple[Place, ...]

    @property
    def written(self) -> tuple[tuple[Place, Buffer], ...]:
        """Each output's place, with the kernel's buffer."""
        return tuple(zip(self.outputs, self.kernel.with_role(Role.OUTPUT), strict=True))


def value_at(
    place: Place | Constant,
    inputs: Sequence[_Value],
    written: Mapping[Place, _Value],
    constant: Callable[[Array], _Value],
) -> _Value:
    """What is at `place`, by the program's inputs and by what its launches have written so far."""
    match place:
        case Input(position):
            return inputs[position]
        case Constant(literal):
            return constant(literal.array)
        case _:
            return written[place]
