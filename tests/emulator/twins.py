"""The workloads' kernels on the emulator: `python -m tests.emulator.twins [NAME...]`.

Each kernel that a GPU would be given is scheduled again at small sizes, such that every decision is
the same (tests/schedule/twins.py), rendered as CUDA C++ and run under several schedules and grids.
It must be free of findings, agree with float64 as a kernel on a CPU must, and give the same bits
every time: how work is split is a function of shapes only (docs/decisions.md 7).

Writes bench/results/raw/emulator.json after each module, and starts from what made twins alike
there: delete it for a search that starts anew. A twin that was judged before (by its text, its
module and the emulator's sources) is not judged again.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from bench.record import RESULTS, raw, write_figures
from stitchcore.device.records import DEVICES
from stitchcore.hlo.text.printer import print_module
from stitchcore.runtime.module import buffers
from stitchcore.toolchain.nvrtc import INCLUDE
from stitchcore.verify.kernel import KernelCheck, check_kernel
from tests.emulator import kernels
from tests.emulator.findings import Finding
from tests.emulator.kernels import BLOCKS, THREADS
from tests.emulator.launch import Array, Order, Schedule
from tests.emulator.program import CACHE, Program
from tests.hlo import workloads
from tests.schedule import twins
from tests.schedule.twins import Found, Twin

FIGURES = raw(RESULTS / "emulator.json")
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


@functools.cache
def twins_of(name: str) -> tuple[Twin, ...]:
    """A twin of each distinct kernel of a workload; their kernels' names differ. What made twins
    alike when FIGURES were written is tried first: where it does no longer, they are searched."""
    found = twins.twins_of(
        twins.patterns_of(name, DEVICE), DEVICE, before(_results().get(name, {}))
    )
    return tuple(named(twin, number) for number, twin in enumerate(found))


def before(figures: Mapping[str, Any]) -> list[Found]:
    """What made a module's twins alike when its `figures` were taken, in order."""
    return [(tuple(size), dict(limits)) for size, limits in figures.get("twins", ())]


def _results() -> dict[str, Any]:
    return dict(json.loads(FIGURES.read_text())) if FIGURES.exists() else {}


def named(twin: Twin, number: int) -> Twin:
    return replace(twin, kernel=replace(twin.kernel, name=f"twin{number}"))


def emulated(
    twin: Twin,
    program: Program,
    runs: Sequence[tuple[Schedule, int]] = RUNS,
    threads: int = THREADS,
) -> Emulated:
    """The twin's kernel under each of `runs`, on the data that tells most about it."""
    findings: list[Finding] = []
    unlike: list[int] = []

    def run(given: Sequence[Array]) -> list[Array]:
        inputs = buffers(twin.kernel, given, {})
        first: list[bytes] = []
        judged: list[Array] = []
        for number, (schedule, blocks) in enumerate(runs):
            made = kernels.run(
                twin.kernel, program, inputs, {}, schedule, blocks=blocks, threads=threads
            )
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


@dataclass(frozen=True)
class Judged:
    """A twin's verdict, as it is kept: `what` was wrong, if it was."""

    right: bool
    informative: bool
    what: str


def judged(twins: Sequence[Twin], advance: Callable[[], None]) -> tuple[list[Judged], int]:
    """Verdicts on `twins`, and how many of them were there already."""
    places = [CACHE / f"judged-{_key(twin)}.json" for twin in twins]
    known = {n: _read(place) for n, place in enumerate(places) if place.exists()}
    found = {number: verdict for number, verdict in known.items() if verdict is not None}
    before = len(found)
    left = [number for number in range(len(twins)) if number not in found]
    programs = kernels.programs([twins[number].kernel for number in left])
    for number, program in zip(left, programs, strict=True):
        one = emulated(twins[number], program)
        what = f"{one.check}; {list(map(str, one.findings))[:3]}; unlike {one.unlike}"
        verdict = Judged(one.right, one.check.informative, "" if one.right else what[:600])
        places[number].write_text(json.dumps(asdict(verdict)))
        found[number] = verdict
        advance()
    return [found[number] for number in range(len(twins))], before


def _key(twin: Twin) -> str:
    """All that a twin's verdict depends on, but for numpy and what judges."""
    parts = (kernels.rendered([twin.kernel]), print_module(twin.module), _sources())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


@functools.cache
def _sources() -> str:
    """The emulator, and what a kernel's text includes."""
    folder = Path(__file__).parent
    own = [folder / name for name in ("kernels.py", "launch.py", "program.py", "twins.py")]
    native = [*(folder / "native").iterdir(), *(folder / "include").iterdir()]
    headers = INCLUDE.glob("stitch_c*.h")
    return "\0".join(path.read_text() for path in sorted((*own, *native, *headers)))


def _read(path: Path) -> Judged | None:
    try:
        return Judged(**json.loads(path.read_text()))
    except (ValueError, TypeError):
        return None


def figures(name: str, earlier: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """How many kernels of a workload have a twin that decides alike, and are right on it. What
    made twins alike when the module's `earlier` figures were taken is tried first."""
    start = time.perf_counter()
    patterns = twins.patterns_of(name, DEVICE)
    step = progress.add_task(name, total=2 * len(patterns))
    made = []
    for number, twin in enumerate(twins.twins_of(patterns, DEVICE, before(earlier))):
        made.append(named(twin, number))
        progress.advance(step)
    searched = time.perf_counter()
    verdicts, known = judged(made, lambda: progress.advance(step))
    ended = time.perf_counter()
    wrong = [f"{number}: {one.what}" for number, one in enumerate(verdicts) if not one.right]
    wrong += [
        f"{number}: decides otherwise: {twin.differing[:1]}"[:300]
        for number, twin in enumerate(made)
        if twin.differing
    ]
    progress.remove_task(step)
    return {
        "kernels": len(made),
        "decide alike": sum(not twin.differing for twin in made),
        "right": sum(one.right for one in verdicts),
        "cooperative": sum(len(twin.kernel.phases) > 1 for twin in made),
        "informative": sum(one.informative for one in verdicts),
        "judged before": known,
        "wrong": wrong,
        "twins": [twin.found for twin in made],
        "seconds": {"search": round(searched - start, 1), "judge": round(ended - searched, 1)},
    }


def main() -> None:
    with Progress(console=Console(stderr=True)) as progress:
        for name in sys.argv[1:] or workloads.NAMES:
            results = _results()
            found = figures(name, results.get(name, {}), progress)
            progress.console.print(name, {**found, "twins": ...})
            write_figures(FIGURES, dict(sorted({**results, name: found}.items())))


if __name__ == "__main__":
    main()
