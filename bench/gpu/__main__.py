"""`python -m bench.gpu [NAME...]`: workload modules on the GPU of this machine.

Stitched, with and without a CUDA graph, against XLA:GPU on the same HLO text, PyTorch's Inductor
where the module can be expressed, and one kernel per instruction: in turn in one process, L2
flushed before each, aliases honoured by all. Whole steps by the host's clock, the memory-intensive
part by CUPTI. Results go to bench/results/gpu.{json,md,png} after each module.

A module that is there already is not measured again (`--again` does), so that a run that was cut
off goes on where it ended; one that has no figures of ours went wrong (code 1), and is. With
`--seconds` it ends in time, and says what is left (code 3). Without a GPU it says so and ends with
code 2. `--dry-run` runs everything but the timing on the tests' stand-in driver and host memory,
XLA on the CPU, and writes to --output only.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.gpu.entrants import STITCHED
from bench.gpu.measure import NO_GPU, WORKLOADS
from bench.gpu.report import Machine, Row, read, read_row, table, write

RESULTS = Path(__file__).resolve().parents[1] / "results"
LEFT = 3
AHEAD = max(3, (os.cpu_count() or 3) // 2)
"""Processes at a time: one is measured when none of the others compiles."""
MODULE_SECONDS = 420.0
"""Of one process, its waiting for the others included."""
LEAST_SECONDS = 20.0
"""With less time left no further module is begun."""


@dataclass(frozen=True)
class Order:
    """What to measure and how."""

    names: Sequence[str]
    output: Path
    rounds: int
    dry: bool
    deadline: float


class Running:
    """A module's process. Its words go to a file; the row to another."""

    def __init__(self, name: str, order: Order, folder: Path) -> None:
        self.name, self.began, self.cut = name, time.monotonic(), False
        self.row, self.words = folder / f"{name}.json", folder / f"{name}.txt"
        command = [sys.executable, "-m", "bench.gpu.measure", name, "--rounds", str(order.rounds)]
        command += ["--output", str(self.row), "--lock", str(folder / "lock")]
        command += ["--cache", str(folder / "cache")]
        command += ["--dry-run"] if order.dry else []
        with self.words.open("wb") as words:
            self.process = subprocess.Popen(command, stdout=words, stderr=subprocess.STDOUT)

    def ended(self, deadline: float) -> bool:
        """Whether it is done; one that takes too long, or has no time left, is ended here."""
        if self.process.poll() is not None:
            return True
        self.cut = time.monotonic() > deadline
        if self.cut or time.monotonic() - self.began > MODULE_SECONDS:
            self.process.kill()
            self.process.wait()
            return True
        return False

    @property
    def last_words(self) -> str:
        said = self.words.read_text(errors="replace").strip()[-300:]
        return f"ended with {self.process.returncode}: {said}"


def run(order: Order) -> int:
    """All modules of `order`; the exit code."""
    earlier = read(order.output)
    rows: dict[str, Row] = {row.module: row for row in earlier[1]} if earlier else {}
    machine: Machine | None = earlier[0] if earlier else None
    waiting, running, failed = list(order.names), list[Running](), dict[str, str]()
    with tempfile.TemporaryDirectory(prefix="stitch-gpu-") as scratch:
        while waiting or running:
            in_time = time.monotonic() + LEAST_SECONDS < order.deadline
            while waiting and in_time and len(running) < AHEAD:
                running.append(Running(waiting.pop(0), order, Path(scratch)))
            if not running:
                break
            time.sleep(0.05)
            for one in [one for one in running if one.ended(order.deadline)]:
                running.remove(one)
                if one.process.returncode == NO_GPU:
                    waiting.clear()
                found = read_row(one.row)
                if found is None:
                    if not one.cut:
                        failed[one.name] = one.last_words
                        print(f"{one.name}: {failed[one.name]}", file=sys.stderr, flush=True)
                    continue
                if machine is not None and not machine.same(found[0]):
                    rows.clear()  # figures of another machine are no comparison
                machine = found[0]
                rows[one.name] = found[1]
                if STITCHED not in found[1].figures:
                    failed[one.name] = "; ".join(found[1].notes)
                write(order.output, machine, list(rows.values()))
                print(table(machine, [found[1]]), flush=True)
    return _told(order, machine, rows, failed)


def _told(
    order: Order, machine: Machine | None, rows: dict[str, Row], failed: dict[str, str]
) -> int:
    if machine is not None:
        print(table(machine, list(rows.values())))
    left = [name for name in order.names if name not in rows and name not in failed]
    if any("nothing was measured" in words for words in failed.values()):
        return NO_GPU
    if left:
        print(f"left, as time was up: {', '.join(left)}; the same command goes on with them")
    return LEFT if left else int(bool(failed))


def main(arguments: Sequence[str] | None = None) -> int:
    paths = sorted(WORKLOADS.glob("*.hlo.xz"), key=lambda path: path.stat().st_size)
    names = [path.name.removesuffix(".hlo.xz") for path in paths]
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(sorted(names)))
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--seconds", type=float, default=1e6, help="end within so many")
    parser.add_argument("--again", action="store_true", help="measure also what is there")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the results")
    given = parser.parse_args(arguments)
    if given.dry_run and given.output == RESULTS:
        parser.error("a dry run needs --output FOLDER: its figures are no results")
    unknown = sorted(set(given.names) - set(names))
    if unknown:
        parser.error(f"no module {', '.join(unknown)} in {WORKLOADS}; there is {', '.join(names)}")
    earlier = None if given.again else read(given.output)
    there = {row.module for row in earlier[1] if STITCHED in row.figures} if earlier else set()
    chosen = given.names or (["softmax_grad"] if given.dry_run else names)
    wanted = [name for name in chosen if name not in there]
    if earlier is not None and len(wanted) < len(chosen):
        of = f"{earlier[0].name}, {earlier[0].driver}"
        print(f"{len(chosen) - len(wanted)} modules are there already ({of}); --again for them too")
    rounds = 3 if given.dry_run else given.rounds
    deadline = time.monotonic() + given.seconds
    return run(Order(wanted, given.output, rounds, given.dry_run, deadline))


if __name__ == "__main__":
    sys.exit(main())
