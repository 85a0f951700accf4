"""Transposes of the last two axes, by squares turned in registers, and what is no such square."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stitchcore.codegen import c
from stitchcore.device.host import host_device
from stitchcore.device.records import DEVICES
from stitchcore.fusion.pattern import Pattern
from stitchcore.hlo.ir import builder
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.hlo.ir.module import Module
from stitchcore.runtime.cpu_kernel import CpuKernel
from stitchcore.schedule.pipeline import schedule
from stitchcore.toolchain.c_compiler import compile_c
from tests.schedule.agree import check
from tests.schedule.modules import apply, draw_inputs, module_of, parameter, whole
from tests.tiers import slow_but


def transpose(
    dims: tuple[int, ...], dtype: str = "f32", opcode: str = op.NEGATE
) -> tuple[Module, Pattern]:
    x = parameter(0, dims, dtype)
    order = (*range(len(dims) - 2), len(dims) - 1, len(dims) - 2)
    module = module_of([apply(opcode, builder.transpose(x, order))], [x])
    return module, whole(module)


def text(module: Module, pattern: Pattern) -> str:
    return c.render([schedule(pattern, module, DEVICES["cpu-x86-64-v3"], "kernel")])


@pytest.mark.parametrize("dims", [(160, 96), (3, 100, 150), (2, 130, 37), (5, 97, 16), (90, 200)])
@pytest.mark.parametrize("dtype", slow_but("f32", "f16", of=["f32", "f64", "s32", "f16", "bf16"]))
def test_squares_are_turned_and_right(dims: tuple[int, ...], dtype: str) -> None:
    module, pattern = transpose(dims, dtype)
    size = {"f64": 8, "f16": 2, "bf16": 2}.get(dtype, 4)
    assert f"st_turn_{size}(" in text(module, pattern)
    check(pattern, module, draw_inputs(pattern, 0), compiled=True)


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16"])
@pytest.mark.parametrize("target", ["cpu-x86-64-v2", "cpu-x86-64-v3", host_device().target])
def test_vectors_of_every_width(dtype: str, target: str) -> None:
    """Not a single element is out of place, whatever the compiler has for shuffles."""
    x = parameter(0, (96, 160), dtype)
    module = module_of([builder.transpose(x, (1, 0))], [x])
    pattern = whole(module)
    kernel = schedule(pattern, module, DEVICES[target], "kernel")
    inputs = draw_inputs(pattern, 0)
    library = compile_c(c.render([kernel]), DEVICES[target])
    [found] = CpuKernel(library.data, kernel).run(inputs, {}, threads=1)
    assert found.tobytes() == inputs[0].T.tobytes()


def test_what_costs_more_than_a_copy_is_turned_too() -> None:
    module, pattern = transpose((4, 200, 64), opcode=op.EXPONENTIAL)
    kernel = check(pattern, module, draw_inputs(pattern, 0), compiled=True)
    assert "st_turn_4(" in c.render([kernel])


@pytest.mark.parametrize("dims", [(12, 200, 8), (2, 70, 3)])
def test_rows_of_fewer_than_a_square_are_not_turned(dims: tuple[int, ...]) -> None:
    module, pattern = transpose(dims)
    assert "st_turn" not in text(module, pattern)
    check(pattern, module, draw_inputs(pattern, 0), compiled=True)


@pytest.mark.parametrize("dtype", ["s8", "pred"])
def test_bytes_are_read_one_by_one(dtype: str) -> None:
    x = parameter(0, (100, 160), dtype)
    module = module_of([apply(op.NOT, builder.transpose(x, (1, 0)))], [x])
    pattern = whole(module)
    assert "st_turn" not in text(module, pattern)
    check(pattern, module, draw_inputs(pattern, 0), compiled=True)


def test_two_operands_and_one_as_it_lies() -> None:
    x, y, z = (parameter(n, dims) for n, dims in enumerate([(80, 150), (80, 150), (150, 80)]))
    both = apply(op.ADD, builder.transpose(x, (1, 0)), builder.transpose(y, (1, 0)))
    module = module_of([apply(op.MULTIPLY, both, z)], [x, y, z])
    pattern = whole(module)
    kernel = check(pattern, module, draw_inputs(pattern, 0), compiled=True)
    assert c.render([kernel]).count("st_turn_4(") == 2


def padded(x: Instruction) -> Instruction:
    return builder.pad(x, builder.constant(0.0, "f32"), [(1, 1, 0), (1, 1, 0)])


def flipped(x: Instruction) -> Instruction:
    return builder.reverse(x, (1,))


@pytest.mark.parametrize("view", [padded, flipped])
def test_what_is_no_piece_of_a_row_is_read_one_by_one(
    view: Callable[[Instruction], Instruction],
) -> None:
    x = parameter(0, (100, 160))
    module = module_of([apply(op.EXPONENTIAL, builder.transpose(view(x), (1, 0)))], [x])
    pattern = whole(module)
    kernel = check(pattern, module, draw_inputs(pattern, 0), compiled=True)
    assert "st_turn" not in c.render([kernel])
