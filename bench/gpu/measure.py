"""`python -m bench.gpu.measure NAME`: one module on this machine's GPU, in a process of its own.

What one module does to a GPU (a fault, memory gone) cannot touch the next one's figures. Most of
its time goes to compilers (NVRTC, XLA, Inductor), so modules are compiled side by side; then each
is measured while no other one is compiled or measured.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

from bench.gpu import trace
from bench.gpu.entrants import (
    CAPTURED,
    INDUCTOR,
    STITCHED,
    TOGETHER,
    XLA,
    Entrant,
    Place,
    agreement,
    compiled,
    ours,
    xla,
)
from bench.gpu.inductor import NotExpressed
from bench.gpu.report import Figures, Machine, Row, write_row
from bench.gpu.timing import Clock
from bench.gpu.trace import Traced
from bench.xla import read
from stitchcore.errors import Refused
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import topological
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.text.parser import parse
from stitchcore.inject import build
from stitchcore.runtime.cuda_library import CudaLibrary, LaunchError
from stitchcore.runtime.gpu.cupy_device import CupyDevice
from stitchcore.verify.inputs import integer_limit, plausible
from stitchcore.verify.timing import Comparison

WORKLOADS = Path(__file__).resolve().parents[1] / "workloads"
NO_GPU = 2
TRACED_ROUNDS = 7
LARGE_ROUNDS = 7
INDUCTOR_SECONDS = 90
"""What torch.compile may take for one module."""


@dataclass(frozen=True)
class Bench:
    """What a run needs of its machine. `torch` is PyTorch's name of the device."""

    machine: Machine
    place: Place
    clock: Clock
    torch: str


@dataclass(frozen=True)
class Taken:
    """Seconds: of steps by the host's clock; of the memory-intensive part by the trace, or None;
    of our kernels alone by the device's events. `large` are figures of kernels over 64 MB."""

    steps: Comparison
    traced: Traced | None
    events: Comparison
    large: Sequence[tuple[str, int, float, float]]


def measure(
    bench: Bench, name: str, rounds: int, cache: Path | None, lock: Path | None
) -> tuple[Machine, Row]:
    """One module, all who can run it. The machine's copy bandwidth is taken with it."""
    text = read(WORKLOADS / f"{name}.hlo.xz")
    module = parse(text)
    given = plausible(module, {}, 0, integer_limit(module, {}))
    with ExitStack() as stack:
        with held(lock, fcntl.LOCK_SH):
            made = compiled(module, bench.place.target, cache)
            entrants, notes = stack.enter_context(ours(made, given, bench.place))
            try:
                entrants.append(xla(text, module, given))
            except Exception as error:  # XLA's own errors have no common class
                notes.append(f"{XLA}: {_said(error)}")
            entrants += _inductor(bench, module, given, notes)
            error = _error(entrants, module)
        with held(lock, fcntl.LOCK_EX):
            machine = replace(bench.machine, bytes_per_second=bench.clock.copy_bandwidth())
            if not any(one.name == STITCHED for one in entrants):
                return machine, Row(name, {}, {}, (), error, tuple(notes))
            taken = _taken(bench, machine, entrants, rounds, notes)
    return machine, row(name, machine, entrants, taken, error, notes)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:200]}"


@contextmanager
def held(lock: Path | None, way: int) -> Iterator[None]:
    """While this process holds `lock`, with others (LOCK_SH) or alone (LOCK_EX)."""
    if lock is None:
        yield
        return
    with lock.open("w") as file:
        fcntl.flock(file, way)
        yield


def _inductor(bench: Bench, module: Module, given: Any, notes: list[str]) -> list[Entrant]:
    from bench.gpu.inductor_entrant import inductor

    try:
        with limited(INDUCTOR_SECONDS):
            return [inductor(module, given, bench.torch)]
    except NotExpressed as opcode:
        notes.append(f"{INDUCTOR}: not expressed: {opcode}")
    except ImportError as missing:
        notes.append(f"{INDUCTOR}: {missing}")
    except Exception as error:  # whatever torch.compile meets
        notes.append(f"{INDUCTOR}: {_said(error)}")
    return []


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raises TimeoutError within the block once it has taken so long."""

    def ended(_: int, __: FrameType | None) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, ended)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _taken(
    bench: Bench, machine: Machine, entrants: Sequence[Entrant], rounds: int, notes: list[str]
) -> Taken:
    clock, steps = bench.clock, {one.name: one.step for one in entrants}
    taken = clock.steps(steps, rounds)
    work = {one.name: one.intensive for one in entrants if one.intensive is not None}
    found: Traced | None = None
    try:
        found = trace.traced(steps, clock.flush, min(rounds, TRACED_ROUNDS))
    except Exception as error:  # the profiler needs rights that a machine may not give
        notes.append(f"memory-intensive part: no trace ({_said(error)})")
    events = clock.work(work, min(rounds, TRACED_ROUNDS))
    large = []
    for one in entrants:
        for kernel, size, launch in one.large:
            seconds = clock.work({kernel: launch}, LARGE_ROUNDS).median(kernel) / TOGETHER
            large.append((kernel, size, seconds * 1e3, size / seconds / machine.bytes_per_second))
    return Taken(taken, found, events, large)


def _error(entrants: Sequence[Entrant], module: Module) -> float | None:
    """Ours against XLA's; None where one draws its own random numbers, or there is no XLA."""
    random = any(node.opcode == op.RNG for node in topological([module.entry.root]))
    made = {one.name: one for one in entrants}
    if not {XLA, STITCHED} <= set(made) or random:
        return None
    return agreement(made[STITCHED].first, made[XLA].first)


