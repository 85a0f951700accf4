"""Who took how long on the device, by one instrument for all: CUPTI, through JAX's profiler.

XLA's streams take no events from outside, so kernels are read from a trace, which has those of the
whole process: ours, XLA's and PyTorch's. All run in turn within one trace; a flush of the L2 cache,
whose kernel has a name of its own, stands before each and after the last.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu.timing import FLUSH
from stitchcore.verify.timing import Comparison

CONTRACTION = re.compile(
    r"gemm|gemv|cublas|cutlass|xmma|nvjet|cudnn|convolve|(^|_)conv(_|\d|$)|dgrad|wgrad|fprop"
    r"|splitK|(^|_)dot(_|$)",
    re.IGNORECASE,
)
"""Names of kernels that multiply matrices or convolve, libraries' and Triton's."""
STITCHED = re.compile(r"^k_[0-9a-f]{24}$")
"""Names of kernels that stitchcore wrote."""
_TRANSFER = re.compile(r"memcpy(h2d|d2h|htod|dtoh)", re.IGNORECASE)
_COPY = re.compile(r"memcpy|memset", re.IGNORECASE)


@dataclass(frozen=True)
class Event:
    """A kernel, copy or fill on a stream of a GPU; nanoseconds."""

    name: str
    start: float
    duration: float


@dataclass(frozen=True)
class Window:
    """What ran between two flushes: seconds of all but contractions and transfers, and those of
    stitchcore's own kernels among them; kernels and copies launched, and contractions."""

    intensive: float
    stitched: float
    kernels: int
    contractions: int


@dataclass(frozen=True)
class Traced:
    """By contestant: seconds of the memory-intensive part, round by round, and one round's
    window."""

    intensive: Comparison
    windows: Mapping[str, Window]


def traced(
    calls: Mapping[str, Callable[[], None]], flush: Callable[[], None], rounds: int
) -> Traced:
    """All of `calls` in turn, `rounds` times. Raises ValueError where the trace is not of them all,
    and the profiler's own errors."""
    import jax

    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = options.host_tracer_level = 0
    with tempfile.TemporaryDirectory(prefix="stitch-trace-") as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            for _ in range(rounds):
                for call in calls.values():
                    flush()
                    call()
            flush()
        found = windows(events(Path(folder)))
    return by_contestant(found, list(calls), rounds)


def by_contestant(found: Sequence[Window], names: Sequence[str], rounds: int) -> Traced:
    """Raises ValueError where a window is missing or has no kernel."""
    if len(found) != rounds * len(names) or not all(w.kernels + w.contractions for w in found):
        empty = sum(not (one.kernels + one.contractions) for one in found)
        raise ValueError(
            f"the trace has {len(found)} runs of {rounds * len(names)}, {empty} without a kernel"
        )
    seconds = {
        name: np.asarray([one.intensive for one in found[number :: len(names)]])
        for number, name in enumerate(names)
    }
    return Traced(Comparison(seconds), dict(zip(names, found, strict=False)))


def events(folder: Path) -> list[Event]:
    """What ran on GPUs' streams, of all traces in `folder`. Raises FileNotFoundError where there is
    none."""
    import jax

    paths = sorted(folder.rglob("*.xplane.pb"))
    if not paths:
        raise FileNotFoundError(f"the profiler wrote no trace to {folder}")
    return [
        one for path in paths for one in on_streams(jax.profiler.ProfileData.from_file(str(path)))
    ]


def on_streams(data: Any) -> list[Event]:
    return [
        Event(event.name, event.start_ns, event.duration_ns)
        for plane in data.planes
        if plane.name.startswith("/device:GPU")
        for line in plane.lines
        if line.name.startswith("Stream")
        for event in line.events
    ]


def windows(found: Sequence[Event]) -> list[Window]:
    """From each flush to the next, in the device's order. What is before the first, or after the
    last, is nobody's."""
    made: list[list[Event]] = []
    for event in sorted(found, key=lambda one: one.start):
        if FLUSH in event.name:
            made.append([])
        elif made:
            made[-1].append(event)
    return [_window(one) for one in made[:-1]]


def _window(found: Sequence[Event]) -> Window:
    intensive = stitched = 0.0
    kernels = contractions = 0
    for event in found:
        if _TRANSFER.search(event.name):
            continue
        if CONTRACTION.search(event.name):
            contractions += 1
            continue
        kernels += not _COPY.search(event.name)
        intensive += event.duration * 1e-9
        if STITCHED.match(event.name):
            stitched += event.duration * 1e-9
    return Window(intensive, stitched, kernels, contractions)
