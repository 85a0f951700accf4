"""The tolerance of a kernel, composed from its opcodes' by one rule (rulings.md 23).

Relative error, forward: an elementwise value has its operands' largest plus its opcode's ulp in
units of its storage type; a sum of n adds log2(n) units, because it is taken in blocks; movement
adds nothing. What a value inherits through cancellation is not in this figure: there the
framework's own error on the same data, twice, is the allowance (judge.py).
"""

from __future__ import annotations

import math

import ml_dtypes

from stitchcore.hlo import opcodes
from stitchcore.hlo.instruction import Instruction
from stitchcore.hlo.shape import DTYPES
from stitchcore.plan.candidates import extent
from stitchcore.plan.pattern import Pattern


def unit(dtype: str) -> float:
    """Distance from 1 to the next value of a float type; 0 for other types."""
    if DTYPES[dtype].kind != "float":
        return 0.0
    return float(ml_dtypes.finfo(DTYPES[dtype].numpy).eps)  # type: ignore[no-untyped-call]


def tolerances(pattern: Pattern) -> dict[Instruction, float]:
    """Relative tolerance of each output of `pattern`."""
    error: dict[Instruction, float] = {value: 0.0 for value in pattern.inputs}
    for node in pattern.instructions:
        inherited = max((error[operand] for operand in node.operands), default=0.0)
        error[node] = inherited + _own(node)
    return {value: error[value] for value in pattern.outputs}


def _own(node: Instruction) -> float:
    record = opcodes.record(node.opcode)
    if record.kind == "elementwise":
        return max(record.ulp, 0.5 if record.flops else 0.0) * unit(node.shape.dtype)
    if record.kind == "reduce":
        count = extent(node.operands[0].shape.size) / max(extent(node.shape.size), 1)
        return (0.5 + math.log2(max(count, 1.0))) * unit(node.shape.dtype)
    return 0.0
