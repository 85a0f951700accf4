"""The suite that keeps the emulator, and the derivation of barriers, honest.

Each barrier, fence, atomic, volatile read, guard of a store and lane of a shuffle's mask in a
kernel's own text matters, in that kernel; in a helper, in some kernel that uses it. Nothing is
found in the kernels as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from tests.emulator import kernels, mutants, suite
from tests.emulator.findings import Finding, Kind
from tests.emulator.kernels import BLOCKS
from tests.emulator.launch import Order, Schedule
from tests.emulator.mutants import Mutant
from tests.emulator.program import compile_text
from tests.emulator.suite import MODULES, Case
from tests.tiers import nightly_but

FEW = ("softmax_grad", "layernorm_gelu_grad", "mlp_train")
EACH = nightly_but("softmax_grad", "layernorm_gelu_grad", of=MODULES)

BY_HELPERS = ("softmax_grad", "crnn_infer")
"""Modules whose kernels have no barrier of their own beside those of a block's reduction."""

CLEAN_RUNS = 500


def found_in(case: Case, mutant: Mutant) -> tuple[Finding, ...]:
    """What is found in a mutant: with several blocks, else with one that runs all tasks."""
    program = compile_text(mutant.text)
    for blocks in (BLOCKS, 1):
        made = kernels.run(case.kernel, program, case.inputs, {}, Schedule(), blocks=blocks)
        if made.findings:
            return made.findings
    return ()


def changed(module: str) -> Iterator[tuple[Case, Mutant]]:
    for case in suite.cases(module):
        if case.synchronises:
            for mutant in mutants.mutants(case.text):
                yield case, mutant


@pytest.mark.slow
@pytest.mark.parametrize("module", EACH)
def test_everything_that_keeps_threads_apart_matters(module: str) -> None:
    kept = 0
    for case, mutant in changed(module):
        if mutant.helper:
            continue
        assert found_in(case, mutant), f"{case.name}: {mutant.what} goes unnoticed"
        kept += 1
    assert kept > 0 or module in BY_HELPERS


@pytest.mark.slow
def test_everything_in_the_helpers_matters_to_some_kernel() -> None:
    """Of each change, named by its text: some kernel is wrong with it."""
    unnoticed: dict[str, str] = {}
    noticed: set[str] = set()
    for module in FEW:
        for case, mutant in changed(module):
            if not mutant.helper or (key := helper(mutant)) in noticed:
                continue
            if found_in(case, mutant):
                noticed.add(key)
                unnoticed.pop(key, None)
            else:
                unnoticed[key] = f"{case.name}: {mutant.what}"
    assert len(noticed) >= 11 and not unnoticed, (noticed, unnoticed)


def helper(mutant: Mutant) -> str:
    """The function that a mutant changes, and the change: several reducers have one text."""
    before = mutant.text[: mutant.begin].splitlines()
    heads = [line for line in before if line.startswith("ST_INLINE")]
    within = len(before) - max(n for n, line in enumerate(before) if line == heads[-1])
    name = heads[-1].split("(")[0].split()[-1]
    return f"{'st_combine' if name.startswith('st_combine') else name}+{within}: {mutant.change}"


@pytest.mark.slow
def test_grid_barriers_need_blocks_that_run_together() -> None:
    case = next(c for c in suite.cases("mlp_train") if len(c.kernel.phases) > 1)
    made = kernels.run(
        case.kernel, compile_text(case.text), case.inputs, {}, Schedule(), cooperative=False
    )
    assert {one.kind for one in made.findings} == {Kind.DEADLOCK}


def test_a_buffer_too_short_is_overrun() -> None:
    """One input after the other is given one element less than the kernel reads."""
    case = suite.cases("softmax_grad")[0]
    program = compile_text(case.text)
    inputs = case.kernel.buffers[: len(case.inputs)]
    for number, (buffer, given) in enumerate(zip(inputs, case.inputs, strict=True)):
        size = given.size - 1
        shorter = replace(buffer, dims=(size,))
        shown = [*case.inputs[:number], given.ravel()[:size], *case.inputs[number + 1 :]]
        buffers = tuple(shorter if b is buffer else b for b in case.kernel.buffers)
        made = kernels.run(replace(case.kernel, buffers=buffers), program, shown, {})
        assert (Kind.OUT_OF_BOUNDS, buffer.name) in {(f.kind, f.buffer) for f in made.findings}


@pytest.mark.slow
def test_clean_kernels_are_found_clean() -> None:
    """A few of the runs of the next test, quickly."""
    for module in FEW:
        for case in suite.cases(module):
            for schedule in (Schedule(), Schedule(Order.RANDOM, 5, preempt=True)):
                made = kernels.run(case.kernel, compile_text(case.text), case.inputs, {}, schedule)
                assert not made.findings, (case.name, schedule, list(map(str, made.findings)))


@pytest.mark.nightly
def test_no_false_positive_in_many_clean_runs() -> None:
    """Kernels x orders x seeds x grids; outputs have the same bits every time."""
    given = [case for module in MODULES for case in suite.cases(module)]
    programs = kernels.programs([replace(c.kernel, name=f"k{n}") for n, c in enumerate(given)])
    first: dict[int, list[bytes]] = {}
    random = np.random.default_rng(0)
    for run in range(max(CLEAN_RUNS, 2 * len(given))):
        number = run % len(given)
        order = Order(int(random.integers(3)))
        schedule = Schedule(order, int(random.integers(2**32)), bool(random.integers(2)))
        blocks = int(random.integers(1, 6))
        kernel = replace(given[number].kernel, name=f"k{number}")
        made = kernels.run(
            kernel, programs[number], given[number].inputs, {}, schedule, blocks=blocks
        )
        what = (given[number].name, schedule, blocks)
        assert not made.findings, (what, list(map(str, made.findings)))
        outputs = [array.tobytes() for array in made.outputs]
        assert outputs == first.setdefault(number, outputs), what
