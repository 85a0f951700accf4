"""Fuzzer of TensorFlow programs: random training steps, untouched against stitched.

    python -m tests.fuzz.tensorflow_programs [--seconds 1200] [--count 2000] [--seed 0] [--jobs 2]

Many programs go through one process: one job runs a batch of them untouched, another under the
hook, which holds each first step until a worker, one process for the whole run, has answered. The
worker does not time what it makes, so that nothing is dropped for being slow. The zoo's judge
compares variables, slots and what was fetched of each step, by how far untouched runs from
variables an ulp away lie, and the untouched run in float32 where types are short. What is found is
drawn again from more starts, then reduced: statements are left out while it is found still. Also
found: a program that only one run can run, a job that dies, and whatever of ours failed on the way
(`COMPLAINTS`). Seed and number reproduce a program.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.zoo.judge import UNITS, Arrays, states
from stitchcore.artifact import sign
from stitchcore.cli import run_job
from stitchcore.options import Options
from tests import lean
from tests.fuzz.tensorflow_draw import Program, draw, in_float32, smaller, text

ROOT = Path(__file__).resolve().parents[2]
JOB = Path(__file__).with_name("tensorflow_job.py")
BATCH = 50
DRAWS, MORE_DRAWS = 2, 8
WAIT_SECONDS = 300.0
BATCH_SECONDS = 3000.0
PROGRAM_SECONDS = 400.0
PRECISE = "_float32"
COMPLAINTS = frozenset(
    ("worker_failed", "hook_error", "bad_artifact", "kernel_failed", "structure", "deadline",
     "guard_failed", "wrong_result", "no_compiler", "crashed_before")
)  # fmt: skip
"""Reasons that are faults of ours, whatever the program is."""


@dataclass(frozen=True)
class Outcome:
    """What became of a program: what its stitched run did otherwise, reasons that are faults of
    ours, and whether a kernel was swapped in."""

    wrong: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    stitched: bool = False

    def of_kind(self, other: Outcome) -> bool:
        """Whether this is what `other` is: a wrong result, or else a fault of the same reason."""
        return bool(self.wrong) if other.wrong else bool({*self.faults} & {*other.faults})


@dataclass(frozen=True)
class Problem:
    """A finding: the program's number, what it is, and the reduced program."""

    number: int
    outcome: Outcome
    text: str


@dataclass
class Findings:
    """Of a whole run. `again` counts further programs with a fault whose reason has a problem."""

    programs: int = 0
    stitched: int = 0
    broken: int = 0  # programs that TensorFlow does not run
    problems: list[Problem] = field(default_factory=list)
    again: Counter[str] = field(default_factory=Counter)


# ---- the worker ----------------------------------------------------------------------------------
def work(store: Path) -> None:
    """Answer the requests of `store` until standard input ends."""
    from stitchcore.device.records import DEVICES
    from stitchcore.optimize import pipeline

    pipeline.STAGES = tuple(stage for stage in pipeline.STAGES if stage.name != "measure")
    options = Options(store, store / "cache", store / "key")
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    done: set[tuple[str, float]] = set()
    while True:
        for folder in sorted((store / "requests").glob("[!.]*")):
            try:
                request = folder / "meta.json"
                asked = folder.name, request.stat().st_mtime
                if asked not in done:
                    done.add(asked)
                    target = json.loads(request.read_text())["target"]
                    pipeline.optimize(folder, str(store), DEVICES[target], options)
            except FileNotFoundError:
                continue  # nobody waits for it any more
            except Exception as error:  # its answer says so, and the job complains
                print(f"{folder.name}: {type(error).__name__}: {error}", flush=True)
        time.sleep(0.01)


@contextmanager
def worker(store: Path, before: str = "") -> Iterator[None]:
    """A worker of `store`, in a process of its own; `before` is Python that it runs first."""
    (store / "requests").mkdir(parents=True, exist_ok=True)
    environment = {**lean.environment(PYTHONPATH=str(ROOT)), "CUDA_VISIBLE_DEVICES": ""}
    code = "import sys, pathlib; from tests.fuzz import tensorflow_programs as fuzz"
    command = [sys.executable, "-c", f"{code}\n{before}\nfuzz.work(pathlib.Path(sys.argv[1]))"]
    command.append(str(store))
    with (store / "worker.log").open("ab") as log:
        child = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=ROOT
        )
        try:
            yield
        finally:
            assert child.stdin is not None
            child.stdin.close()
            child.wait()


# ---- jobs ----------------------------------------------------------------------------------------
Told = tuple[float, str]
"""When a graph was shown, in seconds since 1970, and "stitched" or a reason."""


