"""How often a loop runs, where that follows from constants: then the host need not wait for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stitchcore.hlo.evaluator.evaluate import apply
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Computation, Instruction, reachable, topological

MOST_TRIPS = 4096
"""A loop that runs more often is not run ahead to count."""


def trip_count(node: Instruction) -> int | None:
    """Runs of a while's body, when its condition depends on nothing but scalars that start as
    constants and follow from one another; None where it does not, or runs over MOST_TRIPS."""
    initial = node.operands[0]
    condition, body = node["condition"], node["body"]
    if initial.opcode != op.TUPLE or body.root.opcode != op.TUPLE:
        return None
    counters = _counters(condition, body)
    if counters is None:
        return None
    state: dict[int, Any] = {}
    for member in counters:
        value = initial.operands[member].get("value")
        if initial.operands[member].opcode != op.CONSTANT or value is None:
            return None
        state[member] = value.array
    for trips in range(MOST_TRIPS):
        if not bool(_value(condition, condition.root, state)):
            return trips
        state = {n: _value(body, body.root.operands[n], state) for n in counters}
    return None


def _counters(condition: Computation, body: Computation) -> set[int] | None:
    """Members of the state that the condition follows from, or None where it takes more than
    scalars."""
    counters: set[int] = set()
    waiting = [(condition, condition.root)]
    while waiting:
        within, root = waiting.pop()
        for node in _under(within, root):
            if node.shape.elements is not None or node.shape.size != 1:
                return None
            if node.opcode in (op.RNG, op.PARAMETER, op.WHILE, op.CONDITIONAL):
                return None
            if _is_member(within, node) and node["index"] not in counters:
                counters.add(node["index"])
                waiting.append((body, body.root.operands[node["index"]]))
    return counters


def _under(within: Computation, root: Instruction) -> Iterator[Instruction]:
    """What `root` needs, down to members of the state."""
    return reachable((root,), lambda node: _is_member(within, node))


def _is_member(within: Computation, node: Instruction) -> bool:
    return node.opcode == op.GET_TUPLE_ELEMENT and node.operands[0] in within.parameters


def _value(within: Computation, root: Instruction, state: Mapping[int, Any]) -> Any:
    needed = set(_under(within, root))
    values: dict[Instruction, Any] = {}
    for node in topological((root,)):
        if node in needed:
            member = _is_member(within, node)
            operands = [] if member else [values[operand] for operand in node.operands]
            values[node] = state[node["index"]] if member else apply(node, operands)
    return values[root]
