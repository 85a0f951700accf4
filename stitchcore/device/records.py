"""One record per device: what schedules and the cost model may know about it.

Seconds, bytes and counts. CPU records describe an instruction-set level, not a chip: coefficients
are those of one machine, and `stitch calibrate` measures another's (calibrate.py), which is written
and read as JSON. GPUs are in gpus.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import msgspec

from stitchcore.device.gpus import GPUS, Gpu, gpu_of
from stitchcore.device.timing import Timing, timing_of
from stitchcore.errors import Reason, Refused


@dataclass(frozen=True)
class Call:
    """What a library's call costs beside its work, and its float32 operations a second."""

    seconds: float
    flops_per_second: float


@dataclass(frozen=True)
class Gemm:
    """Prices of products of float32 matrices: a library's call for one pair, that for many pairs,
    and the operations a second of a kernel's own loops where columns fill whole vectors, or warps.

    Of a CPU: `python -m bench.contractions`, with one core, and `--batched`, with two, on an AMD
    EPYC with AVX-512, for the lower levels with oneDNN held to theirs (ONEDNN_MAX_CPU_ISA). Of a
    GPU none was measured by this project (`_gemm`).
    """

    call: Call
    batched: Call
    kernel_flops_per_second: float


@dataclass(frozen=True)
class Device:
    """A target of compilation. `target` is the key used in queues, artifacts and on the CLI."""

    target: str
    kind: str  # "cpu" | "gpu"
    units: int  # cores a schedule may count on, or streaming multiprocessors
    vector_bytes: int  # widest useful vector load
    lanes: int  # 1 on a CPU; threads of a block on a GPU
    group_bytes: int  # L1 data cache of a core, or shared memory a block may use
    cache_bytes: int  # last-level cache share
    bytes_per_second: float  # off-chip bandwidth of all units
    flops_per_second: float  # simple float32 operations of all units
    launch_seconds: float  # one more operation in the framework's executor, or one kernel launch
    phase_seconds: float  # one more phase inside a kernel
    cached_speedup: float = 4.0  # of transfers that the cache serves, against off-chip ones
    overlap: float = 0.95  # share of the shorter of memory and arithmetic time that hides
    unit_share: float = 1.0  # of the off-chip bandwidth that one unit alone reaches
    inline_seconds: float = 0.0  # work of one unit up to which no other is called to help
    timing: Timing | None = None  # of a GPU's instructions
    gemm: Gemm | None = None  # None: products of matrices stay the library's

    @property
    def one_unit(self) -> Device:
        """A single unit of this device as a device: what one thread has on a CPU."""
        return replace(
            self,
            units=1,
            bytes_per_second=self.bytes_per_second * self.unit_share,
            cached_speedup=self.cached_speedup / self.units / self.unit_share,
            flops_per_second=self.flops_per_second / self.units,
            unit_share=1.0,
            phase_seconds=0.0,
        )


CPU = (4.0, 0.2, 0.7, 2e-4)
"""`cached_speedup` and what follows it, of the CPU records. The plug-in calls no second thread for
less than 0.2 ms of work (inject/native/threads.cc)."""


CUBLAS_SECONDS = 1.5e-6
"""What the shortest call of cuBLAS takes beyond any kernel's launch. Published, not measured: of
float32 products of 128 and 256 a side 4.0 and 7.2 us (JuliaGPU/GemmKernels.jl, pull request 169),
that is 3.6 us beside 9.2e12 operations a second, and of batches of 256x16x16 3.1 us (RTX 5090,
ggml-org/llama.cpp, pull request 24426); of these some 2 are an empty kernel's."""

L1_LANES = 32
"""Words of factors that a multiprocessor's first cache gives its lanes in a cycle; a product takes
two of them, a multiplication and an addition."""


def _gemm(gpu: Gpu) -> Gemm:
    """What is derived of a GPU, in favour of the library: it is taken to reach the data sheet's
    float32 rate with small products too (9.2e12 of 17e12 in the source above; by TF32 more)."""
    cycles = max(2 / L1_LANES, 2 / gpu.timing.lanes.float32)
    loops = 2 * gpu.multiprocessor.count * gpu.timing.hertz / cycles
    call = Call(CUBLAS_SECONDS, gpu.flops_per_second)
    return Gemm(call, call, loops)


def _gpu(target: str, gpu: Gpu) -> Device:
    return Device(
        target,
        kind="gpu",
        units=gpu.multiprocessor.count,
        vector_bytes=16,
        lanes=256,
        group_bytes=gpu.multiprocessor.shared_bytes_per_block,
        cache_bytes=gpu.cache_bytes,
        bytes_per_second=gpu.bytes_per_second,
        flops_per_second=gpu.flops_per_second,
        launch_seconds=4e-6,
        phase_seconds=gpu.phase_seconds,
        timing=gpu.timing,
        gemm=_gemm(gpu),
    )


DEVICES: dict[str, Device] = {
    device.target: device
    for device in (
        Device("cpu-x86-64-v2", "cpu", 2, 16, 1, 32768, 2**20, 1.2e10, 1.6e10, 3e-6, 4e-6, *CPU,
               gemm=Gemm(Call(1.1e-6, 4.7e10), Call(2.2e-5, 8.1e10), 4.6e10)),
        Device("cpu-x86-64-v3", "cpu", 2, 32, 1, 32768, 2**20, 1.5e10, 4.8e10, 3e-6, 4e-6, *CPU,
               gemm=Gemm(Call(1.0e-6, 1.2e11), Call(2.0e-5, 2.0e11), 9.5e10)),
        Device("cpu-x86-64-v4", "cpu", 2, 64, 1, 32768, 2**20, 1.8e10, 8.0e10, 3e-6, 4e-6, *CPU,
               gemm=Gemm(Call(1.1e-6, 2.3e11), Call(3.0e-5, 2.5e11), 1.6e11)),
        *(_gpu(target, gpu) for target, gpu in GPUS.items()),
    )
}  # fmt: skip
"""By target."""


def device_of(target: str) -> Device | None:
    """The record of a target; of a GPU that has none the nearest one's (gpus.gpu_of)."""
    if target in DEVICES:
        return DEVICES[target]
    gpu = gpu_of(target)
    return None if gpu is None else _gpu(target, gpu)


def read(path: Path) -> Device:
    """A record that `stitch calibrate` wrote. Raises Refused(PARSE_ERROR) saying what is wrong."""
    kinds: dict[str, Callable[[Any], Any]] = {"str": str, "int": int, "float": float}
    kinds["Timing | None"] = lambda timing: timing if timing is None else timing_of(timing)
    kinds["Gemm | None"] = lambda gemm: gemm if gemm is None else msgspec.convert(gemm, Gemm)
    try:
        record = {"timing": None, "gemm": None, **json.loads(path.read_text())["device"]}
        values = {
            field.name: kinds[str(field.type)](record[field.name]) for field in fields(Device)
        }
    except (OSError, KeyError, TypeError, ValueError, msgspec.ValidationError) as error:
        why = f"{type(error).__name__}: {error}"
        raise Refused(str(path), Reason.PARSE_ERROR, why) from error
    return Device(**values)
