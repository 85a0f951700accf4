"""The schedule is a list of passes: printed, traced, and checked after each where that is asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from stitchcore import options
from stitchcore.compiler.pipeline import run
from stitchcore.compiler.stages import PLANNED, ModuleState, build_options
from stitchcore.device.records import DEVICES
from stitchcore.hlo.ir.module import Module
from stitchcore.loop_ir.index import Variable
from stitchcore.loop_ir.nodes import Barrier, Kernel, Phase, Scope
from stitchcore.loop_ir.printer import print_kernel
from stitchcore.loop_ir.verifier import IllegalKernel
from stitchcore.loop_ir.visitor import mapped
from stitchcore.schedule import pipeline as scheduler
from stitchcore.schedule.pipeline import PASSES, passes_text, schedule, trace
from tests.schedule.modules import module_of, parameter, reduce, whole

GPU = DEVICES["sm_90"]
NAMES = [step.name for step in PASSES]


def _sums() -> Module:
    """Sums of columns, which a GPU makes in parts, and of short rows."""
    value = parameter(0, (4000, 96))
    return module_of([reduce(value, (0,)), reduce(value, (1,))], [value])


def _undefined_index(kernel: Kernel) -> Kernel:
    return _with_bodies(kernel, lambda body: mapped(body, index=lambda _: Variable("nowhere")))


def _barrier_of_a_lane(kernel: Kernel) -> Kernel:
    return _with_bodies(kernel, lambda body: (*body, Barrier(Scope.LANE)))


def _forgotten_scratch(kernel: Kernel) -> Kernel:
    return replace(kernel, scratch_offsets=(*kernel.scratch_offsets, 0))


def _with_bodies(kernel: Kernel, change: Callable[..., tuple[object, ...]]) -> Kernel:
    phases = (
        Phase(tuple(replace(s, body=change(s.body)) for s in phase.sections))
        for phase in kernel.phases
    )
    return replace(kernel, phases=tuple(phases))


BREAKS = (_undefined_index, _barrier_of_a_lane, _forgotten_scratch)


def _broken(monkeypatch: pytest.MonkeyPatch, number: int, change: Callable[..., Kernel]) -> None:
    """Pass `number` does what it does, and breaks the kernel."""
    own = PASSES[number]
    broken = replace(own, run=lambda kernel, context: change(own.run(kernel, context)))
    passes = (*PASSES[:number], broken, *PASSES[number + 1 :])
    monkeypatch.setattr(scheduler, "PASSES", passes)


@pytest.mark.parametrize("change", BREAKS)
@pytest.mark.parametrize("number", range(len(PASSES)))
def test_a_pass_that_breaks_the_kernel_is_named(
    monkeypatch: pytest.MonkeyPatch, number: int, change: Callable[..., Kernel]
) -> None:
    module = _sums()
    _broken(monkeypatch, number, change)
    with pytest.raises(IllegalKernel, match=f"^after {NAMES[number]}: kernel"):
        schedule(whole(module), module, GPU, "kernel", verify=True)


@pytest.mark.parametrize("number", range(NAMES.index("input-output aliasing"), len(PASSES)))
def test_a_copy_for_what_is_no_alias_is_found(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """A section copies for an alias, of which there is none (before that, for a possible one)."""
    module = _sums()

    def copying(kernel: Kernel) -> Kernel:
        pair = (kernel.buffers[0], kernel.buffers[1])
        sections = (replace(s, copy_unless_aliased=pair) for s in kernel.phases[0].sections)
        return replace(kernel, phases=(Phase(tuple(sections)), *kernel.phases[1:]))

    _broken(monkeypatch, number, copying)
    with pytest.raises(IllegalKernel, match=f"^after {NAMES[number]}: kernel"):
        schedule(whole(module), module, GPU, "kernel", verify=True)


def test_the_switch_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the environment through the settings to the stages; off, nothing is checked."""
    module = _sums()
    _broken(monkeypatch, NAMES.index("barriers"), _barrier_of_a_lane)
    schedule(whole(module), module, GPU, "kernel")
    for value in ("0", "1"):
        settings = options.read({"STITCH_VERIFY_PASSES": value})
        state = ModuleState(module, GPU, build_options(settings, GPU))
        if value == "0":
            assert run(PLANNED, state).kernels
        else:
            with pytest.raises(IllegalKernel, match=r"^after barriers: k_"):
                run(PLANNED, state)


def test_the_list_is_printed() -> None:
    lines = passes_text().splitlines()
    assert [line.split(": ")[0] for line in lines] == [
        f"{number}. {name}" for number, name in enumerate(NAMES, 1)
    ]
    assert len(set(NAMES)) == len(NAMES)


def test_a_trace_shows_what_each_pass_changed() -> None:
    module = _sums()
    pattern = whole(module)
    kernel = schedule(pattern, module, GPU, "kernel", verify=True)
    lowered, *steps = trace(pattern, module, GPU, "kernel").split("# kernel after ")[1:]
    lines = lowered.splitlines()
    assert lines[0] == "lowering" and lines[1].startswith("kernel kernel(")
    assert [step.split("\n")[0].removesuffix(": unchanged") for step in steps] == NAMES
    for step in steps:
        changed = [line for line in step.splitlines() if line.startswith(("+", "-"))]
        assert bool(changed) is (": unchanged" not in step.split("\n")[0])
        lines += [line[1:] for line in changed if line.startswith("+")]
    assert any("changed" in step for step in steps)
    assert set(print_kernel(kernel).splitlines()) <= set(lines)
