"""Who is measured: our runtime in its forms, XLA:GPU, and Inductor, behind one small face."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.xla import compile_text
from stitchcore.compiler.stages import BuildOptions
from stitchcore.errors import Refused
from stitchcore.hlo.ir.module import Module
from stitchcore.runtime.cuda_library import CudaLibrary, LaunchError
from stitchcore.runtime.gpu.compile_module import compile_for_gpu
from stitchcore.runtime.gpu.device import Device
from stitchcore.runtime.gpu.executor import Loaded, capture_refused, captured, loaded
from stitchcore.runtime.gpu.program import (
    GpuModule,
    HostCall,
    LaunchRange,
    LibraryCall,
    Loop,
    Step,
    every_step,
)

Array = np.ndarray[Any, np.dtype[Any]]

STITCHED, CAPTURED, SINGLE = "stitched", "stitched, graph", "one kernel per op"
XLA, INDUCTOR = "XLA", "Inductor"


@dataclass(frozen=True)
class Entrant:
    """`step` runs the module once and returns when the device has; parameters whose memory an
    output takes are then that output (docs/decisions.md 29). `first` are the outputs of the first
    step.

    Of a step, where it is known without running it: `kernels` are launches that are no library
    call, `library` those that are, and `bytes` what those kernels move: inputs and outputs, each
    once. `intensive` puts only those kernels into the device's stream, each of `large` (name,
    bytes, call) one of them TOGETHER times.
    """

    name: str
    step: Callable[[], None]
    first: Sequence[Array]
    kernels: int | None = None
    library: int | None = None
    bytes: int | None = None
    intensive: Callable[[], None] | None = None
    large: Sequence[tuple[str, int, Callable[[], None]]] = field(default_factory=tuple)


LARGE_BYTES = 64 << 20
"""Kernels that move more are timed one by one: they should come near the copy bandwidth."""
TOGETHER = 8
"""Launches of one of them between two events, as a graph: Python alone would take as long."""


@dataclass(frozen=True)
class Place:
    """What runs our side: a device of `target`, the launch library on its driver. `made` is told of
    each module before it is loaded."""

    target: str
    device: Device
    cuda: CudaLibrary
    made: Callable[[GpuModule], None]


def compiled(
    module: Module, target: str, cache: Path | None, names: Sequence[str] = (STITCHED, SINGLE)
) -> dict[str, GpuModule | str]:
    """Stitched and one kernel per instruction, or why not: no GPU is needed for this."""
    found: dict[str, GpuModule | str] = {}
    for name in names:
        planner = "exhaustive" if name == STITCHED else "single"
        options = BuildOptions(planner=planner, cache=cache)
        try:
            found[name] = compile_for_gpu(module, target, options, updates=True)
        except Refused as reason:
            found[name] = str(reason)
    return found


@contextmanager
def ours(
    made: Mapping[str, GpuModule | str], given: Sequence[Array], place: Place
) -> Iterator[tuple[list[Entrant], list[str]]]:
    """What is compiled, on the device, stitched also as a CUDA graph; why one is missing."""
    found: list[Entrant] = []
    notes: list[str] = []
    with ExitStack() as stack:
        for name, module in made.items():
            if isinstance(module, str):
                notes.append(f"{name}: {module}")
                continue
            notes += [f"{name}: {refusal}" for refusal in module.refused]
            place.made(module)
            try:
                one = stack.enter_context(loaded(module, place.device, place.cuda))
            except (Refused, LaunchError, MemoryError) as reason:
                notes.append(f"{name}: {reason}")
                continue
            one.give(given)
            one.run()
            first = one.results()
            found.append(_entrant(name, one, first))
            if name == STITCHED:
                why = graph_refused(module, place.device)
                if why:
                    notes.append(f"{CAPTURED}: {why}")
                else:
                    launch = captured(one)
                    graph = replace(_entrant(CAPTURED, one, first), large=(), intensive=None)
                    found.append(replace(graph, step=_waited(launch, one.device)))
        yield found, notes


def graph_refused(module: GpuModule, device: Device) -> str:
    """Why a run of `module` cannot be a CUDA graph on `device`, or ""."""
    why = capture_refused(module)
    if why:
        return why
    called = any(not isinstance(step, LaunchRange) for step in every_step(module.steps))
    return "library calls of this device cannot be captured" if called and _is_host(device) else ""


def _is_host(device: Device) -> bool:
    return device.arrays is np


def _entrant(name: str, one: Loaded, first: Sequence[Array]) -> Entrant:
    kernels, library, moved = counts(one.module)
    large = []
    if name == STITCHED:
        for number, size in enumerate(one.module.kernel_bytes):
            if size > LARGE_BYTES:
                kernel = one.module.table.kernels[one.module.table.launches[number].kernel]
                replay = one.device.capture(partial(_launched, one, number))
                large.append((kernel.name, size, replay))
    work = None if one.module.waits else one.kernels
    step = _waited(one.run, one.device)
    return Entrant(name, step, first, kernels, library, moved, work, large)


def _launched(one: Loaded, number: int) -> None:
    for _ in range(TOGETHER):
        one.launch(number, 1)


def _waited(run: Callable[[], None], device: Device) -> Callable[[], None]:
    def step() -> None:
        run()
        device.synchronize()

    return step


def counts(module: GpuModule) -> tuple[int, int, int]:
    """Launches of kernels, library calls and copies, and bytes that kernels move, of one run; a
    loop of unknown length counts as one pass."""

    def add(block: Sequence[Step], times: int) -> tuple[int, int, int]:
        kernels = library = moved = 0
        for step in block:
            match step:
                case LaunchRange(first, count):
                    kernels += times * count
                    moved += times * sum(module.kernel_bytes[first : first + count])
                case LibraryCall() | HostCall():
                    library += times
                case Loop(condition, _, body, trips):
                    passes = times * (1 if trips is None else trips)
                    inner = [add(body, passes)]
                    inner += [add(condition, passes)] if trips is None else []
                    parts = zip(*inner, strict=True)
                    kernels, library, moved = (
                        a + sum(b) for a, b in zip((kernels, library, moved), parts, strict=True)
                    )
                case _:
                    library += times
        return kernels, library, moved

    return add(module.steps, 1)


def xla(text: str, module: Module, given: Sequence[Array]) -> Entrant:
    """XLA on the same text, whose aliases it honours: arguments are consumed, and the next step
    takes what was made of them. One output is waited for: they are of one execution.

    Raises ImportError without jaxlib, and XLA's own errors.
    """
    executable = compile_text(text, aliases=True)
    buffers = executable.put(given)
    last: list[Any] = []

    def step() -> None:
        last[:] = executable.start(buffers)
        for output, parameter in module.aliases:
            buffers[parameter] = last[output]
        last[-1].block_until_ready()

    step()
    contractions = sum(executable.kernels[name] for name in ("dot", "convolution", "custom-call"))
    contractions += executable.kernels["contraction"]
    kernels = executable.kernels.total() - contractions
    return Entrant(XLA, step, [np.asarray(one) for one in last], kernels, contractions)


def agreement(first: Sequence[Array], second: Sequence[Array]) -> float:
    """The largest error of an output over its largest value."""
    worst = 0.0
    for one, other in zip(first, second, strict=True):
        if one.size and one.dtype.kind == "f":
            difference = np.abs(one.astype(np.float64) - other.astype(np.float64)).max()
            worst = max(worst, float(difference / (np.abs(other).max() + 1e-30)))
    return worst if math.isfinite(worst) else math.inf
