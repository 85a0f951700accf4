"""The tolerance of a kernel, composed from its opcodes' by one rule (docs/decisions.md 23).

Relative error, forward: an elementwise value has its operands' largest plus its opcode's ulp in
units of its storage type; a sum of n adds log2(n) units, because it is taken in blocks (so does the
last of cumulative sums, and the others are not told from it); movement
adds nothing. What a value inherits through cancellation is not in this figure: there the
framework's own error on the same data, twice, is the allowance (accuracy.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import ml_dtypes

from stitchcore.fusion.candidates import extent
from stitchcore.fusion.pattern import Pattern
from stitchcore.hlo.ir import opcodes
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
    error = _composed(pattern.inputs, pattern.instructions)
    return {value: error[value] for value in pattern.outputs}


def module_tolerances(module: Module) -> list[float]:
    """Relative tolerance of each output of a module of stitchable instructions."""
    inside = [n for n in topological((module.entry.root,)) if n.opcode != opcodes.TUPLE]
    parameters = [node for node in inside if node.opcode == opcodes.PARAMETER]
    error = _composed(parameters, [node for node in inside if node.opcode != opcodes.PARAMETER])
    return [error[value] for value in module.outputs]


def _composed(
    inputs: Iterable[Instruction], instructions: Iterable[Instruction]
) -> dict[Instruction, float]:
    error = dict.fromkeys(inputs, 0.0)
    for node in instructions:
        inherited = max((error[operand] for operand in node.operands), default=0.0)
        error[node] = inherited + _own_error(node)
    return error


def _own_error(node: Instruction) -> float:
    record = opcodes.record(node.opcode)
    if record.kind == "elementwise":
        return max(record.ulp, 0.5 if record.flops else 0.0) * unit(node.shape.dtype)
    if record.kind == "reduce":
        count = extent(node.operands[0].shape.size) / max(extent(node.shape.size), 1)
        return (0.5 + math.log2(max(count, 1.0))) * unit(node.shape.dtype)
    if record.kind == "scan":
        count = max(extent(window.size) for window in node["window"])
        return (0.5 + math.log2(max(count, 1.0))) * unit(node.shape.dtype)
    return 0.0
