"""Scratch buffers share memory while their lifetimes do not meet."""

from __future__ import annotations

import numpy as np
import pytest

from stitchcore.hlo.ir import opcodes as op
from stitchcore.loop_ir.index import Variable
from stitchcore.loop_ir.interpreter import interpret
from stitchcore.loop_ir.nodes import (
    Apply,
    Buffer,
    Check,
    Expression,
    If,
    Kernel,
    Let,
    Literal,
    Load,
    Loop,
    LoopKind,
    Phase,
    Role,
    Scalar,
    Scope,
    Section,
    Statement,
    Store,
)
from stitchcore.schedule.buffers import place

SIZE = 12
FIRST, SECOND = (Buffer(n, "s64", (SIZE,), Scope.DEVICE, Role.SCRATCH) for n in ("one", "two"))
OUT = Buffer("out", "s64", (SIZE,), Scope.DEVICE, Role.OUTPUT)


def _phase(number: int, *body: Statement) -> Phase:
    loop = Loop(f"i{number}", 0, SIZE, LoopKind.LANES, body)
    return Phase((Section(f"task{number}", 1, (loop,)),))


def _kernel(reading: Statement) -> Kernel:
    """FIRST is filled, then SECOND, then `reading` looks at FIRST, and SECOND is the output."""
    phases = (
        _phase(0, Store(FIRST, (Variable("i0"),), Literal(1, "s64"))),
        _phase(1, Store(SECOND, (Variable("i1"),), Literal(2, "s64"))),
        _phase(2, reading, Store(OUT, (Variable("i2"),), Load(SECOND, (Variable("i2"),)))),
    )
    buffers = (OUT, FIRST, SECOND)
    offsets, size = place(buffers, phases)
    return Kernel("k", (), buffers, phases, offsets, size, errors=("not one",))


READ = Load(FIRST, (Variable("i2"),))


def _is_one(value: Expression) -> Expression:
    pair = (value, Literal(1, "s64"))
    return Apply(op.COMPARE, pair, "pred", (("direction", "EQ"),))


READERS: dict[str, Statement] = {
    "let": Let(Scalar("v", "s64"), READ),
    "check": Check(_is_one(READ), 0, Literal(0, "s64")),
    "reported": Check(Literal(True, "pred"), 0, READ),
    "if": If(_is_one(READ), (Let(Scalar("v", "s64"), Literal(0, "s64")),)),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_buffer_lives_until_its_last_reader(reader: str) -> None:
    kernel = _kernel(READERS[reader])
    first, second = kernel.scratch_offsets
    assert first != second
    (out,) = interpret(kernel, [], {}, np.random.default_rng(0))
    assert (out == 2).all()


def test_buffers_that_are_never_alive_together_share_memory() -> None:
    kernel = _kernel(Let(Scalar("v", "s64"), Literal(0, "s64")))
    assert kernel.scratch_offsets == (0, 0)
