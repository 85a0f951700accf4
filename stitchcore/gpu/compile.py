"""A module compiled for a GPU: all stages, then steps. Needs NVRTC, and neither GPU nor driver."""

from __future__ import annotations

from stitchcore.device.records import DEVICES
from stitchcore.gpu.build import build, require
from stitchcore.gpu.steps import GpuModule
from stitchcore.hlo.module import Module
from stitchcore.hlo.padded import padded
from stitchcore.stages import PLANNED, STAGES, BuildOptions, State, run_stages


def compile_for_gpu(
    module: Module, target: str, options: BuildOptions | None = None, updates: bool = False
) -> GpuModule:
    """`module` for devices of `target` ("sm_90"), `updates` as in `build`. Raises Refused, with its
    reason, for what no memory holds; what single kernels or instructions are refused for is in the
    result."""
    state = State(padded(module), DEVICES[target], options or BuildOptions())
    planned = run_stages(state, PLANNED, {})
    assert planned.plan is not None
    require(planned.plan)
    return build(run_stages(planned, STAGES[len(PLANNED) :], {}), updates)
