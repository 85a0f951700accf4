"""A module compiled for a GPU: all stages, then steps. Needs NVRTC, and neither GPU nor driver."""

from __future__ import annotations

from dataclasses import replace

from stitchcore.compiler.stages import PLANNED, STAGES, BuildOptions, State, again, run_stages
from stitchcore.device.records import DEVICES
from stitchcore.errors import Refusal
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.transforms.pad_bounded import padded
from stitchcore.runtime.gpu.lower_module import build, require
from stitchcore.runtime.gpu.program import GpuModule

TRIES = 16
"""A kernel that the compiler refuses is halved until its parts compile: of 2^15 instructions one is
left after as many tries."""


def compile_for_gpu(
    module: Module, target: str, options: BuildOptions | None = None, updates: bool = False
) -> GpuModule:
    """`module` for devices of `target` ("sm_90"), `updates` as in `build`. A kernel that NVRTC
    refuses, or of which not one block fits the device, is planned again in parts; what it was
    refused for is in the result, as is what single instructions are refused for.

    Raises Refused, with its reason, for what no memory holds.
    """
    start = State(padded(module), DEVICES[target], options or BuildOptions())
    told: list[Refusal] = []
    for _ in range(TRIES):
        planned = run_stages(start, PLANNED, {})
        assert planned.plan is not None
        require(planned.plan)
        made = run_stages(planned, STAGES[len(PLANNED) :], {})
        if not made.refused:
            break
        told += made.refused
        start = again(start, made)
    found = build(made, updates)
    return replace(found, refused=(*told, *found.refused))
