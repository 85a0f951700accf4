"""What counts as reached, how often loops run, and that the page of opcodes is current."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import reach
from stitchcore.device.records import DEVICES
from stitchcore.fusion.cost import cost
from stitchcore.fusion.planners import PLANNERS
from stitchcore.hlo.ir import builder
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction, computation, instruction
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.ir.shape import Shape
from stitchcore.schedule.pipeline import feasible
from tools import opcodes as page

DEVICE = DEVICES["cpu-x86-64-v3"]
SIZE = (256, 64)
BYTES = 256 * 64 * 4


def measured(parameters: list[Instruction], *outputs: Instruction) -> reach.Reach:
    module = Module("m", computation(parameters, builder.tuple_(outputs)))
    return reach.measured(PLANNERS["exhaustive"](module, DEVICE, cost, feasible))


def test_two_instructions_reach_each_other() -> None:
    x = builder.parameter(0, "f32", SIZE)
    coverage = measured([x], builder.elementwise(op.TANH, builder.elementwise(op.NEGATE, x)))
    assert coverage.everything == coverage.reached == {op.NEGATE: 2 * BYTES, op.TANH: 2 * BYTES}
    assert coverage.share() == 1.0 and not coverage.left


def test_one_alone_is_not_reached_whatever_it_reads_through() -> None:
    """A bias' broadcast is only read through, and a reshape leaves the bytes where they are."""
    x, bias = builder.parameter(0, "f32", SIZE), builder.parameter(1, "f32", (64,))
    added = builder.elementwise(op.ADD, x, builder.broadcast(bias, SIZE, (1,)))
    coverage = measured([x, bias], builder.reshape(added, (512, 32)))
    assert coverage.everything == {op.ADD: 2 * BYTES + 64 * 4}
    assert coverage.left == {(op.ADD, reach.ALONE): 2 * BYTES + 64 * 4}
    assert coverage.share() == 0.0


def test_a_transposed_store_moves_bytes() -> None:
    x = builder.parameter(0, "f32", SIZE)
    coverage = measured([x], builder.transpose(builder.elementwise(op.NEGATE, x), (1, 0)))
    assert coverage.share() == 1.0


def test_library_calls_stand_apart_and_refusals_in_the_denominator() -> None:
    x = builder.parameter(0, "f32", (64, 64))
    dims = {"lhs_contracting_dims": (1,), "rhs_contracting_dims": (0,)}
    product = instruction(op.DOT, x.shape, (x, x), **dims)
    size = builder.parameter(1, "s32", ())
    cut = instruction(op.SET_DIMENSION_SIZE, x.shape, (product, size), dimensions=(0,))
    coverage = measured([x, size], cut)
    assert coverage.everything == {op.SET_DIMENSION_SIZE: 2 * 64 * 64 * 4 + 4}
    assert list(coverage.left) == [(op.SET_DIMENSION_SIZE, "unsupported_opcode")]


def loop(limit: int, step: int, carried: bool) -> Instruction:
    """for i = 0; i < limit; i = i + step: x = tanh(-x), the limit a constant or carried along."""
    number, x = builder.parameter(0, "s32"), builder.parameter(1, "f32", SIZE)
    shape = Shape("tuple", (), (number.shape, x.shape, number.shape))
    state = instruction(op.PARAMETER, shape, number=0)
    i, value, most = (builder.get_tuple_element(state, n) for n in range(3))
    until = most if carried else builder.constant(limit, "s32")
    after = builder.elementwise(op.ADD, i, builder.constant(step, "s32"))
    passed = builder.elementwise(op.TANH, builder.elementwise(op.NEGATE, value))
    start = builder.tuple_([builder.constant(0, "s32"), x, builder.constant(limit, "s32")])
    return instruction(
        op.WHILE,
        shape,
        (start,),
        condition=computation([state], builder.elementwise(op.COMPARE, i, until, direction="LT")),
        body=computation([state], builder.tuple_([after, passed, most])),
    )


@pytest.mark.parametrize(("limit", "step", "times"), [(7, 1, 7), (7, 2, 4), (0, 1, 0)])
@pytest.mark.parametrize("carried", [False, True])
def test_a_loop_counts_as_often_as_it_runs(
    limit: int, step: int, times: int, carried: bool
) -> None:
    looped = loop(limit, step, carried)
    assert reach.trips(looped) == times
    number, x = builder.parameter(0, "s32"), looped.operands[0].operands[1]
    coverage = measured([number, x], builder.get_tuple_element(looped, 1))
    assert coverage.everything[op.TANH] == coverage.reached[op.TANH] == times * 2 * BYTES


def test_a_loop_of_unknown_length_counts_once() -> None:
    looped = loop(7, 1, False)
    start = list(looped.operands[0].operands)
    start[0] = builder.parameter(0, "s32")
    unknown = instruction(
        op.WHILE, looped.shape, (builder.tuple_(start),), **dict(looped.attributes)
    )
    assert reach.trips(unknown) == 1


def test_the_page_of_opcodes_is_current() -> None:
    assert page.main(["--check"]) == 0, "run python -m tools.opcodes"


def test_the_page_says_what_becomes_of_an_opcode() -> None:
    fates = {name: page.fate(op.record(name)) for name in op.OPCODES}
    assert fates[op.GATHER] == fates[op.ADD] == fates[op.REDUCE] == "yes"
    assert fates[op.DOT] == "where `small_dot` applies, else library_call"
    assert fates[op.BATCH_NORM_GRAD] == "as other opcodes"
    assert fates[op.WHILE] == "no: control_flow"
    assert fates[op.SORT] == "no: unsupported_opcode"
    assert set(fates.values()) >= {"needs no work"}
    text = Path(page.PAGE).read_text(encoding="utf-8")
    assert all(f"| {name} | {op.record(name).kind} | {fates[name]} |" in text for name in fates)
