"""Every kernel of three training steps compiles as CUDA for sm_90, and as C with few misses."""

from __future__ import annotations

import functools

import pytest

from stitchcore.codegen import cuda
from stitchcore.device.records import DEVICES
from stitchcore.errors import Refused
from stitchcore.fusion import planner_exhaustive
from stitchcore.fusion.cost import cost
from stitchcore.hlo.transforms.simplify import simplify
from stitchcore.loop_ir.nodes import Kernel
from stitchcore.loop_ir.printer import parse_kernel, print_kernel
from stitchcore.loop_ir.verifier import check
from stitchcore.schedule.pipeline import feasible, schedule
from stitchcore.toolchain import c_compiler, nvrtc
from tests import tiers
from tests.codegen.units import compile_units
from tests.hlo import workloads

STEPS = ("bert_train", "dien_train", "lstm_lm_train")
DEVICE = DEVICES["cpu-x86-64-v4"]
SHARED_LIMIT = DEVICES["sm_90"].group_bytes


@functools.cache
def kernels(step: str) -> tuple[Kernel, ...]:
    """The kernels of a step's plan that differ in more than their name."""
    module = simplify(workloads.module(step)).module
    plan = planner_exhaustive.plan(module, DEVICE, cost, feasible)
    found: dict[str, Kernel] = {}
    for number, pattern in enumerate(plan.patterns):
        kernel = schedule(pattern, module, DEVICE, f"k{number}", verify=True)
        body = print_kernel(kernel).split("{", 1)[1]
        lines = [line for line in body.splitlines() if not line.startswith("  origin")]
        found.setdefault("\n".join(lines), kernel)
    return tuple(found.values())


@pytest.mark.slow
@pytest.mark.parametrize("step", tiers.nightly_but("dien_train", "lstm_lm_train", of=STEPS))
def test_kernels_are_legal_and_round_trip(step: str) -> None:
    assert len(kernels(step)) >= 10
    for kernel in kernels(step):
        check(kernel)
        assert parse_kernel(print_kernel(kernel)) == kernel


@pytest.mark.slow
@pytest.mark.parametrize("step", tiers.nightly_but("dien_train", "lstm_lm_train", of=STEPS))
def test_every_kernel_compiles_as_cuda(step: str) -> None:
    try:
        nvrtc.nvrtc_version()
    except Refused as refused:
        pytest.skip(f"{refused}: pip install nvidia-cuda-nvrtc-cu12")
    named = set()
    for start in range(0, len(kernels(step)), nvrtc.BATCH):
        batch = kernels(step)[start : start + nvrtc.BATCH]
        program = nvrtc.compile_cuda(cuda.render(batch), "sm_90")
        named |= {resources.name for resources in program.resources}
    assert named == {kernel.name for kernel in kernels(step)}
    assert all(cuda.shared_bytes(kernel) <= SHARED_LIMIT for kernel in kernels(step))


@pytest.mark.slow
@pytest.mark.parametrize("step", tiers.nightly_but("dien_train", "lstm_lm_train", of=STEPS))
def test_nearly_every_lane_loop_vectorises(step: str) -> None:
    """The few that do not (scattered strides, one select a row) are under 4 % of the loops."""
    if c_compiler.find_compiler().family != "gcc":
        pytest.skip("the figure is gcc's: apt-get install gcc")
    units = compile_units(kernels(step), DEVICE)
    loops = [loop for _, library in units for loop in library.loops]
    scalar = [loop for _, library in units for loop in library.scalar_loops]
    assert len(scalar) <= 0.04 * len(loops), scalar
