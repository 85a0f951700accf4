"""Legal kernels pass; each rule has a kernel that breaks it, named with its place."""

from __future__ import annotations

import pytest

from stitchcore.loop_ir.printer import parse_kernel, print_kernel
from stitchcore.loop_ir.verifier import IllegalKernel, check
from tests.loop_ir.sample import column_sum, looked_up, softmax, whole_sum


@pytest.mark.parametrize(
    "kernel", [softmax(), softmax(dtype="f16"), column_sum(), whole_sum(3), looked_up()]
)
def test_legal(kernel: object) -> None:
    check(kernel)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "after", "rule"),
    [
        ("lanes k in", "lanes j in", "'j' is defined twice"),
        ("kept[k] = power", "kept[q] = power", "index q is not defined"),
        ("kept[k] = power", "x[row, k] = power", "input x is written"),
        ("kept[k] = power", "kept[k, 0] = power", "2 indices for 1 dimensions"),
        ("accumulate total = add(power)", "accumulate total = maximum(power)", "not an accum"),
        ("let power: f32", "let power: f64", "f32 where f64"),
        ("subtract:f32", "subtract:bf16", "bf16 where f32"),
        ("exponential:f32", "reshape:f32", "not an elementwise opcode"),
        ("exponential:f32", "add:f32", "takes 2 operands, has 1"),
        ("local kept: f32[96]", "local kept: f32[task]", "static"),
        ("let power: f32", "let long: f32", "cannot name anything"),
        ("kept[k] = power", "combine total = add over group", "inside a lane loop"),
        ("kept[k] = power", "barrier group", "Barrier inside a lane loop"),
        ("kept[k] = power", "lanes z in 0 .. 3 {\n}", "inside a lane loop"),
        ("combine most = maximum over group", "combine most = maximum over device", "over device"),
        ("accumulator most: f32 = maximum", "accumulator most: f32 = subtract", "does not reduce"),
        ("section task", "section warp task", "it is a group's"),
        ("combine most = maximum over group", "combine most = maximum over warp", "over warp"),
        ("input x: f32[32, 96]", "input x: c64[32, 96]", "unknown type"),
        ("origin", "forward 0 -> 1\n  origin", "names no such buffer"),
    ],
)
def test_illegal(before: str, after: str, rule: str) -> None:
    text = print_kernel(softmax())
    assert before in text
    changed = text.replace(before, after, 1)
    for name in ("power", "j"):
        if "let long" in after:
            changed = changed.replace(f"= {name}", "= long").replace(f"({name})", "(long)")
    with pytest.raises(IllegalKernel, match=rule) as failure:
        check(parse_kernel(changed))
    assert str(failure.value).startswith("softmax")


@pytest.mark.parametrize(
    ("before", "after", "rule"),
    [
        ("position place", "position i", "'i' is defined twice"),
        ("position place", "position double", "cannot name anything"),
        ("upto 6", "upto n", "index n is not defined"),
        ("let given: s32 = at[i]", "let given: f32 = x[i]", "position place from f32"),
        ("position place = given upto 6\n", "\n", "index place is not defined"),
        ("let given: s32 = at[i]\n", "let given: s32 = at[place]\n", "index place is not defined"),
    ],
)
def test_illegal_positions(before: str, after: str, rule: str) -> None:
    text = print_kernel(looked_up())
    assert before in text
    with pytest.raises(IllegalKernel, match=rule):
        check(parse_kernel(text.replace(before, after, 1)))


def test_a_position_ends_with_its_body() -> None:
    loop = "y[i] = x[place]\n      }\n"
    text = print_kernel(looked_up())
    assert loop in text
    with pytest.raises(IllegalKernel, match="index place is not defined"):
        check(parse_kernel(text.replace(loop, loop + "y[place] = 0.0:f32\n")))


def test_sections_of_a_phase_do_not_read_what_another_writes() -> None:
    text = print_kernel(column_sum()).replace("  }\n  phase {\n", "", 1)
    with pytest.raises(IllegalKernel, match="partial is written by section"):
        check(parse_kernel(text))
