"""Derived barriers in CUDA text: enough for race-free runs, and each of them needed.

tests/schedule/test_barriers.py says the same of the interpreter; here shared memory lies where the
renderer puts it, and blocks run several tasks and sections one after another.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from stitchcore.loop_ir import nodes
from stitchcore.loop_ir.index import Variable
from stitchcore.loop_ir.nodes import (
    Allocate,
    Buffer,
    Kernel,
    Let,
    Literal,
    Load,
    Loop,
    LoopKind,
    Role,
    Scalar,
    Scope,
    Section,
    Store,
)
from stitchcore.schedule import barriers
from tests.emulator import kernels, mutants
from tests.emulator.findings import Kind
from tests.emulator.launch import Order, Schedule
from tests.emulator.program import compile_text
from tests.schedule import test_barriers

SCHEDULES = (Schedule(), Schedule(Order.REVERSE), Schedule(Order.RANDOM, 1, preempt=True))
SIZE = 40


def unnoticed(kernel: Kernel) -> list[str]:
    """Barriers that can be left out with nothing found, on one block or on three."""
    text = kernels.with_every_load([kernel])
    found = []
    for mutant in mutants.mutants(text):
        if mutant.helper:
            continue
        program = compile_text(mutant.text)
        made = (kernels.run(kernel, program, [], {}, blocks=b) for b in (1, 3))
        if not any(one.findings for one in made):
            found.append(f"{mutant.what}\n{text}")
    return found


def check(kernel: Kernel) -> None:
    program = compile_text(kernels.with_every_load([kernel]))
    for schedule in SCHEDULES:
        for blocks in (1, 2):
            made = kernels.run(kernel, program, [], {}, schedule, blocks=blocks)
            assert not made.findings, list(map(str, made.findings))
    assert not unnoticed(kernel)


@pytest.mark.slow
@settings(
    max_examples=25,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(test_barriers.kernels())
def test_barriers_are_enough_and_each_is_needed(kernel: Kernel) -> None:
    check(kernel)


def turned(number: int, tasks: int) -> tuple[Section, Buffer]:
    """Lanes fill a LOCAL buffer, and read it turned around into an output of their own."""
    local = Buffer(f"local{number}", "f32", (SIZE,), Scope.GROUP, Role.LOCAL)
    out = Buffer(f"out{number}", "f32", (tasks, SIZE), Scope.DEVICE, Role.OUTPUT)
    task = Variable(f"task{number}")
    first, second = Variable(f"i{number}"), Variable(f"j{number}")
    read = Scalar(f"v{number}", "f32")
    body = (
        Allocate(local),
        Loop(first.name, 0, SIZE, LoopKind.LANES, (Store(local, (first,), Literal(2.0, "f32")),)),
        Loop(
            second.name,
            0,
            SIZE,
            LoopKind.LANES,
            (
                Let(read, Load(local, (second * -1 + (SIZE - 1),))),
                Store(out, (task, second), read),
            ),
        ),
    )
    return barriers.insert(Section(task.name, tasks, body)), out


@pytest.mark.parametrize("tasks", [(1,), (4,), (1, 1), (3, 2, 4), (1, 4, 1)])
def test_sections_and_tasks_that_share_memory_are_kept_apart(tasks: tuple[int, ...]) -> None:
    made = [turned(number, count) for number, count in enumerate(tasks)]
    sections, outputs = zip(*made, strict=True)
    kernel = Kernel("turned", (), outputs, (nodes.Phase(sections),))
    text = kernels.rendered([kernel])
    within = sum(1 + several for several in {count > 1 for count in tasks})  # one text of each
    between = int(1 in tasks[1:])  # in the loop over their table; else the section's own does
    assert text.count("__syncthreads();") == within + between
    check(kernel)


def test_a_barrier_too_few_is_a_race() -> None:
    section, output = turned(0, 4)
    less = tuple(s for s in section.body if not isinstance(s, nodes.Barrier))
    kernel = Kernel("turned", (), (output,), (nodes.Phase((Section("task0", 4, less),)),))
    (program,) = kernels.programs([kernel])
    made = kernels.run(kernel, program, [], {})
    assert Kind.RACE in {one.kind for one in made.findings}
