"""Sections that are alike: which share a function, and what its table says of each."""

from __future__ import annotations

import re

import pytest

from stitchcore.codegen import cuda
from stitchcore.device.records import DEVICES
from stitchcore.errors import Refused
from stitchcore.hlo.ir import opcodes as op
from stitchcore.loop_ir.index import Index, Variable, minimum, modulo
from stitchcore.loop_ir.nodes import (
    Apply,
    Buffer,
    Expression,
    Kernel,
    Literal,
    Load,
    Loop,
    LoopKind,
    Phase,
    Role,
    Scope,
    Section,
    Store,
)
from stitchcore.schedule.pipeline import schedule
from stitchcore.toolchain import nvrtc
from tests.schedule import modules

WORDS = 4096
"""Of a table that constant memory has room for."""


def section(
    number: int,
    size: int | str,
    *,
    factor: float = 2.0,
    per_task: int = 100,
    modulus: int | None = None,
    scope: Scope = Scope.GROUP,
    out: Role = Role.OUTPUT,
) -> tuple[Section, Buffer, Buffer]:
    """out[i] = factor * in[i % modulus] in tasks of `per_task` elements."""
    extent: Index = Variable(size) if isinstance(size, str) else size
    task, lane = Variable(f"task{number}"), Variable(f"lane{number}")
    source = Buffer(f"in{number}", "f32", (extent,), Scope.DEVICE, Role.INPUT)
    target = Buffer(f"out{number}", "f32", (extent,), Scope.DEVICE, out)
    at = lane if modulus is None else modulo(lane, modulus)
    doubled: Expression = Apply(op.MULTIPLY, (Load(source, (at,)), Literal(factor, "f32")), "f32")
    end = minimum(task * per_task + per_task, extent)
    loop = Loop(lane.name, task * per_task, end, LoopKind.LANES, (Store(target, (lane,), doubled),))
    tasks = -(-extent // per_task) if isinstance(extent, int) else extent
    return Section(task.name, tasks, (loop,), scope), source, target


def kernel(*made: tuple[Section, Buffer, Buffer]) -> Kernel:
    sections, sources, targets = zip(*made, strict=True)
    scratch = tuple(one for one in targets if one.role is Role.SCRATCH)
    outputs = tuple(one for one in targets if one.role is Role.OUTPUT)
    names = {str(d) for one in sources for d in one.dims if not isinstance(d, int)}
    symbols = tuple("B" for _ in names)
    offsets = tuple(4096 * number for number in range(len(scratch)))
    phases = (Phase(sections),)
    return Kernel(
        "k", symbols, (*sources, *outputs, *scratch), phases, offsets, 4096 * len(scratch)
    )


def functions(text: str) -> list[str]:
    return re.findall(r"^ST_INLINE void (\w+)", text, re.MULTILINE)


def table(text: str) -> list[int]:
    [row] = re.findall(r"_table\[\d+\] = \{([-\d, ]+)\};", text)
    return [int(value) for value in row.split(", ")]


def test_sections_of_other_sizes_are_one_function() -> None:
    text = cuda.render([kernel(section(0, 250), section(1, 310), section(2, 1030))])
    assert functions(text) == ["k_0_0"]
    assert "int st_c0" in text and "st_c1" not in text
    # first task, tasks, places of in and out, extent
    assert table(text) == [0, 3, 0, 3, 250, 3, 4, 1, 4, 310, 7, 11, 2, 5, 1030]
    assert "st_task < 18; st_task += gridDim.x" in text


def test_tasks_of_warps_begin_at_a_block() -> None:
    made = [section(number, size, scope=Scope.WARP) for number, size in enumerate((250, 1030))]
    text = cuda.render([kernel(*made)])
    assert [table(text)[at] for at in (0, 1, 5, 6)] == [0, 3, 8, 11]
    assert "st_task < 24; st_task += gridDim.x * 8" in text


@pytest.mark.parametrize(
    "other",
    [
        section(1, 310, factor=3.0),  # another value
        section(1, 310, modulus=30),  # another divisor
        section(1, 310, scope=Scope.WARP),
        section(1, 310, out=Role.SCRATCH),
        section(1, "B"),  # tasks that no table knows
    ],
    ids=["value", "divisor", "scope", "role", "symbol"],
)
def test_what_is_not_alike(other: tuple[Section, Buffer, Buffer]) -> None:
    first = section(0, 250, modulus=20) if "%" in str(other[0]) else section(0, 250)
    text = cuda.render([kernel(first, other)])
    assert functions(text) == ["k_0_0", "k_0_1"]
    assert "_table" not in text


def test_symbols_keep_a_section_alone() -> None:
    text = cuda.render([kernel(section(0, "B"), section(1, "B"))])
    assert len(functions(text)) == 2


@pytest.mark.slow
def test_tables_of_any_size_compile() -> None:
    """Beyond what constant memory has room for they lie in the device's."""
    try:
        nvrtc.nvrtc_version()
    except Refused as refused:
        pytest.skip(f"{refused}: pip install nvidia-cuda-nvrtc-cu12")
    few, many = (
        cuda.render([kernel(*(section(n, 201 + n % 90) for n in range(count)))])
        for count in (10, 850)
    )
    assert "static __constant__ const int" in few and len(table(few)) == 50
    assert "static __device__ const int" in many and len(table(many)) > WORDS
    for text in (few, many):
        [resources] = nvrtc.compile_cuda(text).resources
        assert (resources.spill_bytes, resources.stack_bytes) == (0, 0)


def test_an_optimizers_updates_of_many_sizes_are_few_functions() -> None:
    """Tensors of many sizes cost a row of a table each: no more is compiled for more of them."""
    few, many = (cuda.render([updates(count)]) for count in (20, 80))
    assert few.count("ST_INLINE void") == many.count("ST_INLINE void") <= 2
    assert len(many) - len(few) < 60 * 100, "a row and two pointers, not a loop"


def updates(count: int) -> Kernel:
    """A momentum step of `count` vectors of 10 sizes."""
    given, made = [], []
    for number in range(count):
        dims = (64 + 16 * (number % 10),)
        value, slot, gradient = (modules.parameter(3 * number + i, dims) for i in range(3))
        rate = modules.broadcast(modules.scalar(0.9), dims, ())
        slot_after = modules.apply(op.ADD, modules.apply(op.MULTIPLY, slot, rate), gradient)
        given += [value, slot, gradient]
        made += [slot_after, modules.apply(op.SUBTRACT, value, slot_after)]
    module = modules.module_of(made, given)
    return schedule(modules.whole(module), module, DEVICES["sm_80"], "updates", verify=True)
