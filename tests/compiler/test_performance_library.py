"""A library's schedules are used, kept as they were given, and no file of it can break a build."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stitchcore import options as settings
from stitchcore.cli.main import stitch
from stitchcore.compiler import performance_library
from stitchcore.compiler.performance_library import ESTIMATED, MEASURED, Entry, Library
from stitchcore.compiler.pipeline import run
from stitchcore.compiler.regions import compile_regions
from stitchcore.compiler.stages import (
    PLANNED,
    BuildOptions,
    ModuleState,
    build_options,
    rescheduled,
    without_unbuildable,
)
from stitchcore.device.records import DEVICES, Device
from stitchcore.errors import Reason, Refusal
from stitchcore.fusion.canonical import pattern_key
from stitchcore.fusion.mechanisms import ALL, Mechanism
from stitchcore.hlo.text.parser import parse
from stitchcore.loop_ir.nodes import Kernel
from stitchcore.schedule.space import DEFAULT, Schedule
from stitchcore.toolchain import cuda_compiler
from tests.schedule.test_tiling import ROWS

CPU, GPU = DEVICES["cpu-x86-64-v3"], DEVICES["sm_90"]
MODULE = parse(ROWS.format(rows=100_000, columns=32))
WIDE = Entry(Schedule(threads=512), 1e-5, 2e-5, ESTIMATED)
UNPACKED = Entry(Schedule(packs=False), 1e-5, 2e-5, MEASURED, "a machine")


def state_of(options: BuildOptions, device: Device = GPU) -> ModuleState:
    return run(PLANNED, ModuleState(MODULE, device, options))


def key_of(device: Device = GPU) -> str:
    plan = state_of(BuildOptions(), device).plan
    assert plan is not None
    [pattern] = plan.patterns
    return pattern_key(pattern)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    performance_library.write(tmp_path, GPU, {"a": WIDE})
    performance_library.write(
        tmp_path, CPU, {"a": UNPACKED, "b": replace(UNPACKED, schedule=DEFAULT)}
    )
    assert performance_library.read(tmp_path, GPU) == Library({"a": WIDE})
    performance_library.write(tmp_path, GPU, {"a": replace(WIDE, seconds=3.0)})
    assert performance_library.read(tmp_path, GPU).entries["a"].seconds == 3.0
    assert performance_library.read(tmp_path, CPU).entries.keys() == {"a", "b"}
    assert performance_library.read(tmp_path / "none", GPU) == Library()


def test_a_device_that_differs_in_any_figure_has_entries_of_its_own(tmp_path: Path) -> None:
    performance_library.write(tmp_path, GPU, {"a": WIDE})
    calibrated = replace(GPU, launch_seconds=GPU.launch_seconds * 1.01)
    assert performance_library.read(tmp_path, calibrated) == Library()


def changed(**changes: Any) -> str:
    record = {
        "version": 1, "kernel": "a", "schedule": {"threads": 512}, "seconds": 1.0,
        "default_seconds": 2.0, "decided": "estimated", "machine": "",
    }  # fmt: skip
    return json.dumps({k: v for k, v in {**record, **changes}.items() if v is not None})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Expecting value"),
        ("{", "Expecting property name"),
        ("[]", "list indices"),
        ("7", "not subscriptable"),
        ("\udcff", "utf-8"),
        ("[" * 100_000, "recursion"),
        (changed(version=2), "version 2"),
        (changed(kernel="b"), "another kernel's"),
        (changed(schedule=None), "no 'schedule'"),
        (changed(schedule={"threads": 96}), "threads=96 is not in this device's space"),
        (changed(schedule={"packs": False}), "packs=0 is not in this device's space"),
        (changed(schedule={"gpu": 1}), "'gpu' is no choice"),
        (changed(seconds="soon"), "could not convert"),
        (changed(decided="guessed"), "'guessed'"),
    ],
)
def test_a_file_that_is_no_entry_is_ignored_and_said(tmp_path: Path, text: str, why: str) -> None:
    performance_library.write(tmp_path, GPU, {"b": WIDE})
    bad = performance_library.folder_of(tmp_path, GPU) / "a.json"
    bad.write_bytes(text.encode(errors="surrogateescape"))
    library = performance_library.read(tmp_path, GPU)
    assert library.entries == {"b": WIDE}
    [said] = library.ignored
    assert "a.json: " in said and why in said and said in str(library)
    bad.write_text(changed())
    assert not performance_library.read(tmp_path, GPU).ignored


def test_a_file_that_may_not_be_read_is_ignored(tmp_path: Path) -> None:
    performance_library.write(tmp_path, GPU, {"b": WIDE})
    (performance_library.folder_of(tmp_path, GPU) / "a.json").mkdir()
    assert len(performance_library.read(tmp_path, GPU).ignored) == 1


# ---- used ----------------------------------------------------------------------------------------
def test_a_known_kernel_is_scheduled_so_and_has_a_name_of_its_own(tmp_path: Path) -> None:
    performance_library.write(tmp_path, GPU, {key_of(): WIDE})
    options = settings.read({"STITCH_LIBRARY": str(tmp_path)})
    plain, known = state_of(BuildOptions()), state_of(build_options(options, GPU))
    assert [kernel.threads for kernel in (*plain.kernels, *known.kernels)] == [256, 512]
    assert plain.keys != known.keys and plain.kernels[0].name != known.kernels[0].name
    assert plain.plan is not None and known.plan is not None
    assert known.plan.patterns == plain.plan.patterns
    again = rescheduled(plain.plan, GPU, build_options(options, GPU))
    assert again.kernels == known.kernels
    assert "threads" in PLANNED[-1].beside(known)["03_schedule.trace.txt"]


def test_without_search_the_library_is_not_read(tmp_path: Path) -> None:
    performance_library.write(tmp_path, GPU, {key_of(): WIDE})
    options = settings.read({"STITCH_LIBRARY": str(tmp_path), "STITCH_WITHOUT": "search"})
    build = build_options(options, GPU)
    assert build.library == Library()
    [kernel] = state_of(build).kernels
    assert kernel.threads == 256
    left_out = replace(
        build, library=Library({key_of(): WIDE}), mechanisms=ALL - {Mechanism.SEARCH}
    )
    [kernel] = state_of(left_out).kernels
    assert kernel.threads == 256


def test_artifacts_with_a_library_have_keys_of_their_own(tmp_path: Path) -> None:
    plain, known = settings.read({}), settings.read({"STITCH_LIBRARY": str(tmp_path)})
    assert plain.signature != known.signature


def test_a_kernel_that_has_no_binary_goes_back_to_the_devices_schedule() -> None:
    options = BuildOptions(library=Library({key_of(): WIDE}))
    tried = state_of(options)
    [kernel] = tried.kernels
    refusal = Refusal(kernel.name, Reason.REGISTERS, "spilled")
    start = without_unbuildable(
        ModuleState(MODULE, GPU, options), replace(tried, refused=(refusal,))
    )
    [again] = run(PLANNED, start).kernels
    assert again.threads == 256


def test_an_entry_that_is_no_schedule_of_its_kernel_gives_way() -> None:
    """A scan wants as many elements beside it as a block has lanes."""
    from tests.schedule.modules import module_of, parameter
    from tests.schedule.test_scans import scanned

    value = parameter(0, (8, 20, 300))
    module = module_of([scanned(value, 1)], [value])
    plain = run(PLANNED, ModuleState(module, GPU, BuildOptions()))
    assert plain.plan is not None
    [pattern] = plain.plan.patterns
    library = Library({pattern_key(pattern): WIDE})
    [kernel] = run(PLANNED, ModuleState(module, GPU, BuildOptions(library=library))).kernels
    assert kernel.threads == 256


@pytest.fixture
def picky(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler refuses blocks of 512 threads."""
    real = cuda_compiler.compile_kernels

    def compiled(kernels: Sequence[Kernel], *rest: Any) -> Any:
        refused = [kernel for kernel in kernels if kernel.threads == 512]
        units, refusals = real([k for k in kernels if k not in refused], *rest)
        return units, (*refusals, *(Refusal(k.name, Reason.REGISTERS, "spilled") for k in refused))

    monkeypatch.setattr(cuda_compiler, "compile_kernels", compiled)


