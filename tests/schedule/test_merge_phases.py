"""Phases become one where every task reads only what it wrote itself, and only there."""

from __future__ import annotations

import numpy as np
import pytest

from stitchcore.device.records import DEVICES
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction, instruction
from stitchcore.hlo.ir.shape import Shape
from stitchcore.hlo.transforms.expand import expand
from stitchcore.loop_ir.nodes import Barrier, Kernel, Scope
from stitchcore.loop_ir.printer import parse_kernel, print_kernel
from stitchcore.loop_ir.visitor import statements
from stitchcore.schedule import merge_phases
from tests.schedule import barriers
from tests.schedule.agree import check
from tests.schedule.modules import (
    apply,
    broadcast,
    draw_inputs,
    module_of,
    parameter,
    reduce,
    scalar,
    whole,
)
from tests.schedule.test_contractions import dot
from tests.schedule.twins import toy

ROOM = 1 << 20


def scheduled(*outputs: Instruction, parameters: list[Instruction], **limits: int) -> Kernel:
    """A kernel of these outputs, compared with numpy in the interpreter and as C."""
    module = module_of(list(outputs), parameters)
    pattern = whole(module)
    with toy(limits):
        return check(pattern, module, draw_inputs(pattern, 0), compiled=True)


def centred(value: Instruction) -> tuple[Instruction, Instruction]:
    """Sums over the first two axes of a value, and of the squares of its distance from them."""
    shape = value.shape.static
    total = reduce(value, (0, 1))
    distance = apply(op.SUBTRACT, value, broadcast(total, shape, (2,)))
    return total, reduce(apply(op.MULTIPLY, distance, distance), (0, 1))


def test_columns_reduced_twice_are_one_phase_where_a_task_has_whole_columns() -> None:
    value = parameter(0, (5, 4, 40))
    kernel = scheduled(*centred(value), parameters=[value])
    assert [len(phase.sections) for phase in kernel.phases] == [1]


@pytest.mark.slow
def test_parts_of_columns_need_the_boundary() -> None:
    value = parameter(0, (40, 40, 24))
    kernel = scheduled(*centred(value), parameters=[value], task_elements=64, enough_tasks=40)
    assert len(kernel.phases) == 4
    for what, mutant in barriers.mutants(kernel):
        assert barriers.objects(mutant, [np.ones((1600, 24), np.float32)]), what


def test_a_scalar_and_what_follows_from_it_are_one_task() -> None:
    value = parameter(0, (24,))
    total = reduce(value, (0,))
    kernel = scheduled(apply(op.TANH, total), parameters=[value])
    assert len(kernel.phases) == 1


TASKS = """
kernel k(n) {{
  input in0: f32[12, 8]
  output out0: f32[12, 8]
  scratch scratch0: f32[12, 8] at 0
  scratch_bytes 384
  phase {{
    section {scope}task0 < {first} {{
      {before}
    }}
  }}
  phase {{
    section task1 < {second} {{
      {after}
    }}
  }}
}}
"""


def rows(task: str, count: str, at: str, store: str, load: str) -> str:
    return f"""serial row{task} in {task} * {count} .. min({task} * {count} + {count}, 12) {{
        lanes lane{task} in 0 .. 8 {{
          {store}[row{task}, lane{task}] = {load}{at}
        }}
      }}"""


def kernel_of(
    first: str = "3", second: str = "3", scope: str = "", read: str = "[rowtask1, lanetask1]"
) -> Kernel:
    before = rows("task0", "4", "[rowtask0, lanetask0]", "scratch0", "in0")
    after = rows("task1", "4", read, "out0", "scratch0")
    text = TASKS.format(first=first, second=second, scope=scope, before=before, after=after)
    return parse_kernel(text)


def test_the_same_rows_of_the_same_task_go_on() -> None:
    kernel = kernel_of()
    (phase,) = merge_phases.merge(kernel.phases, ROOM)
    (section,) = phase.sections
    joined = Kernel(**{**vars(kernel), "phases": (phase,)})
    assert "task1" not in print_kernel(joined).replace("rowtask1", "").replace("lanetask1", "")
    assert section.variable == "task0"


@pytest.mark.parametrize(
    "other",
    [
        {"second": "4"},  # other tasks
        {"scope": "warp "},  # other lanes
        {"read": "[11 + rowtask1 * -1, lanetask1]"},  # rows of another task
        {"read": "[lanetask1, lanetask1]"},  # whatever rows
        {"first": "n", "second": "3"},  # as many as a symbol says
    ],
)
def test_what_other_tasks_wrote_needs_the_boundary(other: dict[str, str]) -> None:
    kernel = kernel_of(**other)
    assert merge_phases.merge(kernel.phases, ROOM) == kernel.phases


