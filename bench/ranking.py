"""Does the estimate rank? `python -m bench.ranking` times alternative plans of the same regions.

A region is one kernel of a workload module, taken out as a module of its own (with its inputs as
parameters). Its plans cut it elsewhere: as one kernel, in two and four where least is carried over,
at random places, and every instruction alone. All plans of a region run in turn in one process,
bare (bench/driver.c deals chunks to threads as the plug-in does), and each launch is charged what
the framework's executor takes for one more operation (Device.launch_seconds). Nothing measured here
went into the device record: that is calibrated on kernels of its own (`stitch calibrate`).

Told for each region: Kendall's tau-b between estimated and measured seconds, and the *regret*: how
much longer the plan with the least estimate takes than the quickest. Writes
bench/results/ranking.md.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

from bench import program, record
from bench.launches import of_kernels
from stitchcore.autotune.candidates import Cut, alternatives
from stitchcore.compiler.module import CompiledKernels
from stitchcore.compiler.pipeline import run
from stitchcore.compiler.stages import (
    PLANNED,
    BuildOptions,
    ModuleState,
    compile_kernels,
    symbol_of,
)
from stitchcore.device.host import host_device
from stitchcore.device.records import Device
from stitchcore.errors import Refusal, Refused
from stitchcore.fusion import candidates
from stitchcore.fusion.canonical import pattern_key, pattern_module, pattern_text
from stitchcore.fusion.cost import cost
from stitchcore.fusion.pattern import Feasibility, Pattern
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.text.parser import parse
from stitchcore.loop_ir.nodes import Kernel
from stitchcore.schedule.pipeline import feasible, schedule
from stitchcore.verify.inputs import arguments
from stitchcore.verify.timing import compare

WORKLOADS = Path(__file__).resolve().parents[1] / "tests" / "workloads"
LEAST, MOST = 3, 150
"""Placed instructions of a region."""
MOST_BYTES = 1 << 28
PLANS = 7
LEAST_PLANS = 4


@dataclass(frozen=True)
class Region:
    """A module of one kernel's instructions, and plans of it."""

    name: str
    module: Module
    plans: tuple[Cut, ...]


@dataclass(frozen=True)
class Ranked:
    """Seconds of each plan of a region, estimated and measured, and what it was made of."""

    name: str
    kernels: tuple[int, ...]
    estimated: tuple[float, ...]
    measured: tuple[float, ...]

    @property
    def tau(self) -> float:
        return kendall(self.estimated, self.measured)

    @property
    def regret(self) -> float:
        """Relative to the quickest plan; 0 where the estimate's choice is that."""
        chosen = self.measured[int(np.argmin(self.estimated))]
        return chosen / min(self.measured) - 1.0


def kendall(left: Sequence[float], right: Sequence[float]) -> float:
    """Kendall's tau-b, ties counted as the definition has it; 0 where one side is all ties."""
    pairs = [(i, j) for i in range(len(left)) for j in range(i)]
    signs = [(np.sign(left[i] - left[j]), np.sign(right[i] - right[j])) for i, j in pairs]
    scale = np.sqrt(float(sum(a != 0 for a, _ in signs)) * float(sum(b != 0 for _, b in signs)))
    return float(sum(a * b for a, b in signs) / scale) if scale else 0.0


