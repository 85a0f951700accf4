"""Barriers: enough that nothing races, and none that could be left out (docs/decisions.md 30)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stitchcore.loop_ir import index
from stitchcore.loop_ir.index import Index, Variable
from stitchcore.loop_ir.interpreter import interpret
from stitchcore.loop_ir.nodes import (
    Allocate,
    Barrier,
    Buffer,
    Check,
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
from stitchcore.schedule import barriers as barrier
from tests.schedule.barriers import barriers, mutants, objects

SIZE = 12
TASKS = 3
OUT = Buffer("out", "f32", (TASKS * SIZE,), Scope.DEVICE, Role.OUTPUT)
ROWS = 3
LOCALS = tuple(
    Buffer(f"local{n}", "f32", dims, Scope.GROUP, Role.LOCAL)
    for n, dims in enumerate(((SIZE,), (SIZE,), (ROWS, SIZE)))
)


def _loop(number: int, kind: LoopKind, end: int, *body: Statement) -> Loop:
    return Loop(f"i{number}", 0, end, kind, body)


def _access(number: int, buffer: Buffer, writes: bool, mirrored: bool, row: Index) -> Loop:
    """A lane loop that touches all of `buffer`'s row, forwards or backwards."""
    lane: Index = Variable(f"i{number}")
    at = (lane * -1 + (SIZE - 1)) if mirrored else lane
    indices = (row, at) if len(buffer.dims) == 2 else (at,)
    statement: Statement = Let(Scalar(f"v{number}", "f32"), Load(buffer, indices))
    if writes:
        statement = Store(buffer, indices, Literal(1.0, "f32"))
    return _loop(number, LoopKind.LANES, SIZE, statement)


@st.composite
def kernels(draw: st.DrawFn) -> Kernel:
    """Each task: every LOCAL buffer is filled, then lane loops touch them, some in serial loops.
    Rows are never mirrored: lanes of two rows do not meet, which the derivation does not see."""
    numbers = iter(range(1000))
    body: list[Statement] = [Allocate(buffer) for buffer in LOCALS]
    for buffer in LOCALS:
        for row in range(ROWS if len(buffer.dims) == 2 else 1):
            body.append(_access(next(numbers), buffer, True, False, row))

    def accesses(row: Index) -> list[Statement]:
        count = draw(st.integers(1, 4))
        found: list[Statement] = []
        for _ in range(count):
            buffer = draw(st.sampled_from(LOCALS))
            writes, mirrored = draw(st.booleans()), draw(st.booleans()) and len(buffer.dims) == 1
            found.append(_access(next(numbers), buffer, writes, mirrored, row))
        return found

    for _ in range(draw(st.integers(1, 3))):
        if draw(st.booleans()):
            number = next(numbers)
            inner = accesses(Variable(f"i{number}"))
            body.append(_loop(number, LoopKind.SERIAL, ROWS, *inner))
        else:
            body += accesses(draw(st.integers(0, ROWS - 1)))
    last, tasks = next(numbers), draw(st.sampled_from((1, TASKS)))
    size = TASKS * SIZE // tasks
    at = Variable("task") * size + Variable(f"i{last}")
    body.append(_loop(last, LoopKind.LANES, size, Store(OUT, (at,), Literal(0.0, "f32"))))
    section = barrier.insert(Section("task", tasks, tuple(body)))
    return Kernel("k", (), (OUT,), (Phase((section,)),))


@pytest.mark.slow
@settings(max_examples=300)
@given(kernels())
def test_barriers_are_enough_and_each_is_needed(kernel: Kernel) -> None:
    for seed in range(4):
        interpret(kernel, [], {}, np.random.default_rng(seed))
    for what, mutant in mutants(kernel):
        assert objects(mutant, []), f"{what} can be left out"


def test_a_barrier_at_a_loops_begin_does_the_work_of_a_later_one() -> None:
    """What the loop's own end needs stands first, and keeps what precedes the loop apart too."""
    kept, turned, filled = (Buffer(n, "f32", (SIZE,), Scope.GROUP, Role.LOCAL) for n in "abc")
    row: Index = Variable("i9")
    body = (
        *map(Allocate, (kept, turned, filled)),
        _access(0, filled, True, False, row),
        _loop(
            *(9, LoopKind.SERIAL, ROWS),
            _access(1, turned, True, False, row),
            _access(2, filled, False, True, row),
            _access(3, kept, True, False, row),
            _access(4, kept, False, True, row),
            _access(5, turned, True, True, row),
        ),
    )
    made = barrier.insert(Section("task", 1, body))
    assert barriers(made.body) == 2
    (loop,) = (one for one in made.body if isinstance(one, Loop) and one.kind is LoopKind.SERIAL)
    assert [n for n, one in enumerate(loop.body) if isinstance(one, Barrier)] == [0, 4]


