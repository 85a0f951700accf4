"""`python -m bench.gpu [NAME...]`: workload modules on the GPU of this machine.

Stitched, with and without a CUDA graph, against XLA:GPU on the same HLO text, PyTorch's Inductor
where the module can be expressed, and one kernel per instruction. Whole steps by the host's clock,
the memory-intensive part by the device's, interleaved, L2 flushed before each. Results go to
bench/results/gpu.{json,md,png} after each module.

Without a GPU it says so and ends with code 2. `--dry-run` runs everything but the timing on the
tests' stand-in driver and host memory, XLA on the CPU, and writes to --output only.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

from bench.gpu import trace
from bench.gpu.entrants import (
    CAPTURED,
    INDUCTOR,
    STITCHED,
    XLA,
    Entrant,
    Place,
    agreement,
    ours,
    xla,
)
from bench.gpu.inductor import NotExpressed
from bench.gpu.report import Figures, Machine, Row, table, write
from bench.gpu.timing import Clock
from bench.xla import read
from stitchcore.errors import Refused
from stitchcore.gpu.cupy_device import CupyDevice
from stitchcore.hlo import opcodes as op
from stitchcore.hlo.instruction import topological
from stitchcore.hlo.parse import parse
from stitchcore.inject import build
from stitchcore.target.cuda_launch import CudaLibrary, LaunchError
from stitchcore.verify.capture import integer_limit, plausible
from stitchcore.verify.measure import Comparison

WORKLOADS = Path(__file__).resolve().parents[1] / "workloads"
RESULTS = Path(__file__).resolve().parents[1] / "results"
NO_GPU = 2
TRACES = 5
"""Runs of XLA that are traced; each writes some megabytes."""


@dataclass(frozen=True)
class Bench:
    """What a run needs of its machine. `torch` is PyTorch's name of the device."""

    machine: Machine
    place: Place
    clock: Clock
    torch: str


def measure(bench: Bench, name: str, rounds: int) -> Row:
    """One module, all who can run it."""
    text = read(WORKLOADS / f"{name}.hlo.xz")
    module = parse(text)
    given = plausible(module.entry.parameters, {}, 0, integer_limit(module, {}))
    with ExitStack() as stack:
        entrants, notes = stack.enter_context(ours(module, given, bench.place))
        try:
            entrants.append(xla(text, given))
        except Exception as error:  # XLA's own errors have no common class
            notes.append(f"{XLA}: {type(error).__name__}: {str(error)[:200]}")
        entrants += _inductor(bench, module, given, notes)
        if not any(one.name == STITCHED for one in entrants):
            return Row(name, {}, {}, (), None, tuple(notes))
        steps = bench.clock.steps({one.name: one.step for one in entrants}, rounds)
        work = {one.name: one.intensive for one in entrants if one.intensive is not None}
        intensive = bench.clock.work(work, rounds)
        xla_seconds = _traced(bench, entrants, notes)
        large = _large(bench, entrants)
        error = _error(entrants, module)
    return _row(name, bench.machine, entrants, (steps, intensive, xla_seconds), large, error, notes)


def _inductor(bench: Bench, module: Any, given: Any, notes: list[str]) -> list[Entrant]:
    from bench.gpu.inductor_entrant import inductor

    try:
        return [inductor(module, given, bench.torch)]
    except NotExpressed as opcode:
        notes.append(f"{INDUCTOR}: not expressed: {opcode}")
    except ImportError as missing:
        notes.append(f"{INDUCTOR}: {missing}")
    except Exception as error:  # whatever torch.compile meets
        notes.append(f"{INDUCTOR}: {type(error).__name__}: {str(error)[:200]}")
    return []


def _traced(bench: Bench, entrants: Sequence[Entrant], notes: list[str]) -> float | None:
    step = next((one.step for one in entrants if one.name == XLA), None)
    if step is None or bench.machine.dry:
        return None
    try:
        return trace.device_seconds(step, bench.clock.flush, TRACES)
    except Exception as error:  # the profiler needs rights that a machine may not give
        notes.append(f"{XLA}, memory-intensive part: no trace ({type(error).__name__}: {error})")
        return None


