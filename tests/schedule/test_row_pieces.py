"""Reductions whose rows, or kept elements, lie in short pieces beside their neighbours'."""

from __future__ import annotations

import pytest

from stitchcore.device.records import DEVICES
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.loop_ir.nodes import Kernel, Loop, LoopKind
from stitchcore.loop_ir.visitor import statements
from stitchcore.schedule import tiling
from stitchcore.schedule.limits import CPU, of
from stitchcore.schedule.tiling import Partition
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
from tests.tiers import slow_but

OFF = {"short_piece": 0}


def kernel_of(outputs: list[Instruction], parameters: list[Instruction]) -> Kernel:
    module = module_of(outputs, parameters)
    pattern = whole(module)
    return check(pattern, module, draw_inputs(pattern, 0), compiled=True)


def rows_inside(kernel: Kernel) -> bool:
    """Whether somewhere a loop over rows stands in the loop over their pieces."""
    loops = [
        s
        for phase in kernel.phases
        for section in phase.sections
        for s in statements(section.body)
        if isinstance(s, Loop) and s.kind is LoopKind.SERIAL
    ]
    return any(
        outer.variable.startswith("outer")
        and isinstance(outer.body[0], Loop)
        and outer.body[0].variable.startswith("row")
        for outer in loops
    )


ROWS = [
    ((6, 40, 49), (0, 2)),
    ((64, 5, 9, 16), (1, 3)),
    ((300, 33, 4), (0, 2)),
    ((2, 700, 3), (0, 2)),
]


@pytest.mark.parametrize(("dims", "over"), slow_but(ROWS[0], of=ROWS))
@pytest.mark.parametrize(
    ("dtype", "opcode"), [("f32", op.ADD), ("f16", op.ADD), ("s32", op.MAXIMUM)]
)
def test_neighbouring_rows_are_added_up_together(
    dims: tuple[int, ...], over: tuple[int, ...], dtype: str, opcode: str
) -> None:
    x = parameter(0, dims, dtype)
    assert rows_inside(kernel_of([reduce(x, over, opcode)], [x]))
    with twins.toy(OFF):
        assert not rows_inside(kernel_of([reduce(x, over, opcode)], [x]))


def test_what_follows_a_row_follows_it() -> None:
    """Batch normalisation of [batch, channels, 7 * 7]."""
    dims = (6, 40, 49)
    x = parameter(0, dims)
    centred = apply(op.SUBTRACT, x, broadcast(reduce(x, (0, 2)), dims, (1,)))
    spread = reduce(apply(op.MULTIPLY, centred, centred), (0, 2))
    outputs = [apply(op.MULTIPLY, centred, broadcast(spread, dims, (1,))), spread]
    assert rows_inside(kernel_of(outputs, [x]))


def test_two_sums_of_a_row() -> None:
    x, y = parameter(0, (5, 40, 60)), parameter(1, (5, 40, 60))
    sums = [reduce(x, (0, 2)), reduce(apply(op.MULTIPLY, x, y), (0, 2))]
    assert rows_inside(kernel_of(sums, [x, y]))


@pytest.mark.parametrize(("dims", "over"), [((40, 6, 49), (1, 2)), ((3, 40, 2000), (0, 2))])
def test_rows_of_one_piece_or_of_long_ones_stay_apart(
    dims: tuple[int, ...], over: tuple[int, ...]
) -> None:
    x = parameter(0, dims)
    assert not rows_inside(kernel_of([reduce(x, over)], [x]))


def middles(dims: tuple[int, ...]) -> Kernel:
    """Two reductions that keep the last two of four axes apart for each other."""
    x = parameter(0, dims)
    return kernel_of([reduce(x, (1,)), reduce(x, (2,), op.MAXIMUM)], [x])


@pytest.mark.slow
def test_a_task_adds_up_the_pieces_beside_its_lanes() -> None:
    tasks = [section.tasks for section in middles((40, 9, 12, 20)).phases[0].sections]
    assert tasks == [40, 40 * 9]
    with twins.toy(OFF):
        tasks = [section.tasks for section in middles((40, 9, 12, 20)).phases[0].sections]
    assert tasks == [40 * 12, 40 * 9]


def test_but_not_where_too_few_tasks_would_be_left() -> None:
    tasks = [section.tasks for section in middles((8, 9, 12, 20)).phases[0].sections]
    assert tasks == [8 * 12, 8 * 9]


@pytest.mark.parametrize(("lanes", "block"), [(5000, 1024), (16384, 2048), (10**6, 4096)])
def test_blocks_are_as_wide_as_there_are_enough_of(lanes: int, block: int) -> None:
    loops = Partition((), (0,), 1, False)
    assert tiling.over_partition({0: 64, 1: lanes}, loops, CPU).lane_block == block
    gpu = of(DEVICES["sm_90"])
    assert tiling.over_partition({0: 64, 1: lanes}, loops, gpu).lane_block == gpu.lanes
