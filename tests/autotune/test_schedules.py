"""A search keeps a schedule only where it is right and quicker beyond doubt, and a library has it
for the next build."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from stitchcore.autotune import kernels, schedules
from stitchcore.autotune.kernels import WINS
from stitchcore.cli.main import stitch
from stitchcore.compiler import latency, performance_library
from stitchcore.compiler.performance_library import ESTIMATED, MEASURED
from stitchcore.compiler.pipeline import run as through
from stitchcore.compiler.stages import PLANNED, BuildOptions, ModuleState, rescheduled
from stitchcore.device.records import DEVICES, Device
from stitchcore.fusion.canonical import pattern_key
from stitchcore.fusion.mechanisms import ALL, Mechanism
from stitchcore.fusion.pattern import Plan
from stitchcore.hlo.text.parser import parse
from stitchcore.loop_ir.nodes import Kernel
from stitchcore.loop_ir.printer import print_kernel
from stitchcore.schedule.space import DEFAULT, Schedule
from stitchcore.toolchain import cuda_compiler
from stitchcore.verify.inputs import arguments
from stitchcore.verify.kernel import KernelCheck
from tests.autotune.test_kernels import DEVICE, SLOW, TEXT, plan_of, planned, timed

LARGE = TEXT.replace("64,48", "4096,64").replace("f32[64]", "f32[4096]")
Times = Callable[[int], list[float]]


def searched(monkeypatch: pytest.MonkeyPatch, seconds: Times) -> schedules.Searched:
    """The one kernel, whose second schedule packs no rows."""
    monkeypatch.setattr(kernels, "compare", timed(seconds))
    plan = plan_of(planned())
    found = schedules.search_all((plan,), DEVICE, BuildOptions(), kernels.Measuring())
    [(key, one)] = found.items()
    assert key == pattern_key(plan.patterns[0])
    assert one.schedules[:2] == (DEFAULT, Schedule(packs=False)) and one.decided == MEASURED
    assert len(one.trials) == len(one.schedules) == one.distinct
    return one


def test_the_quickest_schedule_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    found = searched(monkeypatch, lambda run: [0.5] * 3 if run else SLOW)
    assert found.kept == 1
    entry = found.entry("here")
    assert entry.schedule == Schedule(packs=False) and entry.machine == "here"
    assert entry.seconds == pytest.approx(0.5, abs=1e-3)
    assert entry.default_seconds == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(
    "times", [[1.01] * 3, [0.98] * 3, [0.5, 1.2, 0.9]], ids=["slower", "hardly quicker", "doubtful"]
)
def test_what_is_not_quicker_beyond_doubt_is_not_kept(
    times: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = searched(monkeypatch, lambda run: times if run else SLOW)
    assert found.kept == 0 and found.entry("").schedule == DEFAULT


def test_what_wins_once_only_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    times: list[int] = []

    def lucky(run: int) -> list[float]:
        times.append(run)
        return [0.5] * 3 if run and times.count(0) == 1 else SLOW

    assert searched(monkeypatch, lucky).kept == 0 and times[-2:] == [0, 1]


def test_a_schedule_that_is_wrong_is_not_kept_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    real = kernels.check_kernel

    def check(pattern: Any, module: Any, run: Any, bindings: Any) -> KernelCheck:
        def wrong(given: Any) -> Any:
            return [array * 1.5 if array.dtype.kind == "f" else array for array in run(given)]

        return real(pattern, module, wrong, bindings)

    monkeypatch.setattr(kernels, "check_kernel", check)
    found = searched(monkeypatch, lambda run: [0.5] * 3 if run else SLOW)
    assert found.kept == 0 and found.trials[1].wrong


def tuned(options: BuildOptions, total: float = 1e9) -> schedules.Tuned:
    measuring = replace(kernels.Measuring(), total=total)
    return schedules.tune((plan_of(planned()),), DEVICE, options, measuring)


def test_cuts_are_measured_against_kernels_as_they_were_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was scheduled otherwise is the kernel that a cut must beat, and what is built."""
    ran: list[list[str]] = []
    real = kernels.opened

    def opened(given: Any, *rest: Any) -> Any:
        ran.append([print_kernel(kernel).partition("{")[2] for kernel in given])
        return real(given, *rest)

    monkeypatch.setattr(kernels, "opened", opened)
    monkeypatch.setattr(schedules, "opened", opened)
    monkeypatch.setattr(kernels, "compare", timed(lambda run: [0.5] * 3 if run == 1 else SLOW))
    monkeypatch.setattr(kernels, "CUTS", 2)
    found = tuned(BuildOptions())
    one = next(iter(found.found.values()))
    assert one.kept == 1
    assert ran[1][0] == ran[0][1] != ran[0][0]
    found = replace(found, plans=(plan_of(planned()),))
    [kernel] = rescheduled(found.plans[0], DEVICE, found.options).kernels
    assert print_kernel(kernel).partition("{")[2] == ran[0][1]