def run(texts: Mapping[str, str], store: Path | None, draws: int, out: Path) -> list[Told]:
    """Run programs by name in one process, under the hook where there is a store. What its events
    tell. Where the process dies, the rest goes on in another one."""
    out.mkdir(parents=True, exist_ok=True)
    files = []
    for name, source in texts.items():
        files.append(out / f"{name}.py")
        files[-1].write_text(source)
    told: list[Told] = []
    while files:
        session = f"s{time.time_ns()}"
        environment = lean.environment()
        if store is not None:
            key = sign.public_hex(sign.load_or_create_key(store / "key"))
            (store / "sessions" / session).mkdir(parents=True)
            environment = run_job.environment(environment, store, session, key, WAIT_SECONDS)
            environment["STITCH_CONTROL"] = "0"
        command = [sys.executable, str(JOB), str(out), str(draws), *map(str, files)]
        limit = min(BATCH_SECONDS, PROGRAM_SECONDS * len(files))
        try:
            with (out / "job.log").open("ab") as log:
                code = subprocess.run(
                    command, env=environment, stdout=log, stderr=log, timeout=limit
                ).returncode
        except subprocess.TimeoutExpired:
            code = -1
        if store is not None:
            told += _told(store / "sessions" / session / "events.jsonl")
        left = [file for file in files if not _ended(file)]
        if left and code:
            left[0].with_suffix(".error").write_text(f"the process ended with {code}")
            left = left[1:]
        files = left if code else []
    return told


def _ended(file: Path) -> bool:
    return file.with_suffix(".0.npz").exists() or file.with_suffix(".error").exists()


def _told(events: Path) -> list[Told]:
    """What a graph's events tell, when the graph was first seen: verdicts on it come later."""
    found: list[Told] = []
    seen: dict[str, float] = {}
    for event in run_job.EventFile(events).read():
        when = seen.setdefault(event.get("digest") or str(len(found)), event["time"])
        if event["type"] == "swap_begin":
            found.append((when, "stitched"))
        elif event.get("reason"):
            found.append((when, str(event["reason"])))
    return found


def _of_artifacts(store: Path) -> list[Told]:
    """Why regions were refused, when their graphs were handed over."""
    found = []
    for path in store.glob("artifacts/*/manifest.json"):
        manifest = json.loads(path.read_text())
        asked = (store / "requests" / manifest["digest"] / "meta.json").stat().st_mtime
        found += [(asked, reason) for reason in manifest["refusals"]]
    return found


def _by_program(told: Sequence[Told], out: Path) -> dict[str, list[str]]:
    """What was told, by the program that was running."""
    ends = {path.stem: path.stat().st_mtime for path in out.glob("*.error")}
    ends |= {path.name.removesuffix(".0.npz"): path.stat().st_mtime for path in out.glob("*.0.npz")}
    found: dict[str, list[str]] = {name: [] for name in ends}
    for when, reason in told:
        later = [name for name, end in ends.items() if end >= when]
        if later:
            found[min(later, key=ends.__getitem__)].append(reason)
    return found


def read(out: Path, name: str, number: int = 0) -> dict[str, Arrays] | None:
    """The arrays of each step by its name; None where there are none."""
    path = out / f"{name}.{number}.npz"
    if not path.exists():
        return None
    steps: dict[str, dict[str, Any]] = {}
    with np.load(path) as saved:
        for key in saved.files:
            step, _, array = key.partition("/")
            steps.setdefault(step, {})[array] = saved[key]
    return {step: steps[step] for step in sorted(steps)}


def judge(program: Program, name: str, ours: Path, theirs: Path, draws: int) -> Outcome | None:
    """None where TensorFlow does not run the program."""
    plain = read(theirs, name)
    if plain is None:
        return None
    stitched = read(ours, name)
    if stitched is None:
        error = ours / f"{name}.error"
        last = error.read_text().strip().splitlines()[-1] if error.exists() else "no end"
        return Outcome((f"only untouched runs: {last[:300]}",))
    further = (read(theirs, name, number) for number in range(1, draws + 1))
    right = [list(one.values()) for one in further if one is not None]
    precise = read(theirs, f"{name}{PRECISE}")
    if precise is not None:
        precise.pop("random")
        right.append(list(precise.values()))
    drawn, drawn_untouched = stitched.pop("random"), plain.pop("random")
    if not np.array_equal(drawn["drawn"], drawn_untouched["drawn"]):
        return Outcome(("other random numbers",))
    floor = 8 * UNITS.get(program.short, 0.0)
    if not all(
        np.isfinite(a).all() for s in plain.values() for a in s.values() if a.dtype.kind == "f"
    ):
        return Outcome()
    steps = list(plain.values()), right, list(stitched.values())
    return Outcome(tuple(states(*steps, floor=floor)))


