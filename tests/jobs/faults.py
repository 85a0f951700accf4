"""Faults on purpose in the job side, and what becomes of the job (docs/faults.md).

A program runs untouched, then stitched once, which leaves an artifact; then again with one fault at
a time, through scripts/faulty.py. It must end with the untouched run's exit code and lines: losses,
random numbers, variables. Seconds and reasons are told by `stitch run --json`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import lean
from tests.jobs.both import differences
from tests.waiting import RUN_SECONDS

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
FAULTY = SCRIPTS / "faulty.py"
NAMES = ("fault_function", "fault_session", "fault_fit")

LATE = 200
"""The stitched call at which a fault happens late in a run."""


@dataclass(frozen=True)
class Fault:
    """`name` as scripts/faulty.py takes it, at so many passes of its place. `about` is for people;
    `told` what the reason must be where the swap is taken back for it."""

    name: str
    about: str
    told: tuple[str, ...] = ("kernel_failed",)
    late: bool = True  # it can happen at the LATE-th call, too


KERNELS = tuple(
    Fault(f"native:{point}", about, told, late)
    for point, about, told, late in (
        ("construct", "a kernel is missing when TensorFlow makes the operation", (), False),
        (
            "guard",
            "an input has another shape than the kernel was made for",
            (),
            True,
        ),
        ("variables", "a variable cannot be had", ("kernel_failed",), True),
        ("scratch", "no memory for scratch", (), True),
        ("pool", "no memory in our pool", (), True),
        ("output", "no memory for an output", ("kernel_failed",), True),
        ("launch", "the launch fails", ("kernel_failed",), True),
        ("throw", "the operation runs out of memory of its own", ("kernel_failed",), True),
        ("value", "a kernel's result is not TensorFlow's", (), False),
    )
)
GRAPHS = tuple(
    Fault(
        f"graph:{change}", f"TensorFlow does not take the graph: {about}", ("bad_artifact",), False
    )
    for change, about in (
        ("dtype", "a wrong dtype"),
        ("operation", "an unknown operation"),
        ("input", "an input is missing"),
        ("attribute", "an attribute is missing"),
    )
)
HOOKS = tuple(
    Fault(f"hook:{method}", f"an exception in Hook.{method}", ())
    for method in (
        "choose", "recover", "after_first_call", "on_graph", "_answer", "_arm_graph", "_program",
        "_look", "_tick", "_charge", "_disable", "_refuse", "_say", "_end",
    )
)  # fmt: skip
OUTSIDE = (
    Fault("events:write", "events cannot be written", ()),
    Fault("store:gone", "the store vanishes", ()),
    Fault("clock:jump", "the clock jumps by a day at each look", (), False),
)
ALL = (*KERNELS, *GRAPHS, *HOOKS, *OUTSIDE)


@dataclass(frozen=True)
class Prepared:
    """A program's untouched lines, and a store with its artifact, of so many kernels."""

    program: Path
    lines: tuple[str, ...]
    store: Path
    kernels: int


@dataclass(frozen=True)
class Outcome:
    """How a job ended: its exit code, its lines, ours on stderr, the step's status and reason."""

    code: int
    lines: tuple[str, ...]
    said: tuple[str, ...]
    status: str
    reason: str
    errors: str = ""

    def survived(self, prepared: Prepared) -> bool:
        """The job's end is the untouched run's, but for the order in which sums are taken."""
        return self.code == 0 and not differences(list(self.lines), list(prepared.lines))


def prepare(name: str, folder: Path) -> Prepared:
    """Runs a program untouched, and stitched. Raises AssertionError where that is not the same."""
    program = SCRIPTS / f"{name}.py"
    done = subprocess.run(
        [sys.executable, str(program)], env=lean.environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = tuple(done.stdout.splitlines())
    store = folder / "made"
    made = stitched([sys.executable, str(program)], store)
    manifests = [json.loads(p.read_text()) for p in store.glob("store/artifacts/*/manifest.json")]
    assert made.status == "stitched" and manifests, made.errors[-2000:]
    prepared = Prepared(program, lines, store, len(manifests[0]["kernels"]))
    assert made.survived(prepared), differences(list(made.lines), list(lines))
    return prepared


def stitched(command: Sequence[str], base: Path, **environment: str) -> Outcome:
    """`stitch run --wait --json` of `command` over the store in `base`."""
    line = [sys.executable, "-m", "stitchcore.cli", "run", "--wait", "--json"]
    line += ["--store", str(base / "store"), "--", *command]
    own = {"PYTHONPATH": str(ROOT), "STITCH_KEY": str(base / "signing.key")}
    own |= {"STITCH_CONTROL": "0", **environment}  # no verdict on time: every call is stitched
    done = subprocess.run(
        line,
        env=lean.environment(**own),
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
    )
    return outcome_of(done.returncode, done.stdout, done.stderr)


def outcome_of(code: int, output: str, errors: str) -> Outcome:
    """Reads what `stitch run --json` has printed."""
    *lines, last = output.splitlines() or [""]
    try:
        summary: dict[str, Any] = json.loads(last)
    except ValueError:
        lines, summary = [*lines, last], {}
    steps = [step for step in summary.get("steps", ()) if step["status"] != "seen"]
    first = steps[0] if steps else {"status": "", "reason": ""}
    said = tuple(line for line in errors.splitlines() if line.startswith("[stitch]"))
    return Outcome(code, tuple(lines), said, first["status"], first["reason"], errors)


def run(prepared: Prepared, fault: str, occasion: int, folder: Path) -> Outcome:
    """The program with one fault, from a copy of its store."""
    base = folder / f"{prepared.program.stem}-{fault.replace(':', '-')}-{occasion}"
    shutil.copytree(prepared.store, base)
    command = [sys.executable, str(FAULTY), fault, str(occasion), str(prepared.program)]
    return stitched(command, base)


def killed_worker(prepared: Prepared, folder: Path) -> Outcome:
    """The worker is killed (SIGKILL) while it works; the job runs on as it is."""
    base = folder / f"{prepared.program.stem}-killed"
    base.mkdir()
    line = [sys.executable, "-m", "stitchcore.cli", "run", "--json", "--store", str(base / "store")]
    line += ["--", sys.executable, str(prepared.program)]
    own = {"PYTHONPATH": str(ROOT), "STITCH_KEY": str(base / "signing.key")}
    job = subprocess.Popen(
        line,
        env=lean.environment(**own),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 300
    while job.poll() is None and time.monotonic() < deadline:
        for process in _children(job.pid):
            if "stitchcore.cli.optimize" in process[1]:
                os.kill(process[0], signal.SIGKILL)
                deadline = 0
        time.sleep(0.02)
    output, errors = job.communicate(timeout=RUN_SECONDS)
    return outcome_of(job.returncode, output, errors)


def _children(parent: int) -> list[tuple[int, str]]:
    """(process, command line) of all that `parent` has started, directly or not."""
    found: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").iterdir():
        try:
            status = (entry / "stat").read_text().rpartition(")")[2].split()
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            found[int(entry.name)] = (int(status[1]), command)
        except (OSError, ValueError, IndexError):
            continue
    family, result = {parent}, []
    while True:
        more = {p for p, (above, _) in found.items() if above in family} - family
        if not more:
            return result
        result += [(p, found[p][1]) for p in more]
        family |= more