def test_without_search_only_cuts_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "compare", timed(lambda run: [0.5] * 3 if run == 1 else SLOW))
    found = tuned(BuildOptions(mechanisms=ALL - {Mechanism.SEARCH}))
    assert not found.found and not found.options.library.entries
    assert [choice.kept for choice in found.choices] == [1]


def test_when_the_time_is_up_nothing_is_searched() -> None:
    found = tuned(BuildOptions(), 0.0)
    assert not found.found and [choice.kept for choice in found.choices] == [0]


def test_what_a_library_knows_is_not_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "compare", timed(lambda run: [0.5] * 3 if run == 1 else SLOW))
    monkeypatch.setattr(kernels, "CUTS", 1)
    first = tuned(BuildOptions())
    assert first.found and not tuned(first.options).found


# ---- the command ---------------------------------------------------------------------------------
def run(*words: str | Path) -> Any:
    done = CliRunner().invoke(stitch, list(map(str, words)))
    assert done.exit_code == 0, done.output
    return done


@pytest.fixture
def module(tmp_path: Path) -> Path:
    file = tmp_path / "module.hlo"
    file.write_text(TEXT)
    return file


def test_the_command_fills_a_library_that_the_others_read(
    tmp_path: Path, module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "compare", timed(lambda run: [0.5] * 3 if run == 1 else SLOW))
    monkeypatch.setattr(kernels, "CUTS", 1)
    library = tmp_path / "library"
    told = json.loads(run("tune", module, "--library", library, "--json").stdout)
    [(key, one)] = told["schedules"].items()
    assert one["schedule"] == {"packs": False} and one["decided"] == "measured"
    assert told["schedules_seconds"] == pytest.approx(
        told["default_schedules_seconds"] / 2, rel=1e-3
    )
    [entry] = performance_library.read(library, DEVICE).entries.items()
    assert entry[0] == key and entry[1].schedule == Schedule(packs=False)
    shown = run("tune", module, "--library", library).output
    assert "packs=0" in shown and f"the library is {library}" in " ".join(shown.split())

    names = [
        [
            kernel["name"]
            for kernel in json.loads(run("plan", module, "--json", *more).stdout)["kernels"]
        ]
        for more in ([], ["--library", library], ["--library", library, "--without", "search"])
    ]
    assert names[0] != names[1] != names[2]
    texts = []
    for more in ([], ["--library", library], ["--library", library, "--without", "search"]):
        run("compile", module, "--out", tmp_path / "made", *more)
        texts.append((tmp_path / "made" / "kernels.txt").read_text().partition("{")[2])
    assert texts[0] == texts[2] != texts[1]


def test_a_broken_library_is_said_and_changes_nothing(tmp_path: Path, module: Path) -> None:
    folder = performance_library.folder_of(tmp_path, DEVICE)
    folder.mkdir()
    (folder / "0123.json").write_text("{}")
    plain = run("plan", module)
    broken = run("plan", module, "--library", tmp_path)
    assert "1 entries ignored" in broken.output and "0123.json: no 'version'" in broken.output
    assert plain.output.strip().splitlines()[-3:] == broken.output.strip().splitlines()[-3:]