def judged(
    programs: Mapping[str, Program], store: Path, draws: int, folder: Path
) -> dict[str, Outcome | None]:
    """Programs by name, run in one process each way; None for one that TensorFlow does not run."""
    ours, theirs = folder / "ours", folder / "theirs"
    shutil.rmtree(folder, ignore_errors=True)
    for old in ("artifacts", "answers", "requests", "breaker"):
        for path in (store / old).glob("*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    texts = {name: text(program) for name, program in programs.items()}
    precise = {f"{name}{PRECISE}": in_float32(program) for name, program in programs.items()}
    untouched = texts | {name: source for name, source in precise.items() if source}
    beside = threading.Thread(target=run, args=(untouched, None, draws, theirs))
    beside.start()
    told = run(texts, store, 0, ours)
    beside.join()
    reasons = _by_program([*told, *_of_artifacts(store)], ours)
    found: dict[str, Outcome | None] = {}
    for name, program in programs.items():
        outcome, said = judge(program, name, ours, theirs, draws), reasons.get(name, [])
        if outcome is not None:
            faults = tuple(sorted({*said} & COMPLAINTS))
            outcome = replace(outcome, faults=faults, stitched="stitched" in said)
        found[name] = outcome
    return found


Same = Callable[[Mapping[str, Program]], Sequence[str]]
"""Which of some programs, by name, still show the finding."""


def reduced(program: Program, same: Same, rounds: int = 12) -> Program:
    """The smallest program found that still shows what `same` looks for."""
    for _ in range(rounds):
        candidates = {f"c{number}": one for number, one in enumerate(smaller(program))}
        shown = same(candidates) if candidates else ()
        if not shown:
            break
        program = min((candidates[name] for name in shown), key=lambda one: len(text(one)))
    return program


# ---- the run -------------------------------------------------------------------------------------
def fuzz(
    seed: int,
    numbers: Sequence[int],
    folder: Path,
    findings: Findings,
    until: float,
    before: str = "",
) -> None:
    """Run and judge these programs; findings are confirmed and reduced."""
    store = folder / "store"
    with worker(store, before):
        for first in range(0, len(numbers), BATCH):
            if time.monotonic() > until:
                return
            batch = {f"p{number}": draw(seed, number) for number in numbers[first : first + BATCH]}
            found = judged(batch, store, DRAWS, folder / "batch")
            for name, outcome in found.items():
                findings.programs += outcome is not None
                findings.broken += outcome is None
                if outcome is not None:
                    findings.stitched += outcome.stitched
                    if outcome.wrong or outcome.faults:
                        _confirm(int(name[1:]), batch[name], outcome, store, folder, findings)


def _confirm(
    number: int,
    program: Program,
    outcome: Outcome,
    store: Path,
    folder: Path,
    findings: Findings,
) -> None:
    known = {fault for problem in findings.problems for fault in problem.outcome.faults}
    if not outcome.wrong and {*outcome.faults} <= known:
        findings.again.update(outcome.faults)
        return

    def same(candidates: Mapping[str, Program]) -> list[str]:
        found = judged(candidates, store, MORE_DRAWS, folder / "again")
        return [name for name, one in found.items() if one is not None and one.of_kind(outcome)]

    if not same({"one": program}):
        return
    small = reduced(program, same)
    last = judged({"one": small}, store, MORE_DRAWS, folder / "again")["one"] or outcome
    findings.problems.append(Problem(number, last, text(small)))
    print(
        f"program {number}: {'; '.join((*last.wrong[:3], *last.faults))}\n{text(small)}", flush=True
    )


def run_all(seed: int, numbers: Sequence[int], jobs: int, base: Path, seconds: float) -> Findings:
    """As many as there is time for, in so many lanes of a job and a worker."""
    findings, until = Findings(), time.monotonic() + seconds
    threads = [
        threading.Thread(
            target=fuzz, args=(seed, numbers[lane::jobs], base / str(lane), findings, until)
        )
        for lane in range(jobs)
    ]
    for thread in threads:
        thread.start()
    columns = (TextColumn("programs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=len(numbers))
        while any(thread.is_alive() for thread in threads):
            progress.update(task, completed=findings.programs + findings.broken)
            time.sleep(1)
    return findings


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.tensorflow_programs")
    parser.add_argument("--seconds", type=float, default=1200.0)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    begun = time.monotonic()
    numbers = range(options.first, options.first + options.count)
    with tempfile.TemporaryDirectory(prefix="stitch-fuzz-") as base:
        found = run_all(options.seed, numbers, options.jobs, Path(base), options.seconds)
    print(f"{found.programs} programs in {time.monotonic() - begun:.0f} s, {found.stitched} graphs "
          f"stitched, {len(found.problems)} findings, {found.again.total()} more of known reasons; "
          f"{found.broken} that TensorFlow does not run")  # fmt: skip
    return 1 if found.problems else 0


if __name__ == "__main__":
    sys.exit(main())