def row(
    name: str,
    machine: Machine,
    entrants: Sequence[Entrant],
    taken: Taken,
    error: float | None,
    notes: Sequence[str],
) -> Row:
    """Figures and ratios; of a dry run only what was counted."""
    figures = {one.name: _figures(one, machine, taken) for one in entrants}
    if machine.dry:
        return Row(name, figures, {}, (), error, tuple(notes))
    parts = [("step", taken.steps)]
    if taken.traced is not None:
        parts.append(("intensive", taken.traced.intensive))
    ratios = {}
    for one in entrants:
        if one.name not in (STITCHED, CAPTURED):
            for part, seconds in parts:
                found = seconds.ratio(one.name, _best(taken.steps))
                ratios[f"{one.name}: {part}"] = (found.value, found.low, found.high)
    return Row(name, figures, ratios, taken.large, error, tuple(notes))


def _best(found: Comparison) -> str:
    """Ours as it would be used: a CUDA graph where there can be one."""
    return CAPTURED if CAPTURED in found.seconds else STITCHED


def _figures(one: Entrant, machine: Machine, taken: Taken) -> Figures:
    kernels, library = one.kernels, one.library
    if machine.dry:  # a stand-in's seconds are no figures
        return Figures(None, None, kernels, library, one.bytes, None)
    seconds, own = None, None
    if taken.traced is not None:
        window = taken.traced.windows[one.name]
        seconds = taken.traced.intensive.median(one.name)
        kernels, library = window.kernels, window.contractions
        own = window.stitched
    elif one.name in taken.events.seconds:
        own = taken.events.median(one.name)
    share = one.bytes / own / machine.bytes_per_second if own and one.bytes else None
    milliseconds = seconds * 1e3 if seconds is not None else None
    step = taken.steps.median(one.name) * 1e3
    return Figures(step, milliseconds, kernels, library, one.bytes, share)


# ---- the machine ---------------------------------------------------------------------------------
def gpu(stack: ExitStack) -> Bench:
    """This machine's GPU. Raises Refused or LaunchError where there is none."""
    device = CupyDevice()
    stack.callback(device.close)
    cuda = CudaLibrary(build.build_launch(), device.driver)
    stack.callback(cuda.close)
    clock = Clock(device)
    stack.callback(clock.close)
    runtime = device.arrays.cuda.runtime
    found = runtime.getDeviceProperties(device.arrays.cuda.Device().id)
    target = f"sm_{found['major']}{found['minor']}"
    driver = f"CUDA driver {runtime.driverGetVersion()}"
    machine = Machine(found["name"].decode(), target, driver, 0.0, False)
    return Bench(machine, Place(target, device, cuda, lambda _: None), clock, "cuda")


def dry(stack: ExitStack, computes: bool = True) -> Bench:
    """The tests' stand-in driver and host memory: every part of the way but real time."""
    from tests.runtime.host import dry_device

    device, cuda, made = stack.enter_context(dry_device(computes))
    clock = Clock(device, 1 << 12, 1 << 12)
    stack.callback(clock.close)
    machine = Machine("stand-in driver", "sm_90", "no driver", 0.0, True)
    return Bench(machine, Place("sm_90", device, cuda, made), clock, "cpu")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.measure", description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--output", type=Path, required=True, help="file of the result")
    parser.add_argument("--cache", type=Path, help="folder that keeps compiled kernels")
    parser.add_argument("--lock", type=Path, help="file that is locked while the GPU is used")
    given = parser.parse_args(arguments)
    way: Callable[[ExitStack], Bench] = dry if given.dry_run else gpu
    with ExitStack() as stack:
        try:
            bench = way(stack)
        except (Refused, LaunchError) as reason:
            print(f"bench.gpu: nothing was measured: {reason}", file=sys.stderr)
            print("  to mend it: run this on a machine with an NVIDIA GPU", file=sys.stderr)
            return NO_GPU
        found = measure(bench, given.name, given.rounds, given.cache, given.lock)
        write_row(given.output, *found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