def _large(bench: Bench, entrants: Sequence[Entrant]) -> list[tuple[str, int, float, float]]:
    found = []
    for one in entrants:
        for name, size, launch in one.large:
            seconds = bench.clock.work({name: launch}, 7).median(name)
            share = size / seconds / bench.machine.bytes_per_second
            found.append((name, size, seconds * 1e3, share))
    return found


def _error(entrants: Sequence[Entrant], module: Any) -> float | None:
    """Ours against XLA's; None where one draws its own random numbers, or there is no XLA."""
    random = any(node.opcode == op.RNG for node in topological([module.entry.root]))
    made = {one.name: one for one in entrants}
    if XLA not in made or random:
        return None
    return agreement(made[STITCHED].outputs(), made[XLA].outputs())


def _row(
    name: str,
    machine: Machine,
    entrants: Sequence[Entrant],
    taken: tuple[Comparison, Comparison, float | None],
    large: Sequence[tuple[str, int, float, float]],
    error: float | None,
    notes: Sequence[str],
) -> Row:
    steps, work, traced = taken
    figures, ratios = {}, {}
    if machine.dry:  # a stand-in's seconds are no figures
        counts = {
            o.name: Figures(None, None, o.kernels, o.library, o.bytes, None) for o in entrants
        }
        return Row(name, counts, {}, (), error, tuple(notes))
    for one in entrants:
        seconds = work.median(one.name) if one.name in work.seconds else None
        if one.name == XLA:
            seconds = traced
        share = None
        if seconds and one.bytes:
            share = one.bytes / seconds / machine.bytes_per_second
        figures[one.name] = Figures(
            steps.median(one.name) * 1e3,
            seconds * 1e3 if seconds else None,
            one.kernels,
            one.library,
            one.bytes,
            share,
        )
        if one.name not in (STITCHED, CAPTURED):
            found = steps.ratio(one.name, _best(steps))
            ratios[f"{one.name}: step"] = (found.value, found.low, found.high)
    own = work.median(_best(work)) if work.seconds else None
    if traced and own:
        ratios[f"{XLA}: intensive"] = (traced / own,) * 3
    return Row(name, figures, ratios, large, error, tuple(notes))


def _best(found: Comparison) -> str:
    """Ours as it would be used: a CUDA graph where there can be one."""
    return CAPTURED if CAPTURED in found.seconds else STITCHED


def _gpu(stack: ExitStack) -> Bench:
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
    machine = Machine(found["name"].decode(), target, driver, clock.copy_bandwidth(), False)
    return Bench(machine, Place(target, device, cuda, lambda _: None), clock, "cuda")


def _dry(stack: ExitStack) -> Bench:
    """The tests' stand-in driver and host memory: every part of the way but real time."""
    from tests.gpu.host import dry_device

    device, cuda, made = stack.enter_context(dry_device())
    clock = Clock(device, 1 << 12)
    stack.callback(clock.close)
    machine = Machine("stand-in driver", "sm_90", "no driver", clock.copy_bandwidth(1 << 12), True)
    return Bench(machine, Place("sm_90", device, cuda, made), clock, "cpu")


def main(arguments: Sequence[str] | None = None) -> int:
    names = sorted(path.name.removesuffix(".hlo.xz") for path in WORKLOADS.glob("*.hlo.xz"))
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the results")
    given = parser.parse_args(arguments)
    if given.dry_run and given.output == RESULTS:
        parser.error("a dry run needs --output FOLDER: its figures are no results")
    unknown = sorted(set(given.names) - set(names))
    if unknown:
        parser.error(f"no module {', '.join(unknown)} in {WORKLOADS}; there is {', '.join(names)}")
    chosen = given.names or (["softmax_grad"] if given.dry_run else names)
    way: Callable[[ExitStack], Bench] = _dry if given.dry_run else _gpu
    with ExitStack() as stack:
        try:
            bench = way(stack)
        except (Refused, LaunchError) as reason:
            print(f"bench.gpu: nothing was measured: {reason}", file=sys.stderr)
            print("  to mend it: run this on a machine with an NVIDIA GPU", file=sys.stderr)
            return NO_GPU
        rows: list[Row] = []
        for name in chosen:
            rows.append(measure(bench, name, 3 if given.dry_run else given.rounds))
            write(given.output, bench.machine, rows)
            print(table(bench.machine, rows[-1:]), flush=True)
        print(table(bench.machine, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