def pair(tasks: int, before: str, after: str, local: str = "") -> Kernel:
    """Two sections of 8 lanes over a scratch buffer; `local` stands at the beginning of both."""
    return parse_kernel(f"""
kernel k() {{
  input in0: f32[12, 8]
  output out0: f32[12, 8]
  scratch scratch0: f32[12, 8] at 0
  scratch_bytes 384
  phase {{
    section task0 < {tasks} {{
      {local.format(0)}
      {before}
    }}
  }}
  phase {{
    section task1 < {tasks} {{
      {local.format(1)}
      {after}
    }}
  }}
}}
""")


def lanes(task: int, store: str, load: str) -> str:
    return f"lanes lane{task} in 0 .. 8 {{\n {store}, lane{task}] = {load}, lane{task}]\n }}"


def test_a_row_of_the_next_task_is_not_ones_own() -> None:
    read = "serial row in task1 * 4 .. task1 * 4 + 5 {\n" + lanes(1, "out0[row", "scratch0[row")
    write = "serial row0 in task0 * 4 .. task0 * 4 + 4 {\n"
    write += lanes(0, "scratch0[row0", "in0[row0") + "\n}"
    kernel = pair(2, write, read + "\n}")
    assert len(merge_phases.merge(kernel.phases, ROOM)) == 2


def test_the_row_before_ones_own_is_not_ones_own() -> None:
    write = lanes(0, "scratch0[task0", "in0[task0")
    kernel = pair(12, write, lanes(1, "out0[task1", "scratch0[task1 + -1"))
    assert len(merge_phases.merge(kernel.phases, ROOM)) == 2


@pytest.mark.parametrize(
    ("at", "phases"),
    [("task{0} // 3", 2), ("task{0} // 3 * 3 + task{0} % 3", 1), ("task{0} % 3", 2)],
)
def test_tasks_are_told_apart_by_all_that_they_own(at: str, phases: int) -> None:
    write = lanes(0, f"scratch0[{at.format(0)}", "in0[task0")
    kernel = pair(6, write, lanes(1, "out0[task1", f"scratch0[{at.format(1)}"))
    assert len(merge_phases.merge(kernel.phases, ROOM)) == phases


@pytest.mark.parametrize(("room", "phases"), [(127, 2), (128, 1)])
def test_local_memory_of_all_parts_must_fit(room: int, phases: int) -> None:
    write, read = lanes(0, "scratch0[task0", "in0[task0"), lanes(1, "out0[task1", "scratch0[task1")
    kernel = pair(12, write, read, "local local{0}: f32[8]")
    assert len(merge_phases.merge(kernel.phases, room)) == phases


def test_as_many_tasks_as_a_symbol_says_go_on_alike() -> None:
    kernel = kernel_of(first="n", second="n")
    assert len(merge_phases.merge(kernel.phases, ROOM)) == 1


def test_turned_lanes_within_a_task_need_a_barrier_of_the_group() -> None:
    """One row a task, written along its lanes and read the other way round."""
    value = parameter(0, (1, 40))
    total = reduce(value, (0,))
    wide = broadcast(apply(op.EXPONENTIAL, total), (1, 40), (1,))
    turned = instruction(op.REVERSE, Shape("f32", (1, 40)), (wide,), dimensions=(1,))
    kernel = scheduled(
        apply(op.ADD, turned, broadcast(scalar(1.0), (1, 40), ())), parameters=[value]
    )
    found = [
        s
        for phase in kernel.phases
        for section in phase.sections
        for s in statements(section.body)
        if isinstance(s, Barrier)
    ]
    assert all(barrier.scope is Scope.GROUP for barrier in found)
    for what, mutant in barriers.mutants(kernel):
        assert barriers.objects(mutant, [np.ones(40, np.float32)]), what


def test_several_readers_of_a_row_go_on_in_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of unlike widths, so they are sections of their own in one phase; each as early as can be."""
    x, w = parameter(0, (16, 24)), parameter(1, (24, 96))
    gates = dot(x, w)
    parts = [
        instruction(op.SLICE, Shape("f32", (16, end - begin)), (gates,),
                    slice=((0, 16, 1), (begin, end, 1)))
        for begin, end in ((0, 32), (32, 96))
    ]  # fmt: skip
    module = module_of([apply(op.TANH, part) for part in parts], [x, w])
    expanded = expand(module, dot_pays=lambda _: True).module
    pattern = whole(expanded)
    for merge in (merge_phases.merge, lambda *given: tuple(merge_phases.earliest(*given))):
        monkeypatch.setattr(merge_phases, "merge", merge)
        kernel = check(pattern, expanded, draw_inputs(pattern, 0), device=DEVICES["sm_80"])
        assert [len(phase.sections) for phase in kernel.phases] == [1]
