"""A device record's coefficients by regression over kernels that are measured for it.

Small modules are compiled as any other, each to stress one term of the estimate (fusion/cost.py):
sums of arrays from 16 KiB to 64 MiB (transfers, inside the cache and out of it), long chains of
simple operations and of transcendental ones (arithmetic), short rows (what reducing a row costs).
The coefficients are those for which the estimates differ least from the measured seconds, as the
root mean square of the logarithm of their ratio (FusionStitching 2020, section 5.4, has regression
for transfers and measured cycles for instructions). None of the kernels is of a workload, so that
what is told of predictions (bench/ranking.py) was not fitted.

Of a CPU one unit is measured by processor time, which neighbours disturb less; then all units
together, for their share of the bandwidth. What a launch and a phase cost is the framework's
executor's doing and is not measured there. Of a GPU single launches are timed by its events, all
units and the launch with them (autotune/calibrate_gpu.py); long chains of one class of instruction,
in few threads and in many, tell its latency and its throughput apart.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from stitchcore.autotune import calibrate_gpu as calibration
from stitchcore.autotune.least_squares import Measured, descended, error
from stitchcore.compiler.stages import BuildOptions, compile_module
from stitchcore.device.records import Device
from stitchcore.fusion.cost import cost
from stitchcore.fusion.pattern import Pattern
from stitchcore.hlo.ir import builder, opcodes
from stitchcore.hlo.ir.instruction import Instruction, computation
from stitchcore.hlo.ir.module import Module
from stitchcore.runtime.cpu_kernel import CpuKernel
from stitchcore.runtime.cuda_library import CudaLibrary
from stitchcore.runtime.gpu.device import Device as Gpu
from stitchcore.runtime.module import load
from stitchcore.verify.inputs import arguments

REPEATS = 9
LEAST_SECONDS = 0.002
"""Of one measurement, which repeats what is shorter."""

FITTED = ("bytes_per_second", "cached_speedup", "flops_per_second", "overlap")
GPU_FITTED = (
    "bytes_per_second",
    "cached_speedup",
    "launch_seconds",
    *(f"timing.{side}.{name}" for name in ("float32", "integer", "special", "float64")
      for side in ("lanes", "cpi")),
)  # fmt: skip

CACHES = tuple(2**power for power in range(19, 26))
"""Cache sizes that are tried, in bytes."""

CHAIN = 256
"""Operations that wait for one another, of which a launch does not hide the latency."""

Progress = Callable[[str, int, int], None]
"""(what, done, total)."""


@dataclass(frozen=True)
class Calibration:
    """A record for this machine and how well it fits: `error` is the root mean square of
    log(estimate / measured), `before` that of the record it began from."""

    device: Device
    kernels: tuple[Measured, ...]
    error: float
    before: float


def calibrate(device: Device, progress: Progress | None = None) -> Calibration:
    """Measure and fit. `device` is a record that this machine can run.

    Raises Refused(NO_DEVICE) for a GPU's record where there is none, Refused(WRONG_TARGET) where
    there is another.
    """
    if device.kind != "cpu":
        with calibration.this_gpu(device) as (gpu, cuda):
            return calibrate_gpu(device, gpu, cuda, progress)
    modules = calibration_modules()
    measured: list[Measured] = []
    for number, (name, module) in enumerate(modules.items()):
        if progress is not None:
            progress(name, number, len(modules))
        pattern, kernel = _compiled(module, device)
        measured.append(Measured(name, pattern, one_unit_seconds(kernel, pattern)))
    share = _unit_share(modules["sum of 64 MiB"], device)
    return fitted(device, tuple(measured), share)


def calibrate_gpu(
    device: Device, gpu: Gpu, cuda: CudaLibrary, progress: Progress | None = None
) -> Calibration:
    """Measure `gpu`, whose record is `device`, and fit what a launch, bytes and instructions take.

    Raises Refused for a kernel that cannot be compiled, LaunchError for one that cannot run.
    """
    modules = {**calibration_modules(), **instruction_modules()}
    measured: list[Measured] = []
    for number, (name, module) in enumerate(modules.items()):
        if progress is not None:
            progress(name, number, len(modules))
        measured.append(calibration.measured(name, module, device, gpu, cuda))
    return fitted_gpu(device, measured)


def fitted_gpu(device: Device, measured: Sequence[Measured]) -> Calibration:
    """The record for which the estimates differ least from `measured` seconds of launches.

    What a launch takes is fitted with the rest, and is not the record's: a graph's launches follow
    one another without the host, a job's are an executor's operations.
    """
    best = descended(device, measured, GPU_FITTED, _launch_seconds)
    estimated = tuple(
        replace(kernel, estimate=_launch_seconds(kernel.pattern, best)) for kernel in measured
    )
    errors = (error(record, measured, _launch_seconds) for record in (best, device))
    return Calibration(replace(best, launch_seconds=device.launch_seconds), estimated, *errors)


def _launch_seconds(pattern: Pattern, device: Device) -> float:
    return cost(pattern, device).seconds


def fitted(device: Device, measured: Sequence[Measured], unit_share: float) -> Calibration:
    """The record for which the estimates differ least from `measured` seconds of one unit."""
    unit = device.one_unit
    before = error(unit, measured, _work_seconds)
    tried = (replace(unit, cache_bytes=size) for size in CACHES)
    candidates = (descended(record, measured, FITTED, _work_seconds) for record in tried)
    best = min(candidates, key=lambda record: error(record, measured, _work_seconds))
    whole = replace(
        device,
        cache_bytes=best.cache_bytes,
        bytes_per_second=best.bytes_per_second / unit_share,
        cached_speedup=best.cached_speedup * device.units * unit_share,
        flops_per_second=best.flops_per_second * device.units,
        overlap=best.overlap,
        unit_share=unit_share,
    )
    estimated = tuple(
        replace(kernel, estimate=_work_seconds(kernel.pattern, best)) for kernel in measured
    )
    return Calibration(whole, estimated, error(best, measured, _work_seconds), before)


def _work_seconds(pattern: Pattern, unit: Device) -> float:
    return cost(pattern, unit).seconds - unit.launch_seconds


# ---- modules -------------------------------------------------------------------------------------
def calibration_modules() -> Mapping[str, Module]:
    """Modules by name; each becomes one kernel."""
    modules: dict[str, Module] = {}
    for power in range(12, 25, 2):
        x, y = (builder.parameter(number, "f32", (2**power,)) for number in range(2))
        modules[_sized("sum", 2**power)] = _module([x, y], builder.elementwise(opcodes.ADD, x, y))
    for opcode in (opcodes.EXPONENTIAL, opcodes.TANH, opcodes.LOG, opcodes.SQRT):
        for size in (2**12, 2**18):
            x = builder.parameter(0, "f32", (size,))
            modules[_sized(opcode, size)] = _module([x], builder.elementwise(opcode, x))
    for length in (8, 32):
        for size in (2**12, 2**18):
            x, y = (builder.parameter(number, "f32", (size,)) for number in range(2))
            modules[_sized(f"{length} operations", size)] = _module([x, y], _chain(x, y, length))
    for rows, columns in ((4096, 16), (2048, 64), (512, 512), (64, 8192), (4096, 1024)):
        x = builder.parameter(0, "f32", (rows, columns))
        modules[f"softmax of {rows} x {columns}"] = _module([x], _softmax(x))
    return modules


def instruction_modules() -> Mapping[str, Module]:
    """Modules for a GPU, of instructions of one class each: a value for each of few threads, which
    wait for each other's results, and for many, which keep the units busy."""
    modules: dict[str, Module] = {}
    for size in (2**12, 2**22):
        for dtype, first, second in (
            ("f32", opcodes.ADD, opcodes.MULTIPLY),
            ("s32", opcodes.ADD, opcodes.XOR),
            ("f64", opcodes.ADD, opcodes.MULTIPLY),
        ):
            x, y = (builder.parameter(number, dtype, (size,)) for number in range(2))
            root = _chain(x, y, CHAIN, (first, second))
            modules[f"{CHAIN} operations of {dtype}[{size}]"] = _module([x, y], root)
        x = builder.parameter(0, "f32", (size,))
        value = x
        for _ in range(CHAIN // 16):
            value = builder.elementwise(opcodes.TANH, value)
        modules[f"{CHAIN // 16} tanh of f32[{size}]"] = _module([x], value)
    return modules


def _sized(name: str, elements: int) -> str:
    size = elements * 4
    return f"{name} of {size >> 20} MiB" if size >= 1 << 20 else f"{name} of {size >> 10} KiB"


def _chain(
    x: Instruction,
    y: Instruction,
    length: int,
    alternating: tuple[str, str] = (opcodes.ADD, opcodes.MULTIPLY),
) -> Instruction:
    value = x
    for number in range(length):
        opcode = alternating[number % 2]
        value = builder.elementwise(opcode, value, x if number % 3 == 0 else y)
    return value


def _softmax(x: Instruction) -> Instruction:
    most = builder.reduce(x, (1,), opcodes.MAXIMUM)
    shifted = builder.elementwise(opcodes.SUBTRACT, x, builder.broadcast(most, x.shape.dims, (0,)))
    raised = builder.elementwise(opcodes.EXPONENTIAL, shifted)
    total = builder.reduce(raised, (1,), opcodes.ADD)
    return builder.elementwise(opcodes.DIVIDE, raised, builder.broadcast(total, x.shape.dims, (0,)))


def _module(parameters: Sequence[Instruction], root: Instruction) -> Module:
    return Module("calibration", computation(tuple(parameters), builder.tuple_([root])))


# ---- measuring -----------------------------------------------------------------------------------
def _compiled(module: Module, device: Device) -> tuple[Pattern, CpuKernel]:
    compiled = compile_module(module, device, BuildOptions())
    (pattern,) = compiled.plan.patterns
    (kernel,) = load(compiled)
    return pattern, kernel


def one_unit_seconds(kernel: CpuKernel, pattern: Pattern) -> float:
    """Median processor seconds of a call, less what calling from Python takes."""
    return _seconds(kernel, pattern, 1, time.thread_time)


def _unit_share(module: Module, device: Device) -> float:
    """Share of the bandwidth of all units that one has alone."""
    pattern, kernel = _compiled(module, device)
    units = min(device.units, len(os.sched_getaffinity(0)))
    alone = _seconds(kernel, pattern, 1, time.perf_counter)
    together = _seconds(kernel, pattern, units, time.perf_counter)
    return min(max(together / alone, 1 / device.units), 1.0)


def _seconds(
    kernel: CpuKernel, pattern: Pattern, threads: int, clock: Callable[[], float]
) -> float:
    inputs = arguments(pattern.inputs, {}, 0, "positive")
    with ThreadPoolExecutor(max_workers=threads) as pool:
        launch, _, idle = kernel.prepared(inputs, {}, pool, threads)
        calls = [_call_seconds(launch, clock) for _ in range(REPEATS)]
        empty = [_call_seconds(idle, clock) for _ in range(REPEATS)]
    return max(float(np.median(calls)) - float(np.median(empty)), 1e-9)


def _call_seconds(call: Callable[[], None], clock: Callable[[], float]) -> float:
    begin, count = clock(), 0
    while (passed := clock() - begin) < LEAST_SECONDS or not count:
        call()
        count += 1
    return passed / count


def write(calibrated: Calibration, path: Path) -> None:
    """The record as JSON (device/records.py reads it), with its fit beside it."""
    kernels = [
        {"name": kernel.name, "seconds": kernel.seconds, "estimate": kernel.estimate}
        for kernel in calibrated.kernels
    ]
    fit = {"error": calibrated.error, "before": calibrated.before, "kernels": kernels}
    path.write_text(json.dumps({"device": asdict(calibrated.device), "fit": fit}, indent=1) + "\n")
