"""How far a module's exact outputs move when every operation rounds as it may.

A relative tolerance and one framework run both miss what happens inside: where 1 + tanh(x) cancels,
the last bit of tanh is much of the result, and no movement of x shows it. So the module itself is
changed: each elementwise float result is multiplied by 1 plus or minus its opcode's own error, and
the rest is exact. No decision turns: what one moves is counted apart, not allowed (reference.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stitchcore.hlo.evaluator.evaluate import decisions, evaluate, evaluate_all
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction, instruction
from stitchcore.hlo.ir.literal import scalar
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.ir.rewrite import rebuild
from stitchcore.hlo.ir.shape import Shape
from stitchcore.verify.tolerance import unit

Array = np.ndarray[Any, np.dtype[Any]]

RUNS = 6
"""Random signs of all errors that are tried; the widest movement of each element counts."""


def movement(
    module: Module, inputs: Sequence[Array], bindings: Mapping[str, int], exact: Sequence[Array]
) -> list[Array]:
    """The widest absolute movement of each element of each output; 0 for other than floats."""
    deciding = decisions(module)
    taken = evaluate_all(module, inputs, bindings, "float64", set(deciding)) if deciding else {}
    random = np.random.default_rng(2)
    widest = [np.zeros(array.shape) for array in exact]
    for _ in range(RUNS):
        rounded, rebuilt = _rounded(module, random)
        forced = {rebuilt[node]: value for node, value in taken.items()}
        for number, array in enumerate(evaluate(rounded, inputs, bindings, "float64", forced)):
            if array.dtype.kind == "f":
                with np.errstate(all="ignore"):
                    widest[number] = np.fmax(widest[number], np.abs(array - exact[number]))
    return widest


def _rounded(
    module: Module, random: np.random.Generator
) -> tuple[Module, Mapping[Instruction, Instruction]]:
    """`module` with errors of random sign, and what its instructions became."""
    exact = frozenset(decisions(module))

    def build(node: Instruction, operands: tuple[Instruction, ...]) -> Instruction:
        exactly = instruction(node.opcode, node.shape, operands, **dict(node.attributes))
        error = 0.0 if node in exact else _error(node)
        if not error:
            return exactly
        factor = 1.0 + float(random.choice((-1.0, 1.0))) * error
        constant = instruction(
            op.CONSTANT, Shape(node.shape.dtype), value=scalar(factor, node.shape.dtype)
        )
        wide = instruction(op.BROADCAST, node.shape, (constant,), dimensions=())
        return instruction(op.MULTIPLY, node.shape, (exactly, wide))

    entry, rebuilt = rebuild(module.entry, build)
    return Module(module.name, entry, module.symbols), rebuilt


def _error(node: Instruction) -> float:
    """What an elementwise float result may be off by, relative to itself: whole units."""
    record = op.record(node.opcode)
    if record.kind != "elementwise" or not (record.flops or record.ulp):
        return 0.0
    return unit(node.shape.dtype) * max(1, math.ceil(record.ulp))
