"""A module compiled for a GPU: all stages, then steps. Needs NVRTC, and neither GPU nor driver."""

from __future__ import annotations

from dataclasses import replace

from stitchcore.compiler.pipeline import run
from stitchcore.compiler.stages import (
    PLANNED,
    BuildOptions,
    ModuleState,
    compiled,
    stages_for,
    without_unbuildable,
)
from stitchcore.device.records import device_of
from stitchcore.errors import Reason, Refusal, Refused
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.transforms.pad_bounded import padded
from stitchcore.runtime.gpu.lower_module import lower_module, require
from stitchcore.runtime.gpu.program import GpuModule

TRIES = 16
"""A kernel that the compiler refuses is halved until its parts compile: of 2^15 instructions one is
left after as many tries."""


def compile_for_gpu(
    module: Module, target: str, options: BuildOptions | None = None, updates: bool = False
) -> GpuModule:
    """`module` for devices of `target` ("sm_90"), `updates` as in `lower_module`. A kernel that
    NVRTC refuses, or of which not one block fits the device, is planned again in parts; what it was
    refused for is in the result, as is what single instructions are refused for.

    Raises Refused, with its reason, for what no memory holds.
    """
    device = device_of(target)
    if device is None:
        raise Refused(target, Reason.WRONG_TARGET, "no such GPU is known")
    start = ModuleState(padded(module), device, options or BuildOptions())
    refused: list[Refusal] = []
    for _ in range(TRIES):
        seconds: dict[str, float] = {}
        planned = run(PLANNED, start, seconds=seconds)
        assert planned.plan is not None
        require(planned.plan)
        tried = run(stages_for(device)[len(PLANNED) :], planned, seconds=seconds)
        if not tried.refused:
            break
        refused += tried.refused
        start = without_unbuildable(start, tried)
    lowered = lower_module(compiled(tried, seconds), updates)
    return replace(lowered, refused=(*refused, *lowered.refused))
