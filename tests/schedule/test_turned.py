"""Values that lie in memory in another order than they are written: transposes and reverses."""

from __future__ import annotations

import pytest

from stitchcore.device.records import DEVICES
from stitchcore.hlo.ir import builder
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.loop_ir.nodes import Kernel, Loop, LoopKind, Store
from stitchcore.loop_ir.visitor import statements
from stitchcore.schedule.limits import CPU
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

TARGETS = pytest.mark.parametrize("target", ["cpu-x86-64-v3", "sm_90"])


def scheduled(parameters: list[Instruction], outputs: list[Instruction], target: str) -> Kernel:
    """Also checks that the kernel does what the module says."""
    module = module_of(outputs, parameters)
    pattern = whole(module)
    return check(pattern, module, draw_inputs(pattern, 0), device=DEVICES[target])


def turned(rows: int, columns: int, target: str) -> Kernel:
    x = parameter(0, (rows, columns))
    return scheduled([x], [apply(op.NEGATE, builder.transpose(x, (1, 0)))], target)


def lanes_of(kernel: Kernel) -> Loop:
    ((section,),) = (phase.sections for phase in kernel.phases)
    (found,) = (
        s for s in statements(section.body) if isinstance(s, Loop) and s.kind is LoopKind.LANES
    )
    return found


@pytest.mark.parametrize(("rows", "columns"), [(200, 40), (129, 70)])
def test_a_task_of_a_transpose_keeps_to_a_line_of_what_it_writes(rows: int, columns: int) -> None:
    kernel = turned(rows, columns, "cpu-x86-64-v3")
    assert kernel.phases[0].sections[0].tasks == -(-rows // CPU.turned_lanes)


def test_a_small_tile_stays_whole() -> None:
    kernel = turned(64, 200, "cpu-x86-64-v3")
    assert lanes_of(kernel).end == 64
    assert kernel.phases[0].sections[0].tasks == 1


@TARGETS
@pytest.mark.parametrize("dimensions", [(0,), (1,), (0, 2)])
def test_a_reversed_output_is_written_where_its_operand_is(
    target: str, dimensions: tuple[int, ...]
) -> None:
    """The exponential is computed once for both outputs, in one section."""
    x = parameter(0, (6, 40, 8))
    value = apply(op.EXPONENTIAL, x)
    kernel = scheduled([x], [value, builder.reverse(value, dimensions)], target)
    ((section,),) = (phase.sections for phase in kernel.phases)
    assert len([s for s in statements(section.body) if isinstance(s, Store)]) == 2


@TARGETS
def test_a_reverse_that_is_read_here_keeps_no_phase_waiting(target: str) -> None:
    x = parameter(0, (64, 100))
    back = builder.reverse(x, (1,))
    kernel = scheduled([x], [back, apply(op.EXPONENTIAL, back)], target)
    assert len(kernel.phases) == 1


@TARGETS
def test_a_reversed_rows_share_is_written_with_its_row(target: str) -> None:
    x = parameter(0, (64, 100))
    total = broadcast(reduce(x, (1,)), (64, 100), (0,))
    kernel = scheduled([x], [builder.reverse(apply(op.SUBTRACT, x, total), (0, 1))], target)
    assert len(kernel.phases) == 1
