"""Whether a module observes its checks whole.

A check fails where the elements that somebody computes do not pass, and kernels compute what their
outputs need. So that a program fails exactly when the framework's does, and nothing that the
framework would not have computed is computed from a value that did not pass, every output that
depends on a check must need all its elements.
"""

from __future__ import annotations

from collections.abc import Mapping

from stitchcore.errors import Reason, Refused
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction, topological
from stitchcore.hlo.ir.module import Module

_WHOLE = frozenset(
    {op.RESHAPE, op.BITCAST, op.BROADCAST, op.TRANSPOSE, op.REVERSE, op.CONCATENATE, op.COPY}
)
"""Movements that need every element of their operands."""


def checks(module: Module) -> tuple[Instruction, ...]:
    """The checks of the entry, in order."""
    return tuple(v for v in topological((module.entry.root,)) if v.opcode == op.CHECK)


def keep(before: Module, after: Module) -> Module:
    """`after`, which simplification made of `before`. Raises Refused(DATA_DEPENDENT_ERROR) where a
    check is gone, or is not needed whole by an output that depends on it."""
    remaining = checks(after)
    lost = len(checks(before)) - len(remaining)
    if lost > 0:
        raise Refused(after.name, Reason.DATA_DEPENDENT_ERROR, f"{lost} checks not needed")
    for check in remaining:
        if not observed(after, check):
            detail = f"a part of it decides an output: {check['message']}"
            raise Refused(after.name, Reason.DATA_DEPENDENT_ERROR, detail)
    return after


def observed(module: Module, check: Instruction) -> bool:
    """Whether there is an output that depends on `check`, and each that does needs it whole."""
    reached: dict[Instruction, bool] = {}
    for node in topological((module.entry.root,)):
        if node is check:
            reached[node] = True
            continue
        numbers = [number for number, operand in enumerate(node.operands) if operand in reached]
        if numbers:
            reached[node] = any(reached[node.operands[n]] and _needs(node, n) for n in numbers)
    return _all_outputs(module, reached)


def _all_outputs(module: Module, reached: Mapping[Instruction, bool]) -> bool:
    outputs = [output for output in module.outputs if output in reached]
    return bool(outputs) and all(reached[output] for output in outputs)


def _needs(node: Instruction, number: int) -> bool:
    """Whether all elements of `node` need all elements of operand `number`."""
    kind = op.record(node.opcode).kind
    if kind in op.POINTWISE or node.opcode in (op.TUPLE, op.DOT):
        return True
    if kind == "reduce":
        return len(node.operands) == 2
    if node.opcode == op.PAD:
        edges = [edge for low, high, _ in node["padding"] for edge in (low, high)]
        return number == 0 and all(isinstance(edge, int) and edge >= 0 for edge in edges)
    return node.opcode in _WHOLE
