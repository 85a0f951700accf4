"""Questions every part asks of instructions."""

from __future__ import annotations

from collections.abc import Mapping

from stitchcore.hlo import opcodes as op
from stitchcore.hlo.instruction import Computation, Instruction, topological
from stitchcore.hlo.module import Module


def reducer_of(node: Instruction) -> str | None:
    """The opcode of `node`'s to_apply when that is a plain monoid of two scalars, else None."""
    body = node.get("to_apply")
    if not isinstance(body, Computation) or len(body.parameters) != 2:
        return None
    return monoid(body)


def monoid(body: Computation) -> str | None:
    """The one opcode of a two-parameter computation that only combines its parameters.

    A convert around the combination of bf16 values (TensorFlow widens them) is not a monoid.
    """
    root = body.root
    if root.opcode in op.REDUCERS and set(root.operands) == set(body.parameters):
        return root.opcode
    return None


def users(module: Module) -> Mapping[Instruction, tuple[Instruction, ...]]:
    """Every instruction of the entry with its users in topological order, each user once."""
    found: dict[Instruction, dict[Instruction, None]] = {}
    for node in topological((module.entry.root,)):
        found.setdefault(node, {})
        for operand in node.operands:
            found[operand][node] = None
    return {node: tuple(many) for node, many in found.items()}


def is_constant_scalar(node: Instruction, value: bool | int | float | None = None) -> bool:
    """A rank-0 literal constant, equal to `value` when one is given (so -0.0 equals 0)."""
    if node.opcode != op.CONSTANT or node.shape.dims or node.get("value") is None:
        return False
    return value is None or node["value"].scalar == value
