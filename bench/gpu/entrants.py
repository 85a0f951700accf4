"""Who is measured: our runtime in its forms, XLA:GPU, and Inductor, behind one small face."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.xla import compile_text
from stitchcore.errors import Refused
from stitchcore.gpu.compile import compile_for_gpu
from stitchcore.gpu.device import Device
from stitchcore.gpu.execute import Loaded, capture_refused, captured, loaded
from stitchcore.gpu.steps import GpuModule, LibraryCall, Loop, Step, Stretch, every_step
from stitchcore.hlo.module import Module
from stitchcore.stages import BuildOptions
from stitchcore.target.cuda_launch import CudaLibrary

Array = np.ndarray[Any, np.dtype[Any]]

STITCHED, CAPTURED, SINGLE = "stitched", "stitched, graph", "one kernel per op"
XLA, INDUCTOR = "XLA", "Inductor"


@dataclass(frozen=True)
class Entrant:
    """`step` runs the module once and returns when the device has; `intensive` puts only what is
    not a contraction into the device's stream, or is None; `outputs` are the last step's.

    `kernels` are launches of a step that are no library call, `library` those that are, and `bytes`
    what those kernels move: inputs and outputs, each once.
    """

    name: str
    step: Callable[[], None]
    intensive: Callable[[], None] | None
    outputs: Callable[[], list[Array]]
    kernels: int
    library: int
    bytes: int | None = None
    large: Sequence[tuple[str, int, Callable[[], None]]] = field(default_factory=tuple)


LARGE_BYTES = 64 << 20
"""Kernels that move more are timed one by one: they should come near the copy bandwidth."""


@dataclass(frozen=True)
class Place:
    """What runs our side: a device of `target`, the launch library on its driver. `made` is told of
    each module before it is loaded."""

    target: str
    device: Device
    cuda: CudaLibrary
    made: Callable[[GpuModule], None]


@contextmanager
def ours(
    module: Module, given: Sequence[Array], place: Place
) -> Iterator[tuple[list[Entrant], list[str]]]:
    """Stitched, the same as a CUDA graph, and one kernel per instruction; why one is missing."""
    found: list[Entrant] = []
    notes: list[str] = []
    with ExitStack() as stack:
        for name, planner in ((STITCHED, "exhaustive"), (SINGLE, "single")):
            try:
                made = compile_for_gpu(module, place.target, BuildOptions(planner=planner))
                place.made(made)
                one = stack.enter_context(loaded(made, place.device, place.cuda))
            except (Refused, MemoryError) as reason:
                notes.append(f"{name}: {reason}")
                continue
            one.give(given)
            work = None if made.waits else one.kernels
            found.append(_entrant(name, one, one.run, work))
            if name == STITCHED:
                why = graph_refused(made, place.device)
                if why:
                    notes.append(f"{CAPTURED}: {why}")
                else:
                    graphs = captured(one), captured(one, kernels=True)
                    found.append(_entrant(CAPTURED, one, *graphs))
        yield found, notes


def graph_refused(module: GpuModule, device: Device) -> str:
    """Why a run of `module` cannot be a CUDA graph on `device`, or ""."""
    why = capture_refused(module)
    if why:
        return why
    called = any(not isinstance(step, Stretch) for step in every_step(module.steps))
    return "library calls of this device cannot be captured" if called and _is_host(device) else ""


def _is_host(device: Device) -> bool:
    return device.arrays is np


def _entrant(
    name: str, one: Loaded, run: Callable[[], None], work: Callable[[], None] | None
) -> Entrant:
    def step() -> None:
        run()
        one.device.synchronize()

    kernels, library, moved = counts(one.module)
    large = []
    if name == STITCHED:
        for number, size in enumerate(one.module.kernel_bytes):
            if size > LARGE_BYTES:
                kernel = one.module.table.kernels[one.module.table.launches[number].kernel]
                large.append((kernel.name, size, lambda n=number: one.launch(n, 1)))
    return Entrant(name, step, work, one.results, kernels, library, moved, large)


def counts(module: GpuModule) -> tuple[int, int, int]:
    """Launches of kernels, library calls and copies, and bytes that kernels move, of one run; a
    loop of unknown length counts as one pass."""

    def add(block: Sequence[Step], times: int) -> tuple[int, int, int]:
        kernels = library = moved = 0
        for step in block:
            match step:
                case Stretch(first, count):
                    kernels += times * count
                    moved += times * sum(module.kernel_bytes[first : first + count])
                case LibraryCall():
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


def xla(text: str, given: Sequence[Array]) -> Entrant:
    """XLA on the same text, without aliases (arguments are not consumed, on our side neither).

    Raises ImportError without jaxlib, and XLA's own errors.
    """
    executable = compile_text(text)
    buffers = executable.put(given)
    last: list[Any] = []

    def step() -> None:
        last[:] = executable.run(buffers)

    contractions = sum(executable.kernels[name] for name in ("dot", "convolution", "custom-call"))
    return Entrant(
        XLA,
        step,
        None,
        lambda: [np.asarray(one) for one in last],
        executable.kernels.total() - contractions,
        contractions,
    )


def agreement(first: Sequence[Array], second: Sequence[Array]) -> float:
    """The largest error of an output over its largest value."""
    worst = 0.0
    for one, other in zip(first, second, strict=True):
        if one.size and one.dtype.kind == "f":
            difference = np.abs(one.astype(np.float64) - other.astype(np.float64)).max()
            worst = max(worst, float(difference / (np.abs(other).max() + 1e-30)))
    return worst if math.isfinite(worst) else math.inf
