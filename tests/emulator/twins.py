"""The workloads' kernels on the emulator: `python -m tests.emulator.twins [NAME...]`.

Each kernel that a GPU would be given is scheduled again at small sizes, such that every decision is
the same (tests/schedule/twins.py), rendered as CUDA C++ and run under several schedules and grids.
It must be free of findings, agree with float64 as a kernel on a CPU must, and give the same bits
every time: how work is split is a function of shapes only (rulings.md 7).

Writes bench/results/emulator.json after each module.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from stitchcore.compiled import buffers
from stitchcore.device.records import DEVICES, Device
from stitchcore.verify.kernels import KernelCheck, check_kernel
from tests.emulator import kernels
from tests.emulator.findings import Finding
from tests.emulator.kernels import BLOCKS
from tests.emulator.launch import Array, Order, Schedule
from tests.emulator.program import Program
from tests.hlo import workloads
from tests.schedule import twins
from tests.schedule.twins import Twin

RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results" / "emulator.json"
DEVICE = DEVICES["sm_80"]

RUNS: tuple[tuple[Schedule, int], ...] = (
    (Schedule(Order.FORWARD), BLOCKS),
    (Schedule(Order.REVERSE), BLOCKS),
    (Schedule(Order.RANDOM, seed=1), BLOCKS),
    (Schedule(Order.RANDOM, seed=2, preempt=True), BLOCKS),
    (Schedule(Order.RANDOM, seed=3), 1),
    (Schedule(Order.RANDOM, seed=4), 5),
)
"""Schedules and numbers of blocks."""


@dataclass(frozen=True)
class Emulated:
    """How a twin fared: judged on the first run, `unlike` are runs (by number) with other bits."""

    check: KernelCheck
    findings: tuple[Finding, ...]
    unlike: tuple[int, ...]

    @property
    def right(self) -> bool:
        return self.check.passed and not self.findings and not self.unlike


def twins_of(name: str, device: Device = DEVICE) -> list[Twin]:
    """A twin of each distinct kernel of a workload; their kernels' names differ."""
    found = (twins.twin_of(pattern, device) for pattern in twins.patterns_of(name, device))
    return [named(twin, number) for number, twin in enumerate(found)]


def named(twin: Twin, number: int) -> Twin:
    return replace(twin, kernel=replace(twin.kernel, name=f"twin{number}"))


def emulated(twin: Twin, program: Program, runs: Sequence[tuple[Schedule, int]] = RUNS) -> Emulated:
    """The twin's kernel under each of `runs`, on the data that tells most about it."""
    findings: list[Finding] = []
    unlike: list[int] = []

    def run(given: Sequence[Array]) -> list[Array]:
        inputs = buffers(twin.kernel, given, {})
        first: list[bytes] = []
        judged: list[Array] = []
        for number, (schedule, blocks) in enumerate(runs):
            made = kernels.run(twin.kernel, program, inputs, {}, schedule, blocks=blocks)
            findings.extend(made.findings)
            if number == 0:
                first = [array.tobytes() for array in made.outputs]
                judged = list(made.outputs)
            elif first != [array.tobytes() for array in made.outputs]:
                unlike.append(number)
        outputs = zip(judged, twin.pattern.outputs, strict=True)
        return [array.reshape(value.shape.static) for array, value in outputs]

    check = check_kernel(twin.pattern, twin.module, run, {})
    return Emulated(check, tuple(dict.fromkeys(findings)), tuple(unlike))


def figures(name: str, progress: Progress) -> dict[str, Any]:
    """How many kernels of a workload have a twin that decides alike, and are right on it."""
    start = time.perf_counter()
    patterns = twins.patterns_of(name, DEVICE)
    step = progress.add_task(name, total=2 * len(patterns))
    made = []
    for number, pattern in enumerate(patterns):
        made.append(named(twins.twin_of(pattern, DEVICE), number))
        progress.advance(step)
    searched = time.perf_counter()
    programs = kernels.programs([twin.kernel for twin in made])
    compiled = time.perf_counter()
    counts = Counter({"kernels": len(made), "decide alike": 0, "right": 0})
    wrong = []
    for number, (twin, program) in enumerate(zip(made, programs, strict=True)):
        counts["decide alike"] += not twin.differing
        counts["cooperative"] += len(twin.kernel.phases) > 1
        found = emulated(twin, program)
        counts["right"] += found.right
        counts["informative"] += found.check.informative
        if not found.right:
            what = f"{found.check}; {list(map(str, found.findings))[:3]}; unlike {found.unlike}"
            wrong.append(f"{number}: {what}"[:600])
        if twin.differing:
            wrong.append(f"{number}: decides otherwise: {twin.differing[:1]}"[:300])
        progress.advance(step)
    ended = time.perf_counter()
    seconds = {"search": searched - start, "compile": compiled - searched, "run": ended - compiled}
    return {**counts, "wrong": wrong, "seconds": {k: round(v, 1) for k, v in seconds.items()}}


def main() -> None:
    with Progress(console=Console(stderr=True)) as progress:
        for name in sys.argv[1:] or workloads.NAMES:
            found = figures(name, progress)
            progress.console.print(name, found)
            results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
            RESULTS.write_text(json.dumps(dict(sorted({**results, name: found}.items())), indent=1))


if __name__ == "__main__":
    main()
