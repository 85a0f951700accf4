"""Mutants of kernels themselves: a scatter's owners, order and limits, a scan's start and ends.

A kernel's text is edited as a slip in the scheduler would write it, compiled, and judged as any
kernel is on data drawn for it; what values cannot show, the race detector must (docs/decisions.md
24, 30).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

from stitchcore.codegen import c
from stitchcore.fusion.pattern import Pattern
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.module import Module
from stitchcore.loop_ir.interpreter import Race, interpret
from stitchcore.loop_ir.nodes import Kernel
from stitchcore.loop_ir.printer import parse_kernel, print_kernel
from stitchcore.loop_ir.verifier import check
from stitchcore.runtime.cpu_kernel import CpuKernel, load_library
from stitchcore.runtime.module import run_kernel
from stitchcore.schedule.pipeline import schedule
from stitchcore.toolchain.c_compiler import compile_c
from stitchcore.verify.kernel import check_kernel
from tests.schedule.agree import DEVICE
from tests.schedule.modules import apply, draw_inputs, module_of, parameter, whole
from tests.schedule.test_scans import scanned
from tests.schedule.test_scatters import rows

ROWS, COUNT, WIDTH = 40, 300, 64
Edit = tuple[str, str]
NONE = "no slip"


@cache
def scatters() -> Module:
    """Rows added to computed ones, then rows put in place of some of these: one kernel, four tasks
    that own ten rows each."""
    table, added, put = (parameter(n, (d, WIDTH)) for n, d in enumerate((ROWS, COUNT, COUNT)))
    sums, places = (parameter(n, (COUNT,), "s32") for n in (3, 4))
    first = rows(apply(op.TANH, table), sums, apply(op.TANH, added))
    made = rows(first, places, put, "")
    inputs = [table, added, put, sums, places]
    return module_of([apply(op.SUBTRACT, table, made), apply(op.NEGATE, first)], inputs)


@cache
def sums(reverse: bool) -> Module:
    """Cumulative sums of what is computed, without the element itself."""
    value = parameter(0, (6, ROWS))
    made = scanned(apply(op.TANH, value), 1, reverse=reverse, exclusive=True)
    return module_of([apply(op.TANH, made)], [value])


def kernel_of(module: Module) -> Kernel:
    return schedule(whole(module), module, DEVICE, "kernel", verify=True)


def edited(kernel: Kernel, edits: Sequence[Edit]) -> Kernel:
    """The kernel whose text has each of `edits` made, every one at one place."""
    text = print_kernel(kernel)
    for old, new in edits:
        assert text.count(old) == 1, (old, text)
        text = text.replace(old, new)
    made = parse_kernel(text)
    check(made)
    return made


def judged(module: Module, kernels: Mapping[str, Kernel]) -> dict[str, bool]:
    """Whether each kernel passes for the module, all of them compiled at once."""
    pattern = whole(module)
    named = {f"k{n}": replace(one, name=f"k{n}") for n, one in enumerate(kernels.values())}
    library = load_library(compile_c(c.render(list(named.values())), DEVICE).data)
    passed = {}
    for slip, kernel in zip(kernels, named.values(), strict=True):
        made = CpuKernel(library, kernel)
        found = check_kernel(pattern, module, partial(running, made, pattern), {})
        assert found.informative
        passed[slip] = found.passed
    return passed


def running(kernel: CpuKernel, pattern: Pattern, given: Sequence[Any]) -> Sequence[Any]:
    return run_kernel(kernel, pattern, given, {})


TAKEN = "compare:pred{direction='LT'}(v3, index:s64(min(task1 * 10 + 10, 40)))"
FROM = "compare:pred{direction='GE'}(v3, index:s64(task1 * 10))"


def taken(limit: str) -> Edit:
    return TAKEN, f"compare:pred{{direction='LT'}}(v3, index:s64({limit}))"


def begun(limit: str) -> Edit:
    return FROM, f"compare:pred{{direction='GE'}}(v3, index:s64({limit}))"


SCATTERS: dict[str, tuple[Edit, ...]] = {
    "rows replaced from the last update on": (
        ("= in4[step1]", "= in4[step1 * -1 + 299]"),
        ("= in2[step1, lane4]", "= in2[step1 * -1 + 299, lane4]"),
    ),
    "no first update": (("step0 in 0 .. 300", "step0 in 1 .. 300"),),
    "no last update": (("step0 in 0 .. 300", "step0 in 0 .. 299"),),
    "no last row put in place": (("step1 in 0 .. 300", "step1 in 0 .. 299"),),
    "another update's place": (("= in3[step0]", "= in3[(step0 + 1) % 300]"),),
    "nobody owns a task's last row": (taken("task1 * 10 + 9"),),
    "nobody owns a task's first row": (begun("task1 * 10 + 1"),),
    "two tasks own one row": (taken("min(task1 * 10 + 11, 40)"),),
    "rows in another row's place": (("scratch0[at0, lane1] = add",
                                     "scratch0[(at0 + 1) % 40, lane1] = add"),),
    "rows beyond the last are the last": (taken("task1 * 10 + 10 + task1 // 3 * 1000"),),
    "rows before the first are the first": (begun("task1 * 10 + (task1 + 3) // 4 * 1000 + -1000"),),
    "into nothing": (("    scratch0[row0, lane0] = v1", "    scratch0[row0, lane0] = 0.0:f32"),),
    "into what nobody wrote": (("serial row0 in 0 .. 40", "serial row0 in 1 .. 40"),),
    "put into what is not the sums": (("= scratch0[row2, lane3]", "= in0[row2, lane3]"),),
}  # fmt: skip


@cache
def judged_scatters() -> dict[str, bool]:
    kernel = kernel_of(scatters())
    slips = {slip: edited(kernel, edits) for slip, edits in SCATTERS.items()}
    return judged(scatters(), {NONE: kernel, **slips})


@pytest.mark.slow
def test_scatters_are_right_and_joined() -> None:
    phases = kernel_of(scatters()).phases
    assert [section.tasks for phase in phases for section in phase.sections].count(4) == 2
    assert judged_scatters()[NONE]


@pytest.mark.parametrize("slip", SCATTERS)
def test_a_slip_in_scatters_fails(slip: str) -> None:
    assert not judged_scatters()[slip]


@pytest.mark.parametrize("slip", ["min(task{0} * 10 + 11, 40)", "40"])
@pytest.mark.parametrize(("task", "place"), [(1, 3), (4, 10)])
def test_tasks_that_share_a_row_race(slip: str, task: int, place: int) -> None:
    """Of rows that are put in place, every owner puts the same: values do not show it."""
    kernel, pattern = kernel_of(scatters()), whole(scatters())
    given = draw_inputs(pattern, 0)
    given[3:] = [np.random.default_rng(n).integers(0, ROWS, COUNT, np.int32) for n in (3, 4)]
    interpret(kernel, given, {}, np.random.default_rng(1))
    limit = "direction='LT'}}(v{1}, index:s64({0}))"
    own = limit.format(f"min(task{task} * 10 + 10, 40)", place)
    edit = own, limit.format(slip.format(task), place)
    with pytest.raises(Race):
        interpret(edited(kernel, [edit]), given, {}, np.random.default_rng(1))


READ = {False: "step0", True: "step0 * -1 + 39"}
WRITE = {False: "step0 + 1", True: "(step0 + 1) * -1 + 39"}
FIRST = {False: "0", True: "39"}


def scan_slips(reverse: bool) -> dict[str, tuple[Edit, ...]]:
    """Ways to be wrong about a scan, as edits of its kernel."""
    read, write = f"= in0[lane0, {READ[reverse]}]", f"out0[lane0, {WRITE[reverse]}]"
    start = f"out0[lane0, {FIRST[reverse]}] = v1"
    other = READ[not reverse]
    return {
        "no start": ((start, ""),),
        "the start at the other end": ((start, f"out0[lane0, {FIRST[not reverse]}] = v1"),),
        "not to the end": (("in 0 .. 39", "in 0 .. 38"),),
        "not from the beginning": (("in 0 .. 39", "in 1 .. 39"),),
        "the element after": ((read, f"= in0[lane0, ({READ[reverse]} + 1) % 40]"),),
        "the element before": ((read, f"= in0[lane0, ({READ[reverse]} + 39) % 40]"),),
        "results one off": ((write, f"out0[lane0, ({WRITE[reverse]} + 1) % 40]"),),
        "read from the other end": ((read, f"= in0[lane0, {other}]"),),
        "written from the other end": ((write, f"out0[lane0, {other}]"),),
        "nothing carried": (("let v4: f32 = a0", "let v4: f32 = v3"),),
        "another function": (
            ("accumulator a0: f32 = add", "accumulator a0: f32 = maximum"),
            ("accumulate a0 = add(v3)", "accumulate a0 = maximum(v3)"),
        ),
    }


@cache
def judged_sums(reverse: bool) -> dict[str, bool]:
    kernel = kernel_of(sums(reverse))
    slips = {slip: edited(kernel, edits) for slip, edits in scan_slips(reverse).items()}
    return judged(sums(reverse), {NONE: kernel, **slips})


@pytest.mark.parametrize("reverse", [False, True])
def test_scans_are_right(reverse: bool) -> None:
    assert judged_sums(reverse)[NONE]


@pytest.mark.parametrize("slip", scan_slips(False))
@pytest.mark.parametrize("reverse", [False, True])
def test_a_slip_in_scans_fails(slip: str, reverse: bool) -> None:
    assert not judged_sums(reverse)[slip]
