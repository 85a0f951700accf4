"""How far each kernel of the workloads is from a GPU's bandwidth, by a model that needs no GPU.

    python -m bench.cuda_model [--target sm_90] [--cache DIR] [NAME...]

Of each kernel: instructions, registers and shared memory of its cubin (bench/sass.py, ptxas's
log); sectors of each request and turns of shared memory's banks from the addresses that sampled
blocks ask for at full size (tests/emulator/trace.py); cycles of its loops (compiler/latency.py).
Its time is the grid barriers and the longest of these:

    loops     its phases by the latency-evaluator: waits, issue, transfers by the lanes it has
    first     lines that the first cache looks up, and turns of shared memory, one a cycle
    second    sectors that blocks touch, at the second cache's bandwidth

The roofline is its buffers once, at the bandwidth of the device's memory, though caches may hold
them. What is lost is the time beyond that roofline at 90 %, without the launch, for all launches of
one step; loops and branches count once. None of it was held to a GPU. Goes on where it was stopped:
figures of a module are taken again where it is named. Writes bench/results/cuda_model.md.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from bench import record, sass
from stitchcore.codegen import cuda
from stitchcore.compiler import latency
from stitchcore.compiler.pipeline import run
from stitchcore.compiler.stages import PLANNED, BuildOptions, ModuleState
from stitchcore.device.gpus import GPUS
from stitchcore.device.records import DEVICES, Device
from stitchcore.fusion.text import bodies
from stitchcore.launch.cuda_parameters import is_cooperative
from stitchcore.launch.cuda_program import grid
from stitchcore.loop_ir import index
from stitchcore.loop_ir.layout import bytes_of
from stitchcore.loop_ir.nodes import Kernel, Role
from stitchcore.toolchain import cuda_compiler
from stitchcore.toolchain.launch_bounds import Fit
from tests.emulator import trace
from tests.emulator.program import Look, Program, compile_text
from tests.hlo import workloads

SHARE = 0.9
"""Of the bandwidth: what a kernel should reach."""

WORST = 10
OTHER_SIZES = frozenset(other for _, other, _, _ in workloads.TWINS)
FIGURES = record.raw(record.RESULTS / "cuda_model.json")


@dataclass(frozen=True)
class Asked:
    """Of a whole launch, scaled from the sampled blocks: requests to memory, the sectors that they
    take and would take with no waste, lines; of shared memory turns; bytes that blocks touch, each
    sector once a block, and of each buffer at most once (`moved`). The `place` that wastes most."""

    requests: float
    sectors: float
    least_sectors: float
    lines: float
    turns: float
    least_turns: float
    touched: float
    moved: float
    place: str
    cut: bool


@dataclass(frozen=True)
class Modelled:
    """A kernel that one step launches `uses` times. Seconds are of one launch, without the launch
    itself; `terms` are what its time is made of."""

    module: str
    name: str
    uses: int
    phases: int
    grid: int
    wave: int
    held: int
    threads: int
    registers: int
    shared_bytes: int
    instructions: dict[str, int]
    asked: Asked
    terms: dict[str, float]
    roofline: float
    seconds: float
    why: str

    @property
    def lost(self) -> float:
        return self.uses * max(self.seconds - self.roofline / SHARE, 0.0)


def modelled(name: str, target: str, cache: Path | None) -> Iterator[Modelled]:
    """The kernels of a module and of its loop bodies, each once."""
    device = DEVICES[target]
    state = run(PLANNED, ModuleState(workloads.module(name), device, BuildOptions()))
    uses = launches(state)
    units, _ = cuda_compiler.compile_kernels(state.kernels, target, cache)
    for unit in units:
        operations = sass.operations(unit.program.data)
        program = compile_text(cuda.render(unit.kernels), look=Look.TRACED)
        for kernel, fit in zip(unit.kernels, unit.fits, strict=True):
            counted = sass.by_class(operations[kernel.name])
            yield _modelled(name, kernel, fit, uses[kernel.name], counted, program, device)


def launches(state: ModuleState) -> Counter[str]:
    """How often each kernel of a module is launched in a step, by its name."""
    assert state.plan is not None
    numbers = [*state.of]
    for body in bodies(state.plan):
        numbers += state.inner[body]
    return Counter(state.kernels[number].name for number in numbers)


def _modelled(
    module: str,
    kernel: Kernel,
    fit: Fit,
    uses: int,
    instructions: dict[str, int],
    program: Program,
    device: Device,
) -> Modelled:
    timing = device.timing
    assert timing is not None
    blocks = index.evaluate(grid(kernel), {})
    blocks = max(min(blocks, fit.wave) if is_cooperative(kernel) else blocks, 1)
    asked = _asked(kernel, program, blocks)
    uncached = replace(device, cached_speedup=1.0)
    phases = latency.phases(kernel, uncached, None, fit.blocks)
    cycle = 1 / timing.hertz / min(device.units, blocks)
    terms = {
        "loops": sum(phase.seconds for phase in phases),
        "first": (asked.lines + asked.turns) * cycle,
        "second": asked.touched / (device.bytes_per_second * device.cached_speedup),
    }
    barriers = device.phase_seconds * (len(phases) - 1)
    roofline = asked.moved / device.bytes_per_second
    seconds = max(barriers + max(terms.values()), roofline)
    terms = {"barriers": barriers, **terms}
    return Modelled(
        module=module,
        name=kernel.name,
        uses=uses,
        phases=len(kernel.phases),
        grid=blocks,
        wave=fit.wave,
        held=fit.blocks,
        threads=fit.threads,
        registers=fit.resources.registers,
        shared_bytes=fit.shared_bytes,
        instructions=instructions,
        asked=asked,
        terms=terms,
        roofline=roofline,
        seconds=seconds,
        why=_why(terms, phases, asked),
    )


def _why(terms: dict[str, float], phases: Sequence[latency.PhaseSeconds], asked: Asked) -> str:
    """What the time is spent on, most of it."""
    most = max(terms, key=lambda name: terms[name])
    if most == "barriers":
        return f"{len(phases) - 1} grid barriers"
    if most == "first":
        if asked.turns - asked.least_turns > asked.lines:
            return f"banks of shared memory at {asked.place}"
        return f"{asked.lines / max(asked.requests, 1):.1f} lines a request, at {asked.place}"
    if most == "second":
        return f"blocks read the same again, {asked.touched / max(asked.moved, 1):.1f} times"
    phase = max(phases, key=lambda one: one.seconds)
    told = {
        "waves": "waves of tasks that wait",
        "task": "the longest task waits",
        "issue": "instructions",
        "transfers": "transfers: few lanes, or part of each sector",
    }
    longest = max(told, key=lambda name: getattr(phase, name))
    return f"phase {phases.index(phase) + 1} of {len(phases)}: {told[longest]}"


def _asked(kernel: Kernel, program: Program, blocks: int) -> Asked:
    traces = list(trace.of_kernel(kernel, program, blocks, trace.MOST_ACCESSES))
    scale = blocks / len(traces)
    memory, shared = [], []
    for one in traces:
        for requests in one.requests:
            if requests.buffer == "shared":
                shared.append(requests)
            elif requests.buffer not in ("words", "arrived", "failed"):
                memory.append(requests)
    wasted: Counter[int] = Counter()
    for requests in (*memory, *shared):
        wasted[requests.address] += requests.units - requests.least
    worst = max(wasted, key=lambda address: wasted[address], default=0)
    places = trace.lines(program, [worst]) if worst else {}
    sectors: Counter[str] = Counter()
    for one in traces:
        sectors.update(one.sectors)
    moved = 0.0
    for buffer in kernel.with_role(Role.INPUT) + kernel.with_role(Role.OUTPUT):
        whole = index.evaluate(bytes_of(buffer), {})
        moved += min(whole, sectors[buffer.name] * scale * latency.SECTOR)
    return Asked(
        requests=scale * sum(one.requests for one in memory),
        sectors=scale * sum(one.units for one in memory),
        least_sectors=scale * sum(one.least for one in memory),
        lines=scale * sum(one.lines for one in memory),
        turns=scale * sum(one.units for one in shared),
        least_turns=scale * sum(one.least for one in shared),
        touched=scale * latency.SECTOR * sum(sectors.values()),
        moved=moved,
        place=str(places[worst][0]) if worst and places[worst] else "",
        cut=any(one.cut for one in traces),
    )


def table(found: Sequence[Modelled], target: str) -> str:
    """A row of each module, and the kernels that lose most."""
    lines = [
        f"{target}, modelled, not measured. *Sectors*: of 32 bytes, that a warp's request takes, "
        "and would take with no waste. *Banks*: turns of shared memory, by those without a "
        "conflict. *Bandwidth*: the roofline's part of the time, of all launches of a step.",
        "",
        "| module | kernels | instructions | most registers | sectors, least | banks, least "
        "| roofline | time | bandwidth |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in sorted({one.module for one in found}):
        lines.append(_module_row(name, [one for one in found if one.module == name]))
    cut = sum(one.asked.cut for one in found)
    lines += [
        "",
        f"{len(found)} kernels, {cut} of them with blocks that were cut off. Below "
        f"{SHARE:.0%} of the bandwidth: {sum(_share(one) < SHARE for one in found)}.",
        "",
        f"The {WORST} farthest from {SHARE:.0%}, by the time that they lose in a step:",
        "",
        "| kernel | launches | lost | bandwidth | grid, wave | registers | sectors, least "
        "| banks, least | why |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    worst = sorted(found, key=lambda one: -one.lost)[:WORST]
    lines += [_kernel_row(one) for one in worst]
    return "\n".join(lines) + "\n"


def _share(one: Modelled) -> float:
    return one.roofline / one.seconds if one.seconds else 1.0


def _module_row(name: str, kernels: Sequence[Modelled]) -> str:
    roofline = sum(one.uses * one.roofline for one in kernels)
    seconds = sum(one.uses * one.seconds for one in kernels)
    cells = (
        name,
        len(kernels),
        sum(sum(one.instructions.values()) for one in kernels),
        max(one.registers for one in kernels),
        _pair(kernels, "sectors", "requests"),
        _banks(kernels),
        _microseconds(roofline),
        _microseconds(seconds),
        f"{roofline / seconds:.0%}",
    )
    return "| " + " | ".join(map(str, cells)) + " |"


def _kernel_row(one: Modelled) -> str:
    cells = (
        f"{one.module} {one.name}",
        one.uses,
        _microseconds(one.lost),
        f"{_share(one):.0%}",
        f"{one.grid}, {one.wave}",
        one.registers,
        _pair([one], "sectors", "requests"),
        _banks([one]),
        one.why,
    )
    return "| " + " | ".join(map(str, cells)) + " |"


def _pair(kernels: Sequence[Modelled], of: str, each: str) -> str:
    requests = sum(one.uses * getattr(one.asked, each) for one in kernels) or 1
    taken, least = (
        sum(one.uses * getattr(one.asked, field) for one in kernels) / requests
        for field in (of, f"least_{of}")
    )
    return f"{taken:.1f}, {least:.1f}"


def _banks(kernels: Sequence[Modelled]) -> str:
    least = sum(one.uses * one.asked.least_turns for one in kernels)
    turns = sum(one.uses * one.asked.turns for one in kernels)
    return f"{turns / least:.2f} times" if least else "none"


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f} us"


def read() -> list[Modelled]:
    """Figures of earlier runs."""
    kept: list[dict[str, Any]] = json.loads(FIGURES.read_text()) if FIGURES.exists() else []
    return [Modelled(**{**one, "asked": Asked(**one["asked"])}) for one in kept]


def main(arguments: Sequence[str] | None = None) -> int:
    """Model, write, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.cuda_model")
    parser.add_argument("--target", default="sm_90", choices=sorted(GPUS))
    parser.add_argument("--cache", type=Path, default=None)
    parser.add_argument("name", nargs="*")
    given = parser.parse_args(arguments)
    found = read()
    known = {one.module for one in found}
    names = given.name or [n for n in workloads.NAMES if n not in known | OTHER_SIZES]
    for name in track(names, "modules", console=Console(stderr=True)):
        fresh = list(modelled(name, given.target, given.cache))
        found = [*(one for one in found if one.module != name), *fresh]
        record.write_figures(FIGURES, [asdict(one) for one in found])
    text = table(found, given.target)
    command = "python -m bench.cuda_model"
    record.write_table(record.RESULTS / "cuda_model.md", text, command)
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
