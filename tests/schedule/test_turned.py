"""Values that lie in memory in another order than they are written: transposes and reverses."""

from __future__ import annotations

import pytest

from stitchcore.device.records import DEVICES
from stitchcore.hlo.ir import builder
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.loop_ir import index
from stitchcore.loop_ir.nodes import Apply, Kernel, Loop, LoopKind, Role, Store
from stitchcore.loop_ir.visitor import expressions, statements
from stitchcore.schedule.limits import CPU
from tests.schedule import twins
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
    written = [s for s in statements(section.body) if isinstance(s, Store)]
    assert len([s for s in written if s.buffer.role is Role.OUTPUT]) == 2
    computed = [e for e in expressions(section.body) if isinstance(e, Apply)]
    assert [e.opcode for e in computed] == [op.EXPONENTIAL]


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


def columns_and_sum(batch: int, rows: int) -> tuple[list[Instruction], list[Instruction]]:
    """What turns a query's gradient, and the sum of it that its bias takes: rows of 40 each."""
    x = parameter(0, (batch, rows, 40))
    turned = builder.transpose(apply(op.MULTIPLY, x, x), (0, 2, 1))
    return [x], [turned, reduce(turned, (0, 1))]


def test_rows_do_not_write_across_many_lines() -> None:
    """The transpose has loops of its own, beside those of the rows that it is summed up in."""
    kernel = scheduled(*columns_and_sum(5, 64), "cpu-x86-64-v3")
    assert len(kernel.phases[0].sections) == 2
    with twins.toy({"turned_lanes": 0}):
        kernel = scheduled(*columns_and_sum(5, 64), "cpu-x86-64-v3")
    assert len(kernel.phases[0].sections) == 1


def test_rows_write_across_few_lines() -> None:
    """What one row brought is still there when the next one comes to it."""
    kernel = scheduled(*columns_and_sum(1, 64), "cpu-x86-64-v3")
    assert len(kernel.phases[0].sections) == 1


def share_of_row(batch: int, rows: int, columns: int) -> tuple[Instruction, Instruction]:
    x = parameter(0, (batch, rows, columns))
    total = broadcast(reduce(x, (2,)), (batch, rows, columns), (0, 1))
    return x, apply(op.SUBTRACT, x, total)


@pytest.mark.parametrize("rows", [16, 50, 197])
def test_what_depends_on_a_row_is_written_a_line_at_a_time(rows: int) -> None:
    """Rows wait for each other in a LOCAL buffer; lanes go along rows when it is written."""
    x, share = share_of_row(3, rows, 96)
    module = module_of([builder.transpose(share, (0, 2, 1))], [x])
    pattern = whole(module)
    kernel = check(pattern, module, draw_inputs(pattern, 0), compiled=True)
    assert lanes_write_neighbours(kernel)
    with twins.toy({"turned_row": 0}):
        assert not lanes_write_neighbours(check(pattern, module, draw_inputs(pattern, 0)))


def lanes_write_neighbours(kernel: Kernel) -> bool:
    """Of the output, which is stored once."""
    ((section,),) = (phase.sections for phase in kernel.phases)
    ((loop, store),) = (
        (loop, store)
        for loop in statements(section.body)
        if isinstance(loop, Loop) and loop.kind is LoopKind.LANES
        for store in loop.body
        if isinstance(store, Store) and store.buffer.role is Role.OUTPUT
    )
    return index.mentions(store.indices[-1], loop.variable)


def test_a_value_that_is_also_read_back_is_left_in_memory_once() -> None:
    """Its second use, in a later stage of the row, reads what waits there."""
    x, share = share_of_row(2, 33, 80)
    again = apply(op.EXPONENTIAL, share)
    wide = broadcast(reduce(again, (2,)), (2, 33, 80), (0, 1))
    outputs = [builder.transpose(share, (0, 2, 1)), apply(op.DIVIDE, again, wide)]
    module = module_of(outputs, [x])
    pattern = whole(module)
    check(pattern, module, draw_inputs(pattern, 0), compiled=True)