@pytest.mark.usefixtures("needs_nvrtc", "picky")
def test_a_schedule_that_no_compiler_takes_costs_a_job_no_region() -> None:
    options = BuildOptions(library=Library({key_of(): WIDE}))
    made = compile_regions({"a" * 64: MODULE}, GPU, options)
    assert list(made.regions) == ["a" * 64] and not made.refusals
    [entry] = made.kernels.values()
    assert entry.kernel.threads == 256


@pytest.mark.usefixtures("needs_nvrtc", "picky")
def test_a_schedule_that_no_compiler_takes_is_left_out_and_said(tmp_path: Path) -> None:
    performance_library.write(tmp_path, GPU, {key_of(): WIDE})
    module = tmp_path / "module.hlo"
    module.write_text(ROWS.format(rows=100_000, columns=32))
    words = ["compile", module, "--target", "sm_90", "--library", tmp_path, "--out", tmp_path / "m"]
    done = CliRunner().invoke(stitch, list(map(str, words)))
    assert done.exit_code == 0 and "without chosen schedules" in done.output
    assert "__launch_bounds__(256," in (tmp_path / "m" / "kernels_00.cu").read_text()


def test_a_file_is_no_library_and_that_is_told(tmp_path: Path) -> None:
    path = tmp_path / "library"
    path.write_text("")
    assert performance_library.read(path, CPU).ignored == (f"{path}: no folder",)
