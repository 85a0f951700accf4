"""No lane divides by a size that is known only at run time."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from stitchcore.codegen import c
from stitchcore.codegen.c_lane_quotients import quotients
from stitchcore.hlo.ir import builder
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.dim import symbol
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.loop_ir import index
from stitchcore.loop_ir.index import Variable
from stitchcore.loop_ir.nodes import Loop, LoopKind
from stitchcore.schedule.pipeline import schedule
from tests.schedule.agree import DEVICE, check
from tests.schedule.modules import (
    apply,
    broadcast,
    draw_inputs,
    module_of,
    parameter,
    reduce,
    whole,
)

B, T = symbol("B"), symbol("T")
DIMS = (B, 4, T, T)


def softmax(values: Instruction) -> Instruction:
    """Along the last of four dimensions."""
    most = broadcast(reduce(values, (3,), op.MAXIMUM), DIMS, (0, 1, 2))
    powers = apply(op.EXPONENTIAL, apply(op.SUBTRACT, values, most))
    return apply(op.DIVIDE, powers, broadcast(reduce(powers, (3,)), DIMS, (0, 1, 2)))


def causal(scores: Instruction, _: Instruction) -> Instruction:
    """Attention that sees what came before: a mask by the places themselves."""
    rows, columns = (builder.iota("s32", (T, T), axis) for axis in (0, 1))
    seen = builder.elementwise(op.COMPARE, rows, columns, direction="GE")
    hidden = builder.splat(-1e4, scores)
    return softmax(apply(op.SELECT, broadcast(seen, DIMS, (2, 3)), scores, hidden))


def padded(scores: Instruction, words: Instruction) -> Instruction:
    """Attention with a number for each word of each row of the batch."""
    return softmax(apply(op.ADD, scores, broadcast(words, DIMS, (0, 3))))


def lane_loops(text: str) -> list[str]:
    """The bodies of lane loops, which have no loops in them here."""
    return re.findall(r"#pragma omp simd[^\n]*\n([^}]*)}", text)


@pytest.mark.parametrize("attention", [causal, padded])
def test_attention_over_words_of_unknown_number(
    attention: Callable[[Instruction, Instruction], Instruction],
) -> None:
    scores, words = parameter(0, DIMS), parameter(1, (B, T))
    made = attention(scores, words)
    used = [scores, words] if attention is padded else [scores]
    module = module_of([made], used, ("B", "T"))
    pattern = whole(module)
    for batch, length in ((3, 1), (2, 17), (1, 70)):
        bindings = {"B": batch, "T": length}
        kernel = check(pattern, module, draw_inputs(pattern, 0, bindings), bindings, compiled=True)
    loops = lane_loops(c.render([kernel]))
    assert len(loops) >= 3
    for body in loops:
        assert not re.search(r" [/%] (T|B|\()", body), body


def test_a_division_by_nothing_is_not_made_before_a_loop_that_does_not_run() -> None:
    scores, words = parameter(0, DIMS), parameter(1, (B, T))
    module = module_of([padded(scores, words)], [scores, words], ("B", "T"))
    kernel = schedule(whole(module), module, DEVICE, "kernel")
    text = c.render([kernel])
    named = re.findall(r"const long lane\d+_quotient\d+ = (.*);", text)
    assert named and all(re.fullmatch(r"\((.*)\) \? row\d [/%] \(\1\) : 0", one) for one in named)


def test_inner_divisions_are_named_before_outer_ones() -> None:
    row, lane, size, other = map(Variable, ("row", "lane", "T", "B"))
    inner = index.floor_divide(row, size)
    outer = index.modulo(inner, other)
    of_a_lane = index.floor_divide(lane, size)
    loop = Loop("lane", 0, size, LoopKind.LANES, ())
    named = quotients(loop, [index.add(outer, of_a_lane), index.floor_divide(row, 4), inner])
    assert list(named) == [inner, outer]
