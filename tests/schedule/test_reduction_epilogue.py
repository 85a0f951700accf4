"""What is made of a finished column sum is stored by the tasks that finish it."""

from __future__ import annotations

import pytest

from stitchcore.device.records import DEVICES
from stitchcore.hlo.ir import builder
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.loop_ir.nodes import Kernel, Role
from stitchcore.schedule.pipeline import schedule
from tests.schedule.agree import check
from tests.schedule.modules import (
    apply,
    broadcast,
    draw_inputs,
    module_of,
    parameter,
    reduce,
    whole,
)

SHAPE, KEPT = (2048, 17, 128), (2048, 128)
TARGETS = pytest.mark.parametrize("target", ["cpu-x86-64-v3", "sm_90"])


def scheduled(parameters: list[Instruction], outputs: list[Instruction], target: str) -> Kernel:
    module = module_of(outputs, parameters)
    return schedule(whole(module), module, DEVICES[target], "kernel", verify=True)


def update(bias: Instruction, total: Instruction) -> Instruction:
    rate = broadcast(builder.constant(0.125, "f32"), KEPT, ())
    return apply(op.SUBTRACT, bias, apply(op.MULTIPLY, total, rate))


@TARGETS
def test_a_bias_gradient_and_its_update_are_one_phase(target: str) -> None:
    """The sum itself is in no memory: nobody else reads it. The bias is updated in place."""
    x, bias = parameter(0, SHAPE), parameter(1, KEPT)
    kernel = scheduled([x, bias], [update(bias, reduce(x, (1,)))], target)
    assert len(kernel.phases) == 1 and not kernel.with_role(Role.SCRATCH)
    assert kernel.aliases == ((kernel.with_role(Role.INPUT).index(in_place(kernel)), 0),)


def in_place(kernel: Kernel) -> object:
    (found,) = (b for b in kernel.with_role(Role.INPUT) if b.dims in (KEPT, (2048 * 128,)))
    return found


@TARGETS
def test_of_two_sums_of_the_same_loops(target: str) -> None:
    """Mean of squares less square of the mean, and one of the sums as an output besides."""
    x = parameter(0, SHAPE)
    total, squares = reduce(x, (1,)), reduce(apply(op.MULTIPLY, x, x), (1,))
    variance = apply(op.SUBTRACT, squares, apply(op.MULTIPLY, total, total))
    kernel = scheduled([x], [variance, total], target)
    assert len(kernel.phases) == 1 and not kernel.with_role(Role.SCRATCH)


@TARGETS
def test_what_reads_the_sum_elsewhere_waits(target: str) -> None:
    """Its reverse, and the rows that it is subtracted from: other elements than the task's own."""
    x, bias = parameter(0, SHAPE), parameter(1, KEPT)
    total = reduce(x, (1,))
    turned = apply(op.ADD, bias, builder.reverse(total, (1,)))
    centred = apply(op.SUBTRACT, x, broadcast(total, SHAPE, (0, 2)))
    both = apply(op.ADD, total, builder.reverse(total, (1,)))
    for late in (turned, centred, both):
        kernel = scheduled([x, bias], [apply(op.NEGATE, late), update(bias, total)], target)
        assert len(kernel.phases) == 2


@TARGETS
def test_a_later_phase_reads_what_was_stored_there(target: str) -> None:
    x, bias = parameter(0, SHAPE), parameter(1, KEPT)
    made = apply(op.TANH, update(bias, reduce(x, (1,))))
    scaled = apply(op.MULTIPLY, x, broadcast(made, SHAPE, (0, 2)))
    kernel = scheduled([x, bias], [made, apply(op.NEGATE, scaled)], target)
    assert len(kernel.phases) == 2 and not kernel.with_role(Role.SCRATCH)


@pytest.mark.slow
def test_values_are_right() -> None:
    """Interpreter and C, of two sums, what is made of them at once, and what reads that later."""
    x, bias = parameter(0, (40, 17, 24)), parameter(1, (40, 24))
    total, squares = reduce(x, (1,)), reduce(apply(op.MULTIPLY, x, x), (1,))
    made = apply(op.TANH, apply(op.SUBTRACT, squares, apply(op.MULTIPLY, total, bias)))
    scaled = apply(op.MULTIPLY, x, broadcast(made, (40, 17, 24), (0, 2)))
    module = module_of([made, scaled], [x, bias])
    pattern = whole(module)
    kernel = check(pattern, module, draw_inputs(pattern, 0), compiled=True)
    assert len(kernel.phases) == 2 and not kernel.with_role(Role.SCRATCH)
