"""A later phase computes a stored value again where it reads all its large operands anyway."""

from __future__ import annotations

import pytest

from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.loop_ir.nodes import Load, Role
from stitchcore.loop_ir.visitor import expressions
from tests.schedule.agree import check
from tests.schedule.modules import (
    apply,
    broadcast,
    draw_inputs,
    module_of,
    parameter,
    reduce,
    scalar,
    whole,
)

LARGE = (900, 96)


def mean(value: Instruction) -> Instruction:
    ratio = broadcast(scalar(1 / LARGE[0]), (LARGE[1],), ())
    return broadcast(apply(op.MULTIPLY, reduce(value, (0,)), ratio), LARGE, (1,))


def outputs(chain: int, uses_input: bool) -> list[Instruction]:
    """y = relu(x - column means of x), then something of y and of y's column means."""
    x = parameter(0, LARGE)
    y = apply(op.SUBTRACT, x, mean(x))
    y = apply(op.MAXIMUM, y, broadcast(scalar(0.0), LARGE, ()))
    for _ in range(chain):
        y = apply(op.TANH, y)
    z = apply(op.SUBTRACT, y, mean(y))
    return [y, apply(op.MULTIPLY, z, x) if uses_input else z]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chain", "uses_input", "reads_back"), [(0, True, False), (0, False, True), (3, True, True)]
)
def test_what_is_read_back(chain: int, uses_input: bool, reads_back: bool) -> None:
    module = module_of(outputs(chain, uses_input), [parameter(0, LARGE)])
    pattern = whole(module)
    kernel = check(pattern, module, draw_inputs(pattern, 0), compiled=True)
    read = {
        node.buffer
        for section in kernel.phases[-1].sections
        for node in expressions(section.body)
        if isinstance(node, Load)
    }
    first = kernel.with_role(Role.OUTPUT)[0]
    assert (first in read) is reads_back
    assert (kernel.with_role(Role.INPUT)[0] in read) is uses_input
