"""Short rows of a deep chain share one lane loop, unless an access would not be dense."""

from __future__ import annotations

import pytest

from stitchcore.hlo.ir import builder
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction, instruction
from stitchcore.hlo.ir.shape import Shape
from stitchcore.loop_ir import index
from stitchcore.loop_ir.index import Variable
from stitchcore.loop_ir.nodes import Loop
from stitchcore.loop_ir.visitor import statements
from stitchcore.schedule.pack_rows import STEM
from tests.schedule.agree import check
from tests.schedule.modules import (
    apply,
    broadcast,
    draw_inputs,
    module_of,
    parameter,
    whole,
)


def chain(rows: int, columns: int, sliced: bool) -> tuple[list[Instruction], list[Instruction]]:
    """tanh again and again, with a factor a row, another a column, and a row's flag."""
    shape = (rows, columns)
    x = parameter(0, (rows, columns + 1) if sliced else shape)
    gate, weight, flag = parameter(1, (rows,)), parameter(2, (columns,)), parameter(3, (rows,))
    value: Instruction = x
    if sliced:
        kept = ((0, rows, 1), (1, columns + 1, 1))
        value = instruction(op.SLICE, Shape("f32", shape), (x,), slice=kept)
    first = value
    positive = instruction(op.COMPARE, Shape("pred", (rows,)), (flag, gate), direction="GT")
    for _ in range(12):
        value = apply(op.TANH, apply(op.MULTIPLY, value, broadcast(gate, shape, (0,))))
        value = apply(op.ADD, value, broadcast(weight, shape, (1,)))
        chosen = broadcast(positive, shape, (0,))
        value = instruction(op.SELECT, first.shape, (chosen, value, first))
    return [value], [x, gate, weight, flag]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "columns", "sliced", "packed"),
    [
        (50, 36, False, True),
        (7, 36, False, True),
        (64, 5, False, True),
        (50, 37, True, False),
        (50, 48, False, False),
    ],
)
def test_rows_are_packed(rows: int, columns: int, sliced: bool, packed: bool) -> None:
    outputs, parameters = chain(rows, columns, sliced)
    module = module_of(outputs, parameters)
    pattern = whole(module)
    kernel = check(pattern, module, draw_inputs(pattern, 0), compiled=True)
    [section] = kernel.phases[0].sections
    names = [s.variable for s in statements(section.body) if isinstance(s, Loop)]
    assert any(name.startswith(STEM) for name in names) is packed


def test_a_quotient_and_its_remainder_are_one_index() -> None:
    e, t = Variable("e"), Variable("t")
    row, lane = t * 28 + e // 36, e % 36
    assert index.collapse(row * 36 + lane + 7) == t * 1008 + e + 7
    assert index.collapse(row * 72 + lane) == row * 72 + lane
    assert index.collapse(row * 72 + lane * 2) == t * 2016 + e * 2


def packs(output: Instruction, parameters: list[Instruction]) -> bool:
    """Whether the rows of a kernel of `output` are packed; also checks that it is right."""
    module = module_of([output], parameters)
    pattern = whole(module)
    kernel = check(pattern, module, draw_inputs(pattern, 0), compiled=True)
    loops = [
        s for n in kernel.phases[0].sections for s in statements(n.body) if isinstance(s, Loop)
    ]
    return any(loop.variable.startswith(STEM) for loop in loops)


@pytest.mark.parametrize("channels", [2, 3, 5, 15])
def test_a_flipped_image_is_moved_first(channels: int) -> None:
    x, mean = parameter(0, (7, 20, 9, channels)), parameter(1, (channels,))
    flipped = builder.reverse(x, (2,))
    less = apply(op.SUBTRACT, flipped, broadcast(mean, flipped.shape.dims, (3,)))
    assert packs(apply(op.MULTIPLY, less, less), [x, mean])


def test_so_is_a_part_of_an_image() -> None:
    x = parameter(0, (7, 20, 9, 5))
    part = builder.slice_(x, [(0, 7, 1), (2, 18, 1), (1, 8, 1), (0, 5, 1)])
    assert packs(apply(op.NEGATE, part), [x])


def test_a_row_that_is_flipped_itself_is_shuffled() -> None:
    x = parameter(0, (7, 20, 9, 8))
    assert not packs(apply(op.NEGATE, builder.reverse(x, (3,))), [x])


def test_a_row_of_a_vector_is_read_as_one() -> None:
    x = parameter(0, (7, 20, 9, 16))
    assert not packs(apply(op.NEGATE, builder.reverse(x, (2,))), [x])


@pytest.mark.parametrize("channels", [2, 3, 5, 15])
@pytest.mark.parametrize("dimensions", [(2,), (1, 2)])
def test_what_is_flipped_afterwards_is_moved_last(
    channels: int, dimensions: tuple[int, ...]
) -> None:
    x, mean = parameter(0, (7, 20, 9, channels)), parameter(1, (channels,))
    less = apply(op.SUBTRACT, x, broadcast(mean, x.shape.dims, (3,)))
    assert packs(builder.reverse(apply(op.MULTIPLY, less, less), dimensions), [x, mean])
