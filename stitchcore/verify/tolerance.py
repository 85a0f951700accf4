"""The tolerance of a kernel, composed from its opcodes' by one rule (docs/decisions.md 23).

Relative error, forward: an elementwise value has its operands' largest plus its opcode's ulp in
units of its storage type; a sum of n adds log2(n) units, because it is taken in blocks (so does the
last of cumulative sums, and the others are not told from it); movement
adds nothing. What a value inherits through cancellation is not in this figure: there the
framework's own error on the same data, twice, is the allowance (accuracy.py).

Where a job compares a kernel with the framework there is no float64 result to tell the framework's
error by, so its part is composed as well: it may add a sum up one after the other, whose relative
error is 0.12 sqrt(n) units in one standard deviation (each step's rounding is even in half a unit
of the sum so far), and its functions are a few units off. `between` is for both, at five
deviations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import ml_dtypes

from stitchcore.fusion.extents import extent
from stitchcore.fusion.pattern import Pattern
from stitchcore.hlo.ir import opcodes, query
from stitchcore.hlo.ir.instruction import Instruction, topological
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.ir.shape import DTYPES


def unit(dtype: str) -> float:
    """Distance from 1 to the next value of a float type; 0 for other types."""
    if DTYPES[dtype].kind != "float":
        return 0.0
    return float(ml_dtypes.finfo(DTYPES[dtype].numpy).eps)  # type: ignore[no-untyped-call]


def tolerances(pattern: Pattern) -> dict[Instruction, float]:
    """Relative tolerance of each output of `pattern`."""
    error = _composed(pattern.inputs, pattern.instructions, _own_error)
    return {value: error[value] for value in pattern.outputs}


def module_tolerances(module: Module) -> list[float]:
    """Relative tolerance of each output of a module of stitchable instructions."""
    return _of_module(module, _own_error)


def between(module: Module, values: Iterable[Instruction] | None = None) -> list[float]:
    """The same for the distance of the framework's result from ours; of other `values` within the
    module, where they are given."""
    short = _short_sums(module)
    return _of_module(
        module, lambda node: 4.0 * _own_error(node) + short.get(node, _in_order(node)), values
    )


def of_short_sums(module: Module) -> list[float]:
    """The framework's part of that which comes of sums of short types, by output."""
    short = _short_sums(module)
    return _of_module(module, lambda node: short.get(node, 0.0))


def input_units(module: Module) -> list[float]:
    """By parameter: the coarsest float unit that all that is made of it passes on its way to a
    result. A float32 weight that is only read as bfloat16 may lie half a unit of bfloat16 off."""
    inside = [n for n in topological((module.entry.root,)) if n.opcode != opcodes.TUPLE]
    finest: dict[Instruction, float] = dict.fromkeys(module.outputs, 0.0)
    units: dict[Instruction, float] = {}
    for node in reversed(inside):
        units[node] = max(unit(node.shape.dtype), finest[node])
        for operand in node.operands:
            finest[operand] = min(finest.get(operand, units[node]), units[node])
    return [units.get(parameter, 0.0) for parameter in module.entry.parameters]


def _of_module(
    module: Module,
    own: Callable[[Instruction], float],
    values: Iterable[Instruction] | None = None,
) -> list[float]:
    inside = [n for n in topological((module.entry.root,)) if n.opcode != opcodes.TUPLE]
    parameters = [node for node in inside if node.opcode == opcodes.PARAMETER]
    others = [node for node in inside if node.opcode != opcodes.PARAMETER]
    error = _composed(parameters, others, own)
    return [error[value] for value in (module.outputs if values is None else values)]


def _composed(
    inputs: Iterable[Instruction],
    instructions: Iterable[Instruction],
    own: Callable[[Instruction], float],
) -> dict[Instruction, float]:
    error = dict.fromkeys(inputs, 0.0)
    for node in instructions:
        inherited = max((error[operand] for operand in node.operands), default=0.0)
        error[node] = inherited + own(node)
    return error


def _short_sums(module: Module) -> dict[Instruction, float]:
    """Sums that the framework's kernels add up in a short type, though their HLO widens the terms
    and rounds once (tf2xla's type of accumulation), and what that may be off by: such a sum soon
    stands still, for a term is below half its unit. Of the bound of recursive summation, n units
    (Higham 2002, 4.2), a quarter, and no more than twice the sum."""
    return {
        node.operands[0]: min(0.25 * _terms(node.operands[0]) * unit(node.shape.dtype), 2.0)
        for node in topological((module.entry.root,))
        if node.opcode == opcodes.CONVERT
        and opcodes.record((sum_ := node.operands[0]).opcode).kind == "reduce"
        and query.reducer_of(sum_) == opcodes.ADD
        and (terms := _unmoved(sum_.operands[0])).opcode == opcodes.CONVERT
        and terms.operands[0].shape.dtype == node.shape.dtype
    }


def _unmoved(node: Instruction) -> Instruction:
    """What `node` is made of by movement alone."""
    while opcodes.record(node.opcode).kind == "movement":
        node = node.operands[0]
    return node


def _in_order(node: Instruction) -> float:
    """What adding up one after the other may be off by, at five standard deviations."""
    return 0.6 * math.sqrt(_terms(node)) * unit(node.shape.dtype) if _terms(node) > 1.0 else 0.0


def _terms(node: Instruction) -> float:
    """How many terms a sum has; 1 for all else."""
    kind = opcodes.record(node.opcode).kind
    if kind == "reduce":
        return extent(node.operands[0].shape.size) / max(extent(node.shape.size), 1)
    if kind == "scan":
        return float(max(extent(window.size) for window in node["window"]))
    return 1.0


def _own_error(node: Instruction) -> float:
    record = opcodes.record(node.opcode)
    if record.kind == "elementwise":
        return max(record.ulp, 0.5 if record.flops else 0.0) * unit(node.shape.dtype)
    if record.kind in ("reduce", "scan"):
        return (0.5 + math.log2(max(_terms(node), 1.0))) * unit(node.shape.dtype)
    return 0.0
