"""How far a module's exact outputs move when every operation rounds as it may.

A relative tolerance and one framework run both miss what happens inside: where 1 + tanh(x) cancels,
the last bit of tanh is much of the result, and no movement of x shows it. So the module itself is
changed: each elementwise float result is multiplied by 1 plus or minus its opcode's own error, and
the rest is exact. All elements of it alike, which a sum of them shows best; or each its own way,
which their differences show: of scores that something enormous masks nothing is left in a softmax.
No decision turns: what one moves is counted apart, not allowed (reference.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stitchcore.hlo.evaluator.evaluate import decisions, evaluate, evaluate_all
from stitchcore.hlo.ir import dim as dims
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction, instruction
from stitchcore.hlo.ir.literal import from_array
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.ir.rewrite import rebuild
from stitchcore.hlo.ir.shape import DTYPES, Shape
from stitchcore.verify.tolerance import unit

Array = np.ndarray[Any, np.dtype[Any]]

RUNS = 12
"""Random signs of all errors that are tried, in every second one by element; the widest movement of
each element counts."""


def movement(
    module: Module, inputs: Sequence[Array], bindings: Mapping[str, int], exact: Sequence[Array]
) -> list[Array]:
    """The widest absolute movement of each element of each output; 0 for other than floats."""
    deciding = decisions(module)
    taken = evaluate_all(module, inputs, bindings, "float64", set(deciding)) if deciding else {}
    random = np.random.default_rng(2)
    widest = [np.zeros(array.shape) for array in exact]
    for run in range(RUNS):
        rounded, rebuilt = _rounded(module, random, bindings if run % 2 else None)
        forced = {rebuilt[node]: value for node, value in taken.items()}
        for number, array in enumerate(evaluate(rounded, inputs, bindings, "float64", forced)):
            if array.dtype.kind == "f":
                with np.errstate(all="ignore"):
                    widest[number] = np.fmax(widest[number], np.abs(array - exact[number]))
    return widest


def _rounded(
    module: Module, random: np.random.Generator, by_element: Mapping[str, int] | None
) -> tuple[Module, Mapping[Instruction, Instruction]]:
    """`module` with errors of random sign, and what its instructions became. With sizes, by which
    signs differ from element to element: each is the product of one for each of its places."""
    exact = frozenset(decisions(module))

    def wide(values: Array, shape: Shape, *axes: int) -> Instruction:
        literal = from_array(values.astype(DTYPES[shape.dtype].numpy), shape.dtype)
        constant = instruction(op.CONSTANT, Shape(shape.dtype, values.shape), value=literal)
        return instruction(op.BROADCAST, shape, (constant,), dimensions=axes)

    def build(node: Instruction, operands: tuple[Instruction, ...]) -> Instruction:
        exactly = instruction(node.opcode, node.shape, operands, **dict(node.attributes))
        error = 0.0 if node in exact else _error(node)
        if not error:
            return exactly
        shape, signs = node.shape, np.array(random.choice((-1.0, 1.0)))
        moved = wide(error * signs, shape)
        for axis, dim in enumerate(shape.dims if by_element is not None else ()):
            signs = random.choice((-1.0, 1.0), dims.evaluate(dim, by_element or {}))
            moved = instruction(op.MULTIPLY, shape, (moved, wide(signs, shape, axis)))
        factor = instruction(op.ADD, shape, (wide(np.array(1.0), shape), moved))
        return instruction(op.MULTIPLY, shape, (exactly, factor))

    entry, rebuilt = rebuild(module.entry, build)
    return Module(module.name, entry, module.symbols), rebuilt


def _error(node: Instruction) -> float:
    """What an elementwise float result may be off by, relative to itself: whole units."""
    record = op.record(node.opcode)
    if record.kind != "elementwise" or not (record.flops or record.ulp):
        return 0.0
    return unit(node.shape.dtype) * max(1, math.ceil(record.ulp))
