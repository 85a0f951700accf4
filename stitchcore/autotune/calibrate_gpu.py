"""What a GPU takes for one launch of a calibration kernel among others, by its own events."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stitchcore.autotune.least_squares import Measured
from stitchcore.compiler.pipeline import run
from stitchcore.compiler.stages import PLANNED, BuildOptions, ModuleState
from stitchcore.device.records import Device as Record
from stitchcore.errors import Reason, Refused
from stitchcore.fusion.pattern import Pattern
from stitchcore.hlo.ir.module import Module
from stitchcore.inject import build
from stitchcore.runtime.cuda_library import CudaLibrary
from stitchcore.runtime.gpu.compile_module import compile_for_gpu
from stitchcore.runtime.gpu.cupy_device import CupyDevice
from stitchcore.runtime.gpu.device import Device
from stitchcore.runtime.gpu.executor import Loaded, loaded
from stitchcore.verify.inputs import arguments

WARM_UPS, REPEATS = 3, 15
TOGETHER = 32
"""Launches between two events, as a CUDA graph: Python puts one into a stream in 20 us, for which a
GPU would wait that runs it in 2."""


@contextmanager
def this_gpu(record: Record) -> Iterator[tuple[Device, CudaLibrary]]:
    """This machine's GPU and the launch library on its driver.

    Raises Refused(NO_DEVICE) where there is none, Refused(WRONG_TARGET) where it is not what
    `record` is of.
    """
    device = CupyDevice()
    try:
        target = f"sm_{device.arrays.cuda.Device().compute_capability}"
        if target != record.target:
            raise Refused(record.target, Reason.WRONG_TARGET, f"this machine has {target}")
        library = CudaLibrary(build.build_launch(), Path(device.driver))
        try:
            yield device, library
        finally:
            library.close()
    finally:
        device.close()


def measured(
    name: str, module: Module, record: Record, device: Device, cuda: CudaLibrary
) -> Measured:
    """The one kernel that `module` becomes, and the median seconds of its launch on `device`."""
    return Measured(name, _pattern(module, record), launch_seconds(module, record, device, cuda))


def launch_seconds(
    module: Module,
    record: Record,
    device: Device,
    cuda: CudaLibrary,
    options: BuildOptions | None = None,
    judged: Callable[[Callable[[Sequence[Any]], list[Any]]], None] = lambda run: None,
) -> float:
    """Median seconds of the kernels that `module` becomes; `judged` is shown how to run them."""
    compiled = compile_for_gpu(module, record.target, options)
    inputs = arguments(module.entry.parameters, {}, 0, "positive")
    with loaded(compiled, device, cuda) as on_device:

        def run(given: Sequence[Any]) -> list[Any]:
            on_device.give(given)
            on_device.run()
            device.synchronize()
            return on_device.results()

        judged(run)
        on_device.give(inputs)
        replay = device.capture(lambda: _repeated(on_device))
        for _ in range(WARM_UPS):
            replay()
        return statistics.median(_seconds(replay, device) for _ in range(REPEATS)) / TOGETHER


def _repeated(module: Loaded) -> None:
    for _ in range(TOGETHER):
        module.kernels()


def _seconds(replay: Callable[[], None], device: Device) -> float:
    begin = device.mark()
    replay()
    return device.seconds(begin, device.mark())


def _pattern(module: Module, record: Record) -> Pattern:
    planned = run(PLANNED, ModuleState(module, record, BuildOptions()))
    assert planned.plan is not None
    (pattern,) = planned.plan.patterns
    return pattern