# ---- regions and their plans ---------------------------------------------------------------------
def regions(name: str, most: int, device: Device) -> list[Region]:
    """At most `most` regions of a workload module, spread over their sizes."""
    with lzma.open(WORKLOADS / f"{name}.hlo.xz", "rt") as file:
        module = parse(file.read())
    state = run(PLANNED, ModuleState(module, device, BuildOptions()))
    assert state.plan is not None
    plans = [state.plan, *state.plan.nested.values()]
    distinct: dict[str, tuple[Pattern, Module]] = {}
    for plan in plans:
        for pattern in plan.patterns:
            distinct.setdefault(pattern_text(pattern), (pattern, plan.module))
    found = []
    for number, (pattern, owner) in enumerate(distinct.values()):
        one = pattern_module(pattern, owner)
        size = cost(pattern, device).bytes
        members = candidates.build(one, {}).placed()
        if LEAST <= len(members) <= MOST and size <= MOST_BYTES and not one.symbols:
            found.append((size, f"{name}:{number}", one))
    found.sort(key=lambda entry: entry[:2])
    kept = found[:: max(1, -(-len(found) // most))][:most]
    made = (
        Region(label, one, tuple(alternatives(one, device, _refusal(one), PLANS)))
        for _, label, one in kept
    )
    return [region for region in made if len(region.plans) >= LEAST_PLANS]


def _refusal(module: Module) -> Feasibility:
    """Why the scheduler takes no pattern of `module`."""

    def refusal(pattern: Pattern, device: Device) -> Refusal | None:
        made = _scheduled(pattern, module, device)
        return made if isinstance(made, Refusal) else None

    return refusal


def _scheduled(pattern: Pattern, module: Module, device: Device) -> Kernel | Refusal:
    refusal = feasible(pattern, device)
    if refusal is not None:
        return refusal
    try:
        return schedule(pattern, module, device, symbol_of(pattern_key(pattern)))
    except Refused as refused:
        return refused.refusal


# ---- measuring -----------------------------------------------------------------------------------
def ranked(region: Region, device: Device, threads: int, rounds: int, seconds: float) -> Ranked:
    """Compile the plans of `region` and time them in turn."""
    patterns = {pattern_key(pattern): pattern for plan in region.plans for pattern in plan}
    kernels = {key: _scheduled(one, region.module, device) for key, one in patterns.items()}
    compiled = compile_kernels(
        {key: kernel for key, kernel in kernels.items() if isinstance(kernel, Kernel)},
        device,
        BuildOptions(jobs=os.cpu_count() or 1),
    )
    bound = {
        str(number): _bound(region, plan, compiled, device, threads)
        for number, plan in enumerate(region.plans)
    }
    clock = time.thread_time if threads == 1 else time.perf_counter
    calls = {name: one.run for name, one in bound.items()}
    result = compare(calls, rounds, 0.003, seconds, clock)
    launch = device.launch_seconds
    return Ranked(
        region.name,
        tuple(map(len, region.plans)),
        tuple(sum(cost(pattern, device).seconds for pattern in plan) for plan in region.plans),
        tuple(
            result.median(str(number)) + len(plan) * launch
            for number, plan in enumerate(region.plans)
        ),
    )


def _bound(
    region: Region,
    plan: Cut,
    compiled: CompiledKernels,
    device: Device,
    threads: int,
) -> program.Bare:
    kernels = [
        (
            pattern,
            compiled.kernels[key].kernel,
            compiled.units[compiled.kernels[key].unit].library.data,
        )
        for pattern, key in ((pattern, pattern_key(pattern)) for pattern in plan)
    ]
    parameters = region.module.entry.parameters
    names = [f"p{number}" for number in range(len(parameters))]
    whole = of_kernels(region.module, kernels, names, device)
    given = arguments(parameters, {}, 0, "positive")
    return program.bare(whole, dict(zip(names, given, strict=True)), threads)


# ---- telling -------------------------------------------------------------------------------------
def summary(found: Sequence[Ranked]) -> dict[str, float]:
    chosen = sum(one.measured[int(np.argmin(one.estimated))] for one in found)
    best = sum(min(one.measured) for one in found)
    regrets = [one.regret for one in found]
    return {
        "regions": len(found),
        "plans": sum(len(one.measured) for one in found),
        "median_kendall": float(np.median([one.tau for one in found])),
        "mean_regret": float(np.mean(regrets)),
        "median_regret": float(np.median(regrets)),
        "loss": chosen / best - 1.0,
        "first_is_quickest": float(np.mean([one.regret == 0.0 for one in found])),
    }


def table(found: Sequence[Ranked], threads: int) -> str:
    how = "One thread's processor time" if threads == 1 else f"{threads} threads' wall time"
    told = summary(found)
    rows = [
        f"{how}. Picking by estimate loses {told['loss']:.1%} of all seconds; it "
        f"picks the quickest plan of {told['first_is_quickest']:.0%} of the regions.\n",
        "| module | regions | plans | median Kendall | mean regret |",
        "|---|---|---|---|---|",
    ]
    names = dict.fromkeys(one.name.split(":")[0] for one in found)
    for name in names:
        own = [one for one in found if one.name.split(":")[0] == name]
        told = summary(own)
        rows.append(
            f"| {name} | {told['regions']} | {told['plans']} | {told['median_kendall']:.2f} | "
            f"{told['mean_regret']:.1%} |"
        )
    told = summary(found)
    rows.append(
        f"| **all** | {told['regions']} | {told['plans']} | **{told['median_kendall']:.2f}** | "
        f"**{told['mean_regret']:.1%}** |"
    )
    return "\n".join(rows) + "\n"


def plot(found: Iterable[Ranked], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 5))
    for one in found:
        axes.plot(one.estimated, one.measured, "o", markersize=2)
    low, high = axes.get_xlim()
    axes.set(xscale="log", yscale="log", xlabel="estimated seconds", ylabel="measured seconds")
    axes.plot([max(low, 1e-6), high], [max(low, 1e-6), high], color="grey", linewidth=0.8)
    axes.set_title("Alternative plans of the same regions")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.ranking")
    every = [path.name.split(".hlo")[0] for path in sorted(WORKLOADS.glob("*.hlo.xz"))]
    parser.add_argument("name", nargs="*", default=every)
    parser.add_argument("--regions", type=int, default=8, help="of a module, at most")
    parser.add_argument(
        "--threads",
        type=int,
        choices=(1, 2),
        default=2,
        help="1: processor time, for busy machines",
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=3.0, help="of measuring a region, at most")
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    options = parser.parse_args()
    whole = host_device()
    device = whole.one_unit if options.threads == 1 else whole
    console = Console(stderr=True)
    found: list[Ranked] = []
    for name in options.name:
        chosen = regions(name, options.regions, device)
        for region in track(chosen, name, console=console):
            found.append(ranked(region, device, options.threads, options.rounds, options.seconds))
    document = {
        "processor": record.processor(),
        "threads": options.threads,
        "device": asdict(device),
        **summary(found),
        "found": [{**asdict(one), "kendall": one.tau, "regret": one.regret} for one in found],
    }
    raw = record.raw(options.out / "ranking.json")
    record.write_figures(raw, document)
    text = table(found, options.threads)
    record.write_table(options.out / "ranking.md", text, "python -m bench.ranking")
    plot(found, raw.with_suffix(".png"))
    print(text)
    print(json.dumps(summary(found)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
