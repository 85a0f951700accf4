"""Lane loops are cut where a concatenation changes; what all lanes choose alike is chosen once."""

from __future__ import annotations

import re

import numpy as np
import pytest

from stitchcore.codegen import c, cuda
from stitchcore.codegen.c_stretches import FEW, MOST, alternatives, stretches
from stitchcore.device.records import DEVICES
from stitchcore.hlo.ir import builder
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction, instruction
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.ir.shape import Shape
from stitchcore.loop_ir.nodes import Apply, Kernel, Load, Loop, LoopKind
from stitchcore.loop_ir.visitor import expressions, loads, statements
from stitchcore.schedule.pipeline import schedule
from stitchcore.toolchain.c_compiler import compile_c
from tests.schedule.agree import DEVICE, check
from tests.schedule.modules import apply, draw_inputs, module_of, parameter, scalar, whole
from tests.tiers import slow_but

ROWS, WIDTH = 7, 5


def concatenated(count: int) -> Module:
    """tanh of `count` arrays side by side."""
    parts = [parameter(n, (ROWS, WIDTH)) for n in range(count)]
    wide = Shape("f32", (ROWS, count * WIDTH))
    joined = instruction(op.CONCATENATE, wide, tuple(parts), dimensions=(1,))
    return module_of([apply(op.TANH, joined)], parts)


def lanes(kernel: Kernel) -> list[Loop]:
    bodies = [s for phase in kernel.phases for section in phase.sections for s in section.body]
    return [s for s in statements(bodies) if isinstance(s, Loop) and s.kind is LoopKind.LANES]


@pytest.mark.parametrize("count", slow_but(2, of=[2, 26, 70]))
def test_each_operand_has_a_stretch_without_a_choice(count: int) -> None:
    module = concatenated(count)
    pattern = whole(module)
    kernel = check(pattern, module, draw_inputs(pattern, 0), compiled=True)
    (loop,) = lanes(kernel)
    parts = stretches(loop, {})
    assert [(part.begin, part.end) for part in parts] == [
        (WIDTH * n, WIDTH * (n + 1)) for n in range(count)
    ]
    for part in parts:
        opcodes = {node.opcode for node in expressions(part.body) if isinstance(node, Apply)}
        assert len(list(loads(part.body))) == 1 and opcodes == {op.TANH}


@pytest.mark.parametrize("module", slow_but("side by side", of=["side by side", "in turn"]))
@pytest.mark.parametrize("target", ["cpu-x86-64-v3", "sm_90"])
def test_any_number_of_operands_is_rendered(module: str, target: str) -> None:
    """More than a nested expression of could be walked through."""
    made = (concatenated if module == "side by side" else stacked)(1000)
    kernel = schedule(whole(made), made, DEVICES[target], "kernel", verify=True)
    assert (c if target.startswith("cpu") else cuda).render([kernel])


def test_lanes_choose_where_there_would_be_too_many_stretches() -> None:
    (loop,) = lanes(schedule_of(concatenated(MOST + 1)))
    assert stretches(loop, {}) == [loop]


def schedule_of(module: Module) -> Kernel:
    return schedule(whole(module), module, DEVICE, "kernel", verify=True)


def stacked(count: int) -> Module:
    """tanh of `count` arrays, row by row in turn."""
    parts = [parameter(n, (ROWS, 1, WIDTH)) for n in range(count)]
    joined = instruction(
        op.CONCATENATE, Shape("f32", (ROWS, count, WIDTH)), tuple(parts), dimensions=(1,)
    )
    return module_of([apply(op.TANH, joined)], parts)


@pytest.mark.parametrize("count", slow_but(2, 3, 4, of=[2, 3, 4, 26, 60]))
def test_a_row_of_many_operands_has_a_loop_for_each(count: int) -> None:
    """Few are chosen from lane by lane, without a branch."""
    module = stacked(count)
    pattern = whole(module)
    kernel = check(pattern, module, draw_inputs(pattern, 0), compiled=True)
    (loop,) = lanes(kernel)
    cases = alternatives(loop)
    assert len(cases) == (count if count > FEW else 0)
    assert all(len(list(loads(case.body))) == 1 for _, case in cases)
    assert [condition for condition, _ in cases].count(None) == bool(cases)
    text = c.render([kernel])
    assert text.count("/* lanes") == max(len(cases), 1)
    assert not compile_c(text, DEVICE).scalar_loops


# ---- choices that all lanes make alike -----------------------------------------------------------
def padded_rows() -> list[Instruction]:
    """Rows before, between and after those of an array."""
    x = parameter(0, (6, 40))
    return [x, apply(op.EXPONENTIAL, builder.pad(x, scalar(-1.0), [(2, 1, 1), (0, 0, 0)]))]


def test_a_choice_by_rows_is_made_once_a_row_and_leaves_the_lanes_vectors() -> None:
    x, out = padded_rows()
    module = module_of([out], [x])
    pattern = whole(module)
    kernel = check(pattern, module, draw_inputs(pattern, 0), compiled=True)
    (loop,) = lanes(kernel)
    tests = [node for node in expressions(loop.body) if type(node).__name__ == "InRange"]
    assert not tests and len([n for n in expressions(loop.body) if isinstance(n, Load)]) == 1
    text = c.render([kernel])
    assert re.search(r"const int64_t (\w+)_mask = .*\n.*omp simd", text)
    assert "st_choose_f32" in text
    assert not compile_c(text, DEVICE).scalar_loops


@pytest.mark.parametrize("dtype", ["f32", "f64", "s32", "s64", "u32", "u64", "f16", "s8", "pred"])
def test_a_choice_is_right_in_every_type(dtype: str) -> None:
    x = parameter(0, (6, 40), dtype)
    out = builder.pad(
        x, builder.constant(True if dtype == "pred" else 1, dtype), [(2, 1, 1), (0, 0, 0)]
    )
    module = module_of([apply(op.COPY, out)], [x])
    pattern = whole(module)
    drawn = np.random.default_rng(0).integers(0, 2, (6, 40)).astype(bool)
    given = drawn if dtype == "pred" else drawn.astype(draw_inputs(pattern, 0)[0].dtype)
    check(pattern, module, [given], compiled=True)
