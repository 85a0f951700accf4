"""Schedules that are chosen by estimate while a kernel for a GPU is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from stitchcore.cli.main import stitch
from stitchcore.compiler import latency, quickest
from stitchcore.compiler.performance_library import ESTIMATED, Entry, Library
from stitchcore.compiler.pipeline import run
from stitchcore.compiler.regions import compile_regions
from stitchcore.compiler.stages import PLANNED, BuildOptions, ModuleState
from stitchcore.device.records import DEVICES
from stitchcore.errors import Reason, Refusal
from stitchcore.fusion.canonical import pattern_key
from stitchcore.fusion.mechanisms import ALL, Mechanism
from stitchcore.hlo.evaluator.evaluate import evaluate
from stitchcore.hlo.text.parser import parse
from stitchcore.loop_ir.interpreter import interpret
from stitchcore.loop_ir.nodes import Kernel
from stitchcore.runtime.gpu.compile_module import compile_for_gpu
from stitchcore.schedule.space import DEFAULT, Schedule
from stitchcore.toolchain import cuda_compiler

GPU = DEVICES["sm_90"]
UNSEARCHED = ALL - {Mechanism.SEARCH}
FEW_ROWS = """HloModule few_rows
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
ENTRY main {
  x = f32[64,256] parameter(0)
  zero = f32[] constant(0)
  rows = f32[64] reduce(x, zero), dimensions={1}, to_apply=add
  beside = f32[64,256] broadcast(rows), dimensions={0}
  product = f32[64,256] multiply(x, beside)
  ROOT columns = f32[256] reduce(product, zero), dimensions={0}, to_apply=add
}"""
"""Each row is summed before what it adds to the columns: 64 rows are work for 64 tasks, not for the
4 of 16 rows that a processor wants. (A layer's normalization and its gradient are of this kind: an
H100 took 35 us where XLA's five kernels take 15.)"""
LARGE = """HloModule large
ENTRY main {
  x = f32[4096,4096] parameter(0)
  ROOT y = f32[4096,4096] exponential(x)
}"""


def planned(text: str, options: BuildOptions | None = None) -> ModuleState:
    return run(PLANNED, ModuleState(parse(text), GPU, options or BuildOptions()))


def seconds(state: ModuleState) -> float:
    """Beside launches."""
    taken = (latency.seconds(state.kernels[number], GPU) for number in state.of)
    return sum(each - GPU.launch_seconds for each in taken)


def chosen(state: ModuleState) -> list[Schedule]:
    return [entry.schedule for entry in state.options.library.entries.values()]


def test_few_rows_are_the_work_of_more_tasks() -> None:
    found, own = (
        planned(FEW_ROWS),
        planned(FEW_ROWS, BuildOptions(mechanisms=UNSEARCHED)),
    )
    assert chosen(own) == [] and any(one.least_part_rows for one in chosen(found))
    assert seconds(found) < 0.5 * seconds(own)
    [entry] = found.options.library.entries.values()
    launch = GPU.launch_seconds
    assert (entry.seconds, entry.default_seconds) == pytest.approx(
        (seconds(found) + launch, seconds(own) + launch)
    )
    [kernel], x = found.kernels, np.random.default_rng(0).standard_normal((64, 256), np.float32)
    [computed] = interpret(kernel, [x], {}, np.random.default_rng(0))
    [expected] = evaluate(found.module, [x])
    np.testing.assert_allclose(computed, expected, rtol=2e-5, atol=1e-3)


def test_what_is_near_the_bandwidth_stays() -> None:
    [kernel] = planned(LARGE).kernels
    tried: list[Schedule] = []

    def kernel_of(one: Schedule) -> Kernel:
        tried.append(one)
        return kernel

    entry = quickest.entry_of(kernel_of, GPU)
    assert entry.schedule == DEFAULT and entry.seconds == entry.default_seconds
    assert tried == [DEFAULT], "nothing else was scheduled"


def test_what_a_library_knows_is_not_searched_for() -> None:
    state = planned(FEW_ROWS, BuildOptions(mechanisms=UNSEARCHED))
    assert state.plan is not None
    [pattern] = state.plan.patterns
    measured = Schedule(threads=128)
    known = Library({pattern_key(pattern): Entry(measured, 1.0, 2.0, ESTIMATED)})
    assert chosen(planned(FEW_ROWS, BuildOptions(library=known))) == [measured]


def test_a_schedule_without_a_binary_is_not_chosen_again() -> None:
    first = planned(FEW_ROWS)
    refused = Refusal("kernel", Reason.REGISTERS, "spills")
    start = ModuleState(parse(FEW_ROWS), GPU, BuildOptions())
    again = run(PLANNED, replace(start, unbuildable={first.keys[0]: refused}))
    assert first.keys[0] not in again.keys and len(again.kernels) == 1


@pytest.fixture
def picky(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler takes nothing but what the device's own schedule makes."""
    own = planned(FEW_ROWS, BuildOptions(mechanisms=UNSEARCHED)).kernels[0].phases
    real = cuda_compiler.compile_kernels

    def compiled(kernels: Sequence[Kernel], *rest: Any) -> Any:
        refused = [kernel for kernel in kernels if kernel.phases != own]
        units, refusals = real([k for k in kernels if k not in refused], *rest)
        return units, (*refusals, *(Refusal(k.name, Reason.REGISTERS, "spilled") for k in refused))

    monkeypatch.setattr(cuda_compiler, "compile_kernels", compiled)


@pytest.mark.usefixtures("needs_nvrtc", "picky")
def test_a_schedule_that_no_compiler_takes_costs_nothing() -> None:
    """Neither a job's region, nor a whole module's kernel, nor `stitch compile`."""
    made = compile_regions({"a" * 64: parse(FEW_ROWS)}, GPU, BuildOptions())
    assert list(made.regions) == ["a" * 64] and not made.refusals
    whole = compile_for_gpu(parse(FEW_ROWS), "sm_90")
    assert len(whole.table.kernels) == 1


@pytest.mark.usefixtures("needs_nvrtc", "picky")
def test_the_command_says_that_it_left_it_out(tmp_path: Path) -> None:
    module = tmp_path / "module.hlo"
    module.write_text(FEW_ROWS)
    words = ["compile", module, "--target", "sm_90", "--out", tmp_path / "made"]
    done = CliRunner().invoke(stitch, list(map(str, words)))
    assert done.exit_code == 0 and "without chosen schedules" in done.output
    assert (tmp_path / "made" / "kernels_00.cu").exists()


@pytest.mark.parametrize("target", ["cpu-x86-64-v3", "cpu-x86-64-v4"])
def test_a_processor_is_measured_never_estimated(target: str) -> None:
    state = run(PLANNED, ModuleState(parse(FEW_ROWS), DEVICES[target], BuildOptions()))
    assert chosen(state) == []
