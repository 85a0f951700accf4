"""Rows of so few elements that lanes are rows, and what is inside one is a serial loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from stitchcore.hlo.ir import builder
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.dim import Dim, symbol
from stitchcore.hlo.ir.module import Module
from stitchcore.loop_ir.nodes import Kernel, LaneReduce, Loop, LoopKind
from stitchcore.loop_ir.visitor import statements
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


def softmax(dims: tuple[Dim, ...]) -> Module:
    """Exponentials over their sum along the last dimension, and the sums themselves."""
    x = parameter(0, dims)
    kept = tuple(range(len(dims) - 1))
    raised = apply(op.EXPONENTIAL, x)
    total = reduce(raised, (len(dims) - 1,))
    return module_of([apply(op.DIVIDE, raised, broadcast(total, dims, kept)), total], [x])


def normalized(dims: tuple[Dim, ...]) -> Module:
    """Images, less the mean of each channel."""
    x, mean = parameter(0, dims), parameter(1, dims[-1:])
    return module_of([apply(op.SUBTRACT, x, broadcast(mean, dims, (len(dims) - 1,)))], [x, mean])


def kernel_of(module: Module, bindings: dict[str, int] | None = None) -> Kernel:
    pattern = whole(module)
    inputs = draw_inputs(pattern, 0, bindings or {})
    return check(pattern, module, inputs, bindings, compiled=True)


def lane_loops(kernel: Kernel) -> list[Loop]:
    return [
        statement
        for phase in kernel.phases
        for section in phase.sections
        for statement in statements(section.body)
        if isinstance(statement, Loop) and statement.kind is LoopKind.LANES
    ]


def holds_loops(loops: list[Loop]) -> bool:
    return all(any(isinstance(s, Loop) for s in loop.body) for loop in loops)


@pytest.mark.parametrize("columns", [2, 3, 4])
@pytest.mark.parametrize("outer", [(16,), (700,), (3, 50), (2, 3, 16)])
@pytest.mark.parametrize("make", [softmax, normalized])
def test_lanes_are_rows(
    make: Callable[[tuple[Dim, ...]], Module], outer: tuple[int, ...], columns: int
) -> None:
    kernel = kernel_of(make((*outer, columns)))
    assert holds_loops(lane_loops(kernel))
    combined = [s for p in kernel.phases for n in p.sections for s in statements(n.body)]
    assert not any(isinstance(statement, LaneReduce) for statement in combined)


@pytest.mark.parametrize(("rows", "columns"), [(15, 4), (64, 5), (64, 16)])
@pytest.mark.parametrize("make", [softmax, normalized])
def test_lanes_are_elements(
    make: Callable[[tuple[Dim, ...]], Module], rows: int, columns: int
) -> None:
    """Where there are too few rows for a vector of them, or enough elements for one."""
    assert not holds_loops(lane_loops(kernel_of(make((rows, columns)))))


@pytest.mark.parametrize("make", [softmax, normalized])
def test_without_interchange_lanes_are_elements(make: Callable[[tuple[Dim, ...]], Module]) -> None:
    with twins.toy({"interchanged": ()}):
        assert not holds_loops(lane_loops(kernel_of(make((64, 4)))))


@pytest.mark.parametrize("rows", [1, 17, 600])
@pytest.mark.parametrize("make", [softmax, normalized])
def test_lanes_are_rows_of_any_number(make: Callable[[tuple[Dim, ...]], Module], rows: int) -> None:
    module = replace(make((symbol("n"), 3)), symbols=("n",))
    assert holds_loops(lane_loops(kernel_of(module, {"n": rows})))


def test_what_all_rows_add_up_is_no_lanes_own() -> None:
    x = parameter(0, (700, 4))
    share = apply(op.DIVIDE, x, broadcast(reduce(x, (1,)), (700, 4), (0,)))
    kernel = kernel_of(module_of([reduce(apply(op.MULTIPLY, share, share), (0, 1))], [x]))
    assert not holds_loops(lane_loops(kernel))


def test_a_row_that_is_read_from_its_end_stays_one_of_lanes() -> None:
    """Compilers shuffle vectors of short rows forward only: 917 us instead of 349."""
    x = parameter(0, (64, 28, 3))
    kernel = kernel_of(module_of([apply(op.NEGATE, builder.reverse(x, (1,)))], [x]))
    assert not holds_loops(lane_loops(kernel))


def test_a_row_may_be_written_where_it_was_read() -> None:
    assert kernel_of(softmax((300, 4))).aliases
