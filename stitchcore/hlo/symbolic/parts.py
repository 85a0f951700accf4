"""What must hold of a module's sizes for every part of a tensor to lie within it.

Sizes are fitted where they are small (tensorflow/symbolic_sizes.py), so that of 200 positions the
first n are n rows in the module, whatever n is. The framework ends a step of 230 with an error, and
a kernel would read what lies behind the table.
"""

from __future__ import annotations

from collections.abc import Iterator

from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.dim import Dim, Polynomial
from stitchcore.hlo.ir.instruction import Instruction, topological
from stitchcore.hlo.ir.module import Module


def never_positive(module: Module) -> tuple[Dim, ...]:
    """Polynomials that must not be positive where `module` is run, but for those that never are
    whatever the sizes; of such as differ by a number the greatest alone. Linear in the module."""
    greatest: dict[Dim, int] = {}
    for node in topological((*module.entry.parameters, module.entry.root)):
        for excess in _excesses(node):
            if isinstance(excess, int):
                continue
            number = next((count for monomial, count in excess.terms if not monomial), 0)
            factors = [count for monomial, count in excess.terms if monomial]
            if number > 0 or max(factors) > 0:
                varying = excess - number
                greatest[varying] = max(number, greatest.get(varying, number))
    return tuple(varying + number for varying, number in greatest.items())


def _excesses(node: Instruction) -> Iterator[Dim]:
    """By how much what a node makes or takes is too large, where that is positive."""
    for dim in node.shape.dims:
        if isinstance(dim, Polynomial):
            yield -dim
    if node.opcode == op.SLICE:
        for (start, limit, _), dim in zip(node["slice"], node.operands[0].shape.dims, strict=True):
            yield from (limit - dim, start - limit, -start)
    if node.opcode == op.DYNAMIC_SLICE:
        sizes = node["dynamic_slice_sizes"]
        yield from (s - dim for s, dim in zip(sizes, node.operands[0].shape.dims, strict=True))
    if node.opcode == op.DYNAMIC_UPDATE_SLICE:
        whole, part = (operand.shape.dims for operand in node.operands[:2])
        yield from (s - dim for s, dim in zip(part, whole, strict=True))
