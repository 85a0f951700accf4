"""Instructions and computations: frozen and interned, so equal expressions are one object.

Identity is equality: common subexpressions are eliminated by construction, and an Instruction is
a cheap dictionary key. Where an opcode is not a function of its operands (`rng`, `infeed`), the
attribute "unique" tells two of them apart.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from stitchcore.hlo.ir.shape import Shape

Attributes = tuple[tuple[str, Hashable], ...]


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Instruction:
    """One operation. Build with `instruction(...)`, never directly.

    `attributes` is sorted by name. Attribute names and value types are those of opcodes.py.
    """

    opcode: str
    shape: Shape
    operands: tuple[Instruction, ...]
    attributes: Attributes

    def __getitem__(self, name: str) -> Any:
        for key, value in self.attributes:
            if key == name:
                return value
        raise KeyError(f"{self.opcode} has no attribute {name!r}")

    def get(self, name: str, default: Any = None) -> Any:
        for key, value in self.attributes:
            if key == name:
                return value
        return default

    def __repr__(self) -> str:
        return f"<{self.opcode} {self.shape} at {id(self):#x}>"


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Computation:
    """A closed function: `parameters[i]` is the parameter instruction with number i, in order."""

    parameters: tuple[Instruction, ...]
    root: Instruction


_instructions: weakref.WeakValueDictionary[Hashable, Instruction] = weakref.WeakValueDictionary()
_computations: weakref.WeakValueDictionary[Hashable, Computation] = weakref.WeakValueDictionary()


def instruction(
    opcode: str, shape: Shape, operands: Iterable[Instruction] = (), **attributes: Hashable
) -> Instruction:
    """The one Instruction with these parts. Attribute names use `_` where HLO has it."""
    operands = tuple(operands)
    ordered = tuple(sorted(attributes.items()))
    key = (opcode, shape, tuple(map(id, operands)), ordered)
    interned = _instructions.get(key)
    if interned is None:
        interned = Instruction(opcode, shape, operands, ordered)
        _instructions[key] = interned
    return interned


def computation(parameters: Iterable[Instruction], root: Instruction) -> Computation:
    """The one Computation with these parameters and root."""
    parameters = tuple(parameters)
    key = (tuple(map(id, parameters)), id(root))
    interned = _computations.get(key)
    if interned is None:
        interned = Computation(parameters, root)
        _computations[key] = interned
    return interned


def topological(roots: Iterable[Instruction]) -> Iterator[Instruction]:
    """Every instruction that `roots` need, operands before users, each once; iterative."""
    seen: set[Instruction] = set()
    stack = [(root, False) for root in reversed(list(roots))]
    while stack:
        node, done = stack.pop()
        if done:
            yield node
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((operand, False) for operand in reversed(node.operands))


def _operands(node: Instruction) -> Sequence[Instruction]:
    return node.operands


def reachable(
    roots: Iterable[Instruction],
    stop: Callable[[Instruction], bool] = lambda node: False,
    operands: Callable[[Instruction], Sequence[Instruction]] = _operands,
) -> Iterator[Instruction]:
    """`roots` and what they need, each once, users before operands: nothing below what `stop` says
    is an end, and of a node's operands those that `operands` names; iterative."""
    seen: set[Instruction] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            yield node
            if not stop(node):
                stack.extend(operands(node))
