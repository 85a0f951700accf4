"""What each planner's plans cost to run: `python -m bench.plans` measures what differs.

On every workload module the plans of `exhaustive` and of another planner (default `auto`) have most
kernels in common. Those that only one of them has are compiled and run alone, one thread each, by
processor time (the least of all rounds), and each launch is charged what the framework's executor
takes for one more operation. Told: seconds of what differs under both, estimated and measured, and
seconds of planning (processor time, the scheduler as judge). Writes bench/results/plans.md.
"""

from __future__ import annotations

import argparse
import gc
import lzma
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import program, record
from bench.launches import of_kernels
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
from stitchcore.fusion.canonical import outlined, pattern_key
from stitchcore.fusion.cost import cost
from stitchcore.fusion.pattern import Pattern, Plan
from stitchcore.fusion.text import bodies
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.text.parser import parse
from stitchcore.schedule.pipeline import schedule
from stitchcore.verify.inputs import arguments

WORKLOADS = Path(__file__).resolve().parents[1] / "tests" / "workloads"
ROUNDS = 15
MOST_BYTES = 1 << 29


@dataclass(frozen=True)
class Side:
    """What one planner has alone: kernels, their seconds, and seconds that planning took."""

    kernels: int
    estimated: float
    measured: float
    planning: float


@dataclass(frozen=True)
class Row:
    """A module under two planners; `left_out` kernels are too large to be run here, or symbolic."""

    module: str
    ours: Side
    other: Side
    left_out: int


def planned(module: Module, device: Device, planner: str) -> tuple[Plan, float]:
    start = time.process_time()
    state = run(PLANNED[:3], ModuleState(module, device, BuildOptions(planner)))
    assert state.plan is not None
    return state.plan, time.process_time() - start


def kernels_of(plan: Plan) -> Counter[str]:
    owners = (plan, *bodies(plan).values())
    return Counter(pattern_key(pattern) for one in owners for pattern in one.patterns)


def patterns_of(plan: Plan) -> dict[str, tuple[Pattern, Module]]:
    owners = (plan, *bodies(plan).values())
    return {pattern_key(one): (one, owner.module) for owner in owners for one in owner.patterns}


def measured(pattern: Pattern, owner: Module, device: Device) -> float:
    """Seconds of one thread for one run of `pattern`, its launch charged."""
    region, made_of = outlined(pattern, owner)
    parts = (pattern.instructions, pattern.inputs, pattern.outputs)
    whole = Pattern(*(tuple(made_of[value] for value in part) for part in parts))
    kernel = schedule(whole, region, device, symbol_of(pattern_key(pattern)))
    made = compile_kernels({"one": kernel}, device, BuildOptions())
    names = [f"p{number}" for number in range(len(region.entry.parameters))]
    bound = of_kernels(region, [(whole, kernel, made.units[0].library.data)], names, device)
    given = arguments(region.entry.parameters, {}, 0, "positive")
    bare = program.bare(bound, dict(zip(names, given, strict=True)), 1)
    taken = []
    for _ in range(ROUNDS):
        start = time.thread_time()
        bare.run()
        taken.append(time.thread_time() - start)
    return min(taken) + device.launch_seconds


def compared(name: str, planner: str, device: Device) -> Row:
    with lzma.open(WORKLOADS / f"{name}.hlo.xz", "rt") as file:
        module = parse(file.read())
    plans = [planned(module, device, one) for one in ("exhaustive", planner)]
    counts = [kernels_of(plan) for plan, _ in plans]
    alone = [counts[0] - counts[1], counts[1] - counts[0]]
    known = patterns_of(plans[0][0]) | patterns_of(plans[1][0])
    found: dict[str, float] = {}
    for key in {**alone[0], **alone[1]}:
        pattern, owner = known[key]
        if not owner.symbols and cost(pattern, device).bytes <= MOST_BYTES:
            found[key] = measured(pattern, owner, device)
            gc.collect()
    left = sum(count for one in alone for key, count in one.items() if key not in found)
    sides = [
        Side(
            sum(one.values()),
            sum(cost(known[k][0], device).seconds * n for k, n in one.items() if k in found),
            sum(found[k] * n for k, n in one.items() if k in found),
            took,
        )
        for one, (_, took) in zip(alone, plans, strict=True)
    ]
    return Row(name, sides[0], sides[1], left)


def table(rows: Sequence[Row], planner: str) -> str:
    lines = [
        "One thread's processor time. Kernels that only one of two plans has.\n",
        f"| module | kernels: exhaustive, {planner} | estimated | measured "
        f"| {planner} / exhaustive | left out | planning |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        a, b = row.ours, row.other
        ratio = f"{b.measured / a.measured:.2f}" if a.measured else "equal plans"
        lines.append(
            f"| {row.module} | {a.kernels}, {b.kernels} | {a.estimated * 1e3:.2f}, "
            f"{b.estimated * 1e3:.2f} ms | {a.measured * 1e3:.2f}, {b.measured * 1e3:.2f} ms | "
            f"{ratio} | {row.left_out} | {a.planning:.1f}, {b.planning:.1f} s |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.plans", description=__doc__)
    every = [path.name.removesuffix(".hlo.xz") for path in sorted(WORKLOADS.glob("*.hlo.xz"))]
    parser.add_argument("module", nargs="*", default=every)
    parser.add_argument("--planner", default="auto")
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    options = parser.parse_args()
    device = host_device()
    rows: list[Row] = []
    for name in options.module:
        rows.append(compared(name, options.planner, device))
        print(table(rows[-1:], options.planner).splitlines()[-1], flush=True)
        document = {"processor": record.processor(), "rows": [asdict(row) for row in rows]}
        record.write_figures(record.raw(options.out / "plans.json"), document)
        text = table(rows, options.planner)
        record.write_table(options.out / "plans.md", text, "python -m bench.plans")


if __name__ == "__main__":
    main()
