"""GPUs: one record each. A new one is an entry of GPUS.

Sizes are the vendor's. Of `timing`: `cpi`, cycles until a dependent instruction of the same warp
can go on. float32 and integer: 4, from Volta on (Jia et al. 2018, arXiv 1804.06826; Abdelkhalik et
al. 2022, arXiv 2208.11174, with 4 when dependent). Special functions 21, float64 8 (64 where there
are two lanes): the latencies of Accel-Sim's tested configurations. Shared memory 19, 23, 29, 30
(Jia; Abdelkhalik; Luo et al. 2024, arXiv 2402.13499); a shuffle goes through the same unit and is
taken to cost as much, a barrier 22 (Zhang et al. 2020, for Volta). Loads from global memory: 460
(V100), 636 (RTX 4090), 690 (GH200) and 860 (B200) as markdewing/AI_kernels measured (its folder
latency); 466 (A100) after Luo et al.; for sm_86, of which none is known to us, the A100's.

`lanes`, results per cycle of a multiprocessor: CUDA C++ Programming Guide, "Throughput of Native
Arithmetic Instructions" (5.4.1 of version 12); shared memory and gathered loads: 32 banks, 32
lanes. Clocks are boost clocks of the vendors' data sheets.

Read where they are cited: markdewing's and Accel-Sim's figures and the Guide's table of throughput.
Those of Jia, Abdelkhalik, Luo and Zhang are cited from memory and want checking; a table that was
read (PMC10448217, table 3: V100 to H100) has 4 cycles for arithmetic, 20 for shared memory and 400
for global memory. Nothing here was measured by this project: no GPU was there. `stitch calibrate`
fits `lanes` to one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from stitchcore.device.timing import Classes, Timing


@dataclass(frozen=True)
class Multiprocessor:
    """Limits of one streaming multiprocessor. Registers are 32-bit words, memory is in bytes."""

    registers: int
    threads: int
    blocks: int
    shared_bytes: int
    shared_bytes_per_block: int
    reserved_bytes_per_block: int
    shared_granularity: int
    count: int


@dataclass(frozen=True)
class Gpu:
    """A GPU as its data sheet has it; `phase_seconds` are those of a grid barrier."""

    multiprocessor: Multiprocessor
    timing: Timing
    cache_bytes: int
    bytes_per_second: float
    flops_per_second: float
    phase_seconds: float = 2e-6


def _cpi(float64: float, shared: float, memory: float) -> Classes:
    return Classes(4, 4, 21, float64, shared, shared, 22, memory)


def _lanes(float32: float, float64: float) -> Classes:
    return Classes(float32, 64, 16, float64, 32, 32, 16, 32)


GPUS: Mapping[str, Gpu] = {
    "sm_70": Gpu(
        Multiprocessor(65536, 2048, 32, 98304, 98304, 0, 256, 80),
        Timing(1.53e9, _cpi(8, 19, 460), _lanes(64, 32)),
        *(6 * 2**20, 9.0e11, 1.4e13, 2.6e-6),
    ),
    "sm_80": Gpu(
        Multiprocessor(65536, 2048, 32, 167936, 166912, 1024, 128, 108),
        Timing(1.41e9, _cpi(8, 23, 466), _lanes(64, 32)),
        *(40 * 2**20, 1.55e12, 1.9e13),
    ),
    "sm_86": Gpu(
        Multiprocessor(65536, 1536, 16, 102400, 101376, 1024, 128, 72),
        Timing(1.695e9, _cpi(64, 23, 466), _lanes(128, 2)),
        *(6 * 2**20, 6.0e11, 3.1e13),
    ),
    "sm_89": Gpu(
        Multiprocessor(65536, 1536, 24, 102400, 101376, 1024, 128, 58),
        Timing(2.04e9, _cpi(64, 30, 636), _lanes(128, 2)),
        *(48 * 2**20, 3.0e11, 3.0e13),
    ),
    "sm_90": Gpu(
        Multiprocessor(65536, 2048, 32, 233472, 232448, 1024, 128, 132),
        Timing(1.98e9, _cpi(8, 29, 690), _lanes(128, 64)),
        *(50 * 2**20, 3.35e12, 6.0e13),
    ),
    "sm_100": Gpu(
        Multiprocessor(65536, 2048, 32, 233472, 232448, 1024, 128, 148),
        Timing(1.965e9, _cpi(8, 29, 860), _lanes(128, 64)),
        *(126 * 2**20, 8.0e12, 7.5e13),
    ),
}
"""By target: V100, A100, A10, L4, H100, B200. Counts are those of the smaller data centre cards (an
A40 has 84 of sm_86): at load the launch library takes the device's own."""

SHARED_EVERYWHERE = 49152
"""Bytes of shared memory that a block has on every GPU, unasked."""


def gpu_of(target: str) -> Gpu | None:
    """The record of "sm_NN": where there is none that of the newest older GPU, without more shared
    memory than every GPU has; None for what is older than all."""
    if target in GPUS:
        return GPUS[target]
    number = target.removeprefix("sm_")
    if number == target or not number.isdecimal():
        return None
    older = {int(name[3:]): gpu for name, gpu in GPUS.items() if int(name[3:]) <= int(number)}
    if not older:
        return None
    nearest = older[max(older)]
    unit = replace(nearest.multiprocessor, shared_bytes_per_block=SHARED_EVERYWHERE)
    return replace(nearest, multiprocessor=unit)