def test_stages_of_rows_that_one_lane_keeps_need_no_barrier() -> None:
    """Rows of a LOCAL buffer are written in one serial loop and read in another: one lane's."""
    kept = LOCALS[2]
    body = (
        Allocate(kept),
        _loop(0, LoopKind.SERIAL, ROWS, _access(1, kept, True, False, Variable("i0"))),
        _loop(2, LoopKind.SERIAL, ROWS, _access(3, kept, False, False, Variable("i2"))),
    )
    assert barriers(barrier.insert(Section("task", 1, body)).body) == 0


def test_lanes_shifted_by_a_serial_loop_need_barriers() -> None:
    """local[lane + row]: the same text, but in each row another lane's element."""
    kept = Buffer("kept", "f32", (SIZE + ROWS,), Scope.GROUP, Role.LOCAL)
    at = Variable("i1") + Variable("i0")
    store = _loop(1, LoopKind.LANES, SIZE, Store(kept, (at,), Literal(1.0, "f32")))
    body = (Allocate(kept), _loop(0, LoopKind.SERIAL, ROWS, store))
    made = barrier.insert(Section("task", 1, body))
    assert barriers(made.body) == 1


def test_uniform_stores_and_loads_are_kept_apart() -> None:
    """Outside lane loops one lane stores and every lane loads."""
    kept = Buffer("kept", "f32", (1,), Scope.GROUP, Role.LOCAL)
    body = (
        Allocate(kept),
        Store(kept, (0,), Literal(1.0, "f32")),
        Let(Scalar("v", "f32"), Load(kept, (0,))),
    )
    assert barriers(barrier.insert(Section("task", 1, body)).body) == 1


def test_tasks_of_a_group_are_kept_apart() -> None:
    """The next task fills what lanes of this one still read turned around: one barrier more."""
    kept = LOCALS[0]
    body = (
        Allocate(kept),
        _access(0, kept, True, False, 0),
        _access(1, kept, False, True, 0),
    )
    once, often = (barrier.insert(Section("task", tasks, body)) for tasks in (1, TASKS))
    assert (barriers(once.body), barriers(often.body)) == (1, 2)
    assert isinstance(often.body[1], Barrier)


def test_tasks_whose_lanes_keep_their_elements_need_no_barrier() -> None:
    """A block of lanes a task, the last one shorter: local[lane - where the block begins]."""
    kept, block = LOCALS[0], 5
    begin = Variable("task") * block
    end = index.minimum(begin + block, SIZE)

    def lanes(number: int, *body: Statement) -> Loop:
        return Loop(f"i{number}", begin, end, LoopKind.LANES, body)

    at = Variable("i0") + Variable("task") * -block
    store = Store(kept, (at,), Literal(1.0, "f32"))
    found = Let(Scalar("v", "f32"), Load(kept, (Variable("i1") + Variable("task") * -block,)))
    section = Section("task", 3, (Allocate(kept), lanes(0, store), lanes(1, found)))
    assert barriers(barrier.insert(section).body) == 0


@pytest.mark.parametrize("role", [Role.LOCAL, Role.SCRATCH])
@pytest.mark.parametrize("reader", ["let", "check", "reported", "if"])
def test_whatever_reads_an_element_is_waited_for(reader: str, role: Role) -> None:
    """What another lane left may be read by a condition as well as by a value."""
    scope = Scope.GROUP if role is Role.LOCAL else Scope.DEVICE
    kept = Buffer("kept", "s64" if reader == "reported" else "pred", (SIZE,), scope, role)
    lane = Variable("i1")
    read = Load(kept, (lane * -1 + (SIZE - 1),))
    true, zero = Literal(True, "pred"), Literal(0, "s64")
    reading: dict[str, Statement] = {
        "let": Let(Scalar("v", kept.dtype), read),
        "check": Check(read, 0, zero),
        "reported": Check(true, 0, read),
        "if": If(read, (Let(Scalar("v", "pred"), true),)),
    }
    filled = _loop(0, LoopKind.LANES, SIZE, Store(kept, (Variable("i0"),), Literal(1, kept.dtype)))
    local = [Allocate(kept)] if role is Role.LOCAL else []
    last = _loop(2, LoopKind.LANES, SIZE, Store(OUT, (Variable("i2"),), Literal(0.0, "f32")))
    body = (*local, filled, _loop(1, LoopKind.LANES, SIZE, reading[reader]), last)
    section = barrier.insert(Section("task", 1, body))
    assert barriers(section.body) == 1