@pytest.mark.parametrize("target", ["cpu-x86-64-v9", "cpu-x86-64-v4"])
def test_what_this_machine_cannot_run_is_not_measured(
    target: str, module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stitchcore.cli import common

    monkeypatch.setattr(common, "host_target", lambda: "cpu-x86-64-v3")
    done = CliRunner().invoke(stitch, ["tune", str(module), "--target", target])
    assert done.exit_code == 2 and target in done.output


def test_results_do_not_depend_on_schedules() -> None:
    """Of a kernel with several, all agree with the first to rounding, bit for bit where nothing is
    summed otherwise."""
    state = through(PLANNED[:3], ModuleState(parse(LARGE), DEVICE, BuildOptions()))
    [pattern] = plan_of(state).patterns
    made = schedules.kernels_of(pattern, state.module, DEVICE, BuildOptions())
    assert len(made) >= 4
    inputs = arguments(pattern.inputs, {}, 0)
    results = [
        kernel.run([np.asarray(value) for value in inputs], {}, 2)
        for kernel in kernels.opened(list(made.values()), DEVICE, BuildOptions())
    ]
    for other in results[1:]:
        for ours, first in zip(other, results[0], strict=True):
            np.testing.assert_allclose(ours, first, rtol=1e-5, atol=1e-5)


# ---- GPUs ----------------------------------------------------------------------------------------
GPU = DEVICES["sm_90"]


def ranked(
    monkeypatch: pytest.MonkeyPatch, quickest: dict[int, float], refused: tuple[int, ...] = ()
) -> schedules.Searched:
    """The one kernel where blocks of so many threads take so long, any other a second, and the
    compiler refuses some."""

    def seconds(kernel: Kernel, *_: object) -> float:
        return quickest.get(kernel.threads, 1.0)

    def compiled(kernels: Sequence[Kernel], *_: object) -> Any:
        fits = [
            SimpleNamespace(kernel=k.name, blocks=1) for k in kernels if k.threads not in refused
        ]
        return (SimpleNamespace(fits=fits),), ()

    monkeypatch.setattr(latency, "seconds", seconds)
    monkeypatch.setattr(cuda_compiler, "require", lambda target: None)
    monkeypatch.setattr(cuda_compiler, "compile_kernels", compiled)
    plan = planned_for(GPU)
    [one] = schedules.search_all((plan,), GPU, BuildOptions(), kernels.Measuring()).values()
    assert one.schedules[0] == DEFAULT and one.decided == ESTIMATED
    return one


def planned_for(device: Device) -> Plan:
    return plan_of(through(PLANNED[:3], ModuleState(parse(TEXT), device, BuildOptions())))


def test_a_gpu_that_is_not_here_has_what_is_estimated_quickest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = ranked(monkeypatch, {64: 0.5, 128: 0.4})
    assert found.schedules[found.kept] == Schedule(threads=128)
    assert found.distinct > len(found.schedules) == schedules.BEST + 1
    entry = found.entry("here")
    assert (entry.seconds, entry.default_seconds, entry.decided) == (0.4, 1.0, ESTIMATED)


def test_what_its_compiler_refuses_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ranked(monkeypatch, {64: 0.5, 1024: 0.4, 512: 0.45}, refused=(1024, 512))
    assert found.kept == 0 or found.schedules[found.kept].threads not in (512, 1024)


def test_what_is_hardly_quicker_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ranked(monkeypatch, {64: 0.98}).kept == 0


def test_a_default_that_is_refused_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ranked(monkeypatch, {64: 0.5}, refused=(256,))
    assert found.schedules[found.kept].threads == 64


SKEWED = """HloModule few
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
ENTRY e {
  x = f32[256,10] parameter(0)
  zero = f32[] constant(0)
  s = f32[256] reduce(x, zero), dimensions={1}, to_apply=add
  b = f32[256,10] broadcast(s), dimensions={0}
  r = f32[256,10] divide(x, b)
  t = f32[10] reduce(r, zero), dimensions={0}, to_apply=add
  ROOT o = (f32[256,10], f32[10]) tuple(r, t)
}
"""
"""Rows of ten elements, and their columns: few lanes of a block have anything to do."""


@pytest.mark.usefixtures("needs_nvrtc")
def test_the_command_searches_for_a_gpu_by_estimate(tmp_path: Path) -> None:
    module, library = tmp_path / "module.hlo", tmp_path / "library"
    module.write_text(SKEWED)
    words = ["tune", module, "--target", "sm_90", "--library", library]
    told = json.loads(run(*words, "--json").stdout)
    assert [one["decided"] for one in told["schedules"].values()] == ["estimated"]
    assert told["schedules_seconds"] < WINS * told["default_schedules_seconds"]
    assert "by estimate: there is no such device here" in " ".join(run(*words).output.split())
    [chosen] = [one["schedule"] for one in told["schedules"].values()]
    made = [
        json.loads(
            run(
                "compile", module, "--target", "sm_90", "--out", tmp_path / "made", "--json", *more
            ).stdout
        )
        for more in ([], ["--library", library])
    ]
    assert not made[0]["refused"] and not made[1]["refused"]
    threads = chosen.get("threads", 256)
    source = next((tmp_path / "made").glob("*.cu")).read_text()
    assert f"__launch_bounds__({threads}," in source
    plain = json.loads(run(*words, "--without", "search", "--json").stdout)
    assert not plain["schedules"]
