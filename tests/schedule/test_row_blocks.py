"""Each stage of short rows runs over a block of rows, so that none waits for the one before it."""

from __future__ import annotations

import numpy as np
import pytest

from stitchcore.codegen import c
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.module import Module
from stitchcore.loop_ir.nodes import Kernel, LaneReduce, Loop, LoopKind
from stitchcore.loop_ir.visitor import statements
from stitchcore.runtime.cpu_kernel import CpuKernel
from stitchcore.schedule.limits import CPU
from stitchcore.schedule.pipeline import schedule
from stitchcore.toolchain.c_compiler import compile_c
from tests.schedule import twins
from tests.schedule.agree import DEVICE, check, collapsed
from tests.schedule.modules import (
    apply,
    broadcast,
    draw_inputs,
    module_of,
    parameter,
    reduce,
    whole,
)
from tests.schedule.test_pipeline import layer_norm_gradient, parameters_of


def softmax(rows: int, columns: int) -> Module:
    """Exponentials over their sum, and that times its own sum: three stages."""
    x = parameter(0, (rows, columns))
    wide = x.shape.dims
    raised = apply(op.EXPONENTIAL, x)
    first = apply(op.DIVIDE, raised, broadcast(reduce(raised, (1,)), wide, (0,)))
    second = reduce(apply(op.MULTIPLY, first, x), (1,))
    return module_of([apply(op.SUBTRACT, first, broadcast(second, wide, (0,)))], [x])


def row_loops(kernel: Kernel) -> list[Loop]:
    """Serial loops with lane loops in them and no serial loop around those."""
    sections = (section for phase in kernel.phases for section in phase.sections)
    serial = (
        statement
        for section in sections
        for statement in statements(section.body)
        if isinstance(statement, Loop) and statement.kind is LoopKind.SERIAL
    )
    return [
        loop
        for loop in serial
        if any(isinstance(s, Loop) and s.kind is LoopKind.LANES for s in loop.body)
    ]


@pytest.mark.parametrize("columns", [12, 100, 512])
@pytest.mark.parametrize("rows", [3, 257])
def test_each_stage_runs_over_a_block_of_rows(rows: int, columns: int) -> None:
    """Whatever is left for the last block, in the interpreter and as C."""
    module = softmax(rows, columns)
    pattern = whole(module)
    kernel = check(pattern, module, draw_inputs(pattern, 0), compiled=True)
    loops = row_loops(kernel)
    assert len(loops) == 3
    assert [sum(isinstance(s, LaneReduce) for s in loop.body) for loop in loops] == [1, 1, 0]


def test_long_rows_go_row_by_row() -> None:
    """Two of them do not stay in the first cache together."""
    module = softmax(257, 1500)
    (loop,) = row_loops(schedule(whole(module), module, DEVICE, "kernel", verify=True))
    assert sum(isinstance(statement, LaneReduce) for statement in loop.body) == 2


def test_sums_over_rows_are_the_same_bit_for_bit() -> None:
    """Sums that a task carries from row to row are added up in the order of rows either way."""
    outputs = layer_norm_gradient(200, 96)
    module = module_of(outputs, parameters_of(outputs))
    pattern = whole(module)
    inputs = draw_inputs(pattern, 0)
    results = []
    for elements in (CPU.row_elements, 0):
        with twins.toy({"row_elements": elements}):
            kernel = schedule(pattern, module, DEVICE, "kernel", verify=True)
        compiled = CpuKernel(compile_c(c.render([kernel]), DEVICE).data, kernel)
        arrays = compiled.run(collapsed(kernel, inputs, {}), {}, 1)
        results.append((len(row_loops(kernel)), arrays))
    (blocks, together), (rows, apart) = results
    assert blocks > rows
    for one, other in zip(together, apart, strict=True):
        assert np.array_equal(one, other)
