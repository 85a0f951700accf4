"""The digits of a row's number are what dividing it gives, from row to row."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stitchcore.codegen import c
from stitchcore.codegen.c_row_digits import counted
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import instruction
from stitchcore.hlo.ir.module import Module
from stitchcore.loop_ir import index
from stitchcore.loop_ir.index import Index, Variable
from stitchcore.loop_ir.nodes import Buffer, Load, Loop, LoopKind, Role, Scope, Store
from tests.schedule.agree import check
from tests.schedule.modules import apply, draw_inputs, module_of, parameter, whole

ROW = Variable("row")
steps = st.lists(st.tuples(st.sampled_from("/%"), st.sampled_from([2, 3, 4, 6, 12])), max_size=4)

Chain = list[tuple[str, int]]


def divided(chain: Chain) -> Index:
    node: Index = ROW
    for operator, by in chain:
        node = index.floor_divide(node, by) if operator == "/" else index.modulo(node, by)
    return node


def loop_over(indices: tuple[Index, ...], begin: Index, end: Index) -> Loop:
    """out[...] = in[...] at these indices."""
    shape = (1000,) * len(indices)
    source = Buffer("in0", "f32", shape, Scope.DEVICE, Role.INPUT)
    target = Buffer("out0", "f32", shape, Scope.DEVICE, Role.OUTPUT)
    return Loop(
        ROW.name, begin, end, LoopKind.SERIAL, (Store(target, indices, Load(source, indices)),)
    )


@given(st.lists(steps, min_size=1, max_size=4), st.integers(0, 50))
def test_digits_are_quotients_and_remainders(
    chains: list[list[tuple[str, int]]], begin: int
) -> None:
    """Counted as the C text counts them: one is added to the first, and carried."""
    loop = loop_over(tuple(map(divided, chains)), Variable("first"), Variable("last"))
    rows = counted(loop)
    if rows is None:
        return
    (store,) = rows.loop.body
    assert isinstance(store, Store)
    digits = {digit.variable: index.evaluate(digit.of(begin), {}) for digit in rows.digits}
    for row in range(begin, begin + 200):
        found = [index.evaluate(at, {**digits, ROW.name: row}) for at in store.indices]
        assert found == [index.evaluate(divided(chain), {ROW.name: row}) for chain in chains]
        for digit in rows.digits:
            digits[digit.variable] += 1
            if digits[digit.variable] != digit.radix:
                break
            digits[digit.variable] = 0


@pytest.mark.parametrize(
    ("indices", "begin", "end"),
    [
        ((ROW,), 0, 100),  # nothing is divided
        ((index.floor_divide(ROW + 1, 28),), 0, 100),  # another number's digits
        ((index.floor_divide(ROW, Variable("n")),), 0, 100),  # by what is not known
        ((index.floor_divide(ROW, 28),), 0, 12),  # a compiler writes these out
    ],
)
def test_what_has_no_digits_is_left(indices: tuple[Index, ...], begin: int, end: int) -> None:
    assert counted(loop_over(indices, begin, end)) is None


def flipped() -> Module:
    """Images from right to left: three short lanes a row, of a type that no shuffle turns."""
    x = parameter(0, (3, 20, 28, 3), "f16")
    turned = instruction(op.REVERSE, x.shape, (x,), dimensions=(2,))
    return module_of([apply(op.EXPONENTIAL, turned)], [x])


def test_rows_are_counted_in_c() -> None:
    """No row divides, and tasks begin in the midst of an image."""
    module = flipped()
    pattern = whole(module)
    kernel = check(pattern, module, draw_inputs(pattern, 0), compiled=True)
    text = c.render([kernel])
    (body,) = re.findall(r"omp simd(.*?)if \(\+\+row0_0", text, re.DOTALL)
    assert "/" not in re.sub(r"/\*.*?\*/", "", body) and "%" not in body
