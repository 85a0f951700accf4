"""Kernels to cubins for one architecture: about 20 a program, kept by content, refused one by one.

A program's text is compiled once for all processes that share a folder: entries are keyed by the
text without its comments, the headers, the options, the architecture and NVRTC's version. Where
NVRTC refuses a program its halves are tried, so that the kernel at fault is refused alone.
Registers and spills come from the compiler's log; launch_bounds.py says what follows from them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

from stitchcore.codegen import cuda
from stitchcore.device.gpus import GPUS, gpu_of
from stitchcore.errors import Reason, Refusal, Refused
from stitchcore.loop_ir.nodes import Kernel
from stitchcore.toolchain import compile_cache, launch_bounds, nvrtc, nvrtc_process
from stitchcore.toolchain.launch_bounds import Fit
from stitchcore.toolchain.nvrtc import CompiledProgram, Resources

MOST_SECTIONS = 60
"""Of a program of several kernels: beyond, compiling one again for one of them costs too much."""

Progress = Callable[[int], None]
"""Told how many further kernels are compiled or refused."""


@dataclass(frozen=True)
class CudaUnit:
    """A program: its kernels, source, cubin, and how each kernel fits its device."""

    kernels: tuple[Kernel, ...]
    source: str
    program: CompiledProgram
    fits: tuple[Fit, ...]


def compile_kernels(
    kernels: Sequence[Kernel],
    target: str,
    cache: Path | None = None,
    progress: Progress = lambda done: None,
) -> tuple[tuple[CudaUnit, ...], tuple[Refusal, ...]]:
    """Cubins of `kernels` (whose names differ) for `target`, and those that have none, with why.

    Each kernel is in one unit, in their order, or in the refusals. Raises Refused(NO_COMPILER)
    without NVRTC, Refused(WRONG_TARGET) for an architecture it does not know.
    """
    require(target)
    fitting: list[Kernel] = []
    refusals: list[Refusal] = []
    for kernel in kernels:
        try:
            launch_bounds.require_shared(kernel, target)
        except Refused as refused:
            refusals.append(refused.refusal)
            progress(1)
        else:
            fitting.append(kernel)
    units: list[CudaUnit] = []
    for batch in batches(fitting):
        compiled, refused_here = _compile_batch(batch, target, cache)
        units += compiled
        refusals += refused_here
        progress(len(batch))
    return tuple(units), tuple(refusals)


def require(target: str) -> None:
    """Raises Refused where NVRTC is missing, or `target` is older than what it compiles for or than
    any GPU whose limits are known."""
    nvrtc.compiled_for(target)
    if gpu_of(target) is None:
        raise Refused(target, Reason.WRONG_TARGET, f"limits are known from {next(iter(GPUS))} on")


def batches(kernels: Sequence[Kernel]) -> list[tuple[Kernel, ...]]:
    """`kernels` by program: at most nvrtc.BATCH, and MOST_SECTIONS sections, of them each."""
    groups: list[list[Kernel]] = []
    sections = 0
    for kernel in kernels:
        count = sum(len(phase.sections) for phase in kernel.phases)
        if not groups or len(groups[-1]) == nvrtc.BATCH or sections + count > MOST_SECTIONS:
            groups.append([])
            sections = 0
        groups[-1].append(kernel)
        sections += count
    return [tuple(batch) for batch in groups]


def rendered(kernels: Sequence[Kernel], target: str) -> str:
    """The program of `kernels` under the bounds that are assumed for them."""
    return cuda.render(kernels, _assumed(kernels, target))


def _assumed(kernels: Sequence[Kernel], target: str) -> dict[str, int]:
    return {kernel.name: launch_bounds.assumed(kernel, target) for kernel in kernels}


def compile_edited(
    kernels: Sequence[Kernel], source: str, target: str, cache: Path | None = None
) -> CudaUnit:
    """`source`, which a person changed, as it is; it has to have the kernels by name.

    Raises Refused as nvrtc.compile_cuda and launch_bounds.judged, and for spills, as nobody relaxes
    bounds that were written by hand.
    """
    program = compile_source(source, target, cache)
    unit = unit_of(kernels, source, program, _assumed(kernels, target))
    for fitted in unit.fits:
        if fitted.resources.spill_bytes:
            launch_bounds.relaxed(replace(fitted, bound=1), target)
    return unit


def compile_source(source: str, target: str, cache: Path | None = None) -> CompiledProgram:
    """One program's cubin and resources, from the cache where it has them.

    Raises Refused as nvrtc.compile_cuda, and for a program that takes NVRTC too long.
    """
    key = _key(source, target)
    if cache is not None and (cached := _read(cache, key)) is not None:
        return cached
    program = nvrtc_process.shared().compile(source, target)
    if cache is not None:
        resources = [asdict(kernel) for kernel in program.resources]
        record = {"version": program.version, "resources": resources, "seconds": program.seconds}
        compile_cache.write(cache, key, "cubin", program.data, {"target": target, **record})
    return program


def _compile_batch(
    batch: tuple[Kernel, ...], target: str, cache: Path | None
) -> tuple[list[CudaUnit], list[Refusal]]:
    """One unit where all goes well; several, or fewer kernels, where some is refused."""
    bounds = _assumed(batch, target)
    while True:
        try:
            unit = _compile_under(bounds, batch, target, cache)
        except Refused as refused:
            return _halved(batch, refused, target, cache)
        spilling = [fitted for fitted in unit.fits if fitted.resources.spill_bytes]
        if not spilling:
            return [unit], []
        try:
            bounds |= {fitted.kernel: launch_bounds.relaxed(fitted, target) for fitted in spilling}
        except Refused as refused:
            return _halved(batch, refused, target, cache)


def _compile_under(
    bounds: Mapping[str, int], batch: tuple[Kernel, ...], target: str, cache: Path | None
) -> CudaUnit:
    source = cuda.render(batch, bounds)
    program = compile_source(source, target, cache)
    return unit_of(batch, source, program, bounds)


def unit_of(
    kernels: Sequence[Kernel], source: str, program: CompiledProgram, bounds: Mapping[str, int]
) -> CudaUnit:
    """`program`, compiled from `source` under `bounds`, judged.

    Raises Refused as launch_bounds.judged, and for a kernel that the program does not have.
    """
    used = {resources.name: resources for resources in program.resources}
    for kernel in kernels:
        if kernel.name not in used:
            raise Refused(kernel.name, Reason.COMPILE_FAILED, "the source has no such __global__")
    fits = tuple(
        launch_bounds.judged(kernel, used[kernel.name], bounds[kernel.name], program.target)
        for kernel in kernels
    )
    return CudaUnit(tuple(kernels), source, program, fits)


def _halved(
    batch: tuple[Kernel, ...], refused: Refused, target: str, cache: Path | None
) -> tuple[list[CudaUnit], list[Refusal]]:
    if len(batch) == 1:
        refusal = refused.refusal
        return [], [Refusal(batch[0].name, refusal.reason, refusal.detail)]
    middle = len(batch) // 2
    units, refusals = _compile_batch(batch[:middle], target, cache)
    more, further = _compile_batch(batch[middle:], target, cache)
    return units + more, refusals + further


# ---- the cache -----------------------------------------------------------------------------------
def _key(source: str, target: str) -> str:
    plain = re.sub(r"^\s*/\*.*?\*/\s*$", "", source, flags=re.MULTILINE | re.DOTALL)
    parts = [plain, _headers(), nvrtc.nvrtc_version(), *nvrtc.options(target)]
    parts += ["ptx"] if nvrtc.is_ptx(target) else []
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@lru_cache(maxsize=1)
def _headers() -> str:
    return "\0".join((nvrtc.INCLUDE / name).read_text() for name in nvrtc.HEADERS)


def _read(cache: Path, key: str) -> CompiledProgram | None:
    entry = compile_cache.read(cache, key, "cubin")
    if entry is None:
        return None
    data, record = entry
    resources = tuple(Resources(**fields) for fields in record["resources"])
    return CompiledProgram(data, record["target"], record["version"], resources, record["seconds"])
