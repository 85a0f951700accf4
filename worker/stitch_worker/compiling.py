"""The compile child from outside: followed and judged.

This process reads no graph. It has a child started (children.py), gives it a copy of the request
and takes from it progress lines and files; those are bytes of a stranger until they fit what was
computed here: the artifact's key, the digest of the request, every library's hash
(`check_files`).
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stitch_worker.children import Children, Handed, Running, plain, refusal_of
from stitch_worker.units import Units
from stitch_worker.workshop import Workshop
from stitchcore.artifact.check import check_files
from stitchcore.artifact.package import Unsigned
from stitchcore.errors import Refusal, Refused

TICK_SECONDS = 0.5
LINE_BYTES = 4096
MOST_COUNTED = 10**9
MEASURE_STAGES = frozenset({"tune", "verify", "measure"})


@dataclass(frozen=True)
class Job:
    """One compilation: the request's files, the key that the artifact must have, and what the
    child is told. `expected` are the manifest's fields that were computed here, `scope` is that of
    its kernels (units.py)."""

    key: str
    graph: bytes
    meta: bytes
    artifact: str
    expected: Mapping[str, Any]
    planner: str
    jobs: int
    tune: float = 0.0
    scope: str | None = None


@dataclass(frozen=True)
class Died:
    """The child ended without a word, or was ended: `cause` in words. That counts as a death."""

    cause: str


@dataclass
class Spent:
    """Processor seconds by what for: what `seconds` begins with, and what the child is seen to use,
    whether it says anything or not. `stage` is where it says to be. `units` are the translation
    units it asked for, by what became of them (Workshop.counts); those who compiled them are in
    `seconds` once all is done."""

    units: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: {"compile": 0.0, "measure": 0.0})
    stage: str = ""
    _child: float = 0.0

    def used(self, seconds: float) -> None:
        """The child has used so many in all; those that are new count to its stage."""
        purpose = "measure" if self.stage in MEASURE_STAGES else "compile"
        new = max(0.0, seconds - self._child)
        self.seconds[purpose] = round(self.seconds[purpose] + new, 3)
        self._child += new

    def add_units(self, workshop: Workshop) -> None:
        """What was compiled outside of the child, after its end."""
        self.units = dict(workshop.counts)
        self.seconds["compile"] = round(self.seconds["compile"] + workshop.seconds, 3)


Progress = Callable[[str, int, int], None]


def compile_alone(
    job: Job,
    children: Children,
    progress: Progress,
    stop: Callable[[], bool],
    spent: Spent,
    cache: Units | None = None,
) -> Unsigned | Refusal | Died | None:
    """Run the child to its end. None: `stop` said that nobody wants the result any more.

    `progress` is called at least every few seconds while the child lives. With `cache` its kernels
    are compiled by a workshop, where they are not there already. Raises OSError where no child can
    be started, or who started it is gone.
    """
    if cache is None:
        return _run(job, children, progress, stop, spent, None)
    workshop = Workshop(cache, children, job.jobs)
    try:
        with workshop.open() as channel:
            return _run(job, children, progress, stop, spent, channel.fileno())
    finally:
        spent.add_units(workshop)


def _run(
    job: Job,
    children: Children,
    progress: Progress,
    stop: Callable[[], bool],
    spent: Spent,
    channel: int | None,
) -> Unsigned | Refusal | Died | None:
    handed = Handed(
        *(job.key, job.graph, job.meta, job.planner, job.jobs, job.tune),
        target=str(job.expected.get("target")),
    )
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as lines:
        try:
            child = children.start(handed, writing, channel)
        finally:
            os.close(writing)
        try:
            died = _follow(child, lines, progress, stop, spent)
            if died is not None:
                return None if died.cause == "" else died
            return _result(child, job)
        finally:
            spent.used(child.stop())


def _follow(
    child: Running, lines: Any, progress: Progress, stop: Callable[[], bool], spent: Spent
) -> Died | None:
    """Until the child ends by itself with code 0: None; else why it did not."""
    stage = ("start", 0, 1)
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(lines, selectors.EVENT_READ)
        while True:
            ready = selector.select(TICK_SECONDS)
            seen = child.look()
            spent.used(seen.seconds)
            if ready:
                data = lines.read(65536)
                if not data:
                    selector.unregister(lines)
                    return _ended(child)
                *whole, rest = (rest + data).split(b"\n")
                rest = rest[-LINE_BYTES:]
                for line in whole:
                    stage = _line(line, spent) or stage
                    progress(*stage)
            progress(*stage)
            if stop():
                return Died("")
            if seen.broken is not None:
                return Died(plain(seen.broken, 100))


def _line(line: bytes, spent: Spent) -> tuple[str, int, int] | None:
    """A progress line, None for anything else: the child may write what it likes."""
    try:
        message = json.loads(line[:LINE_BYTES])
        stage = str(message["stage"])[:32]
        done, total = (min(max(0, int(message[name])), MOST_COUNTED) for name in ("done", "total"))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    spent.stage = stage
    return (stage if stage.isidentifier() else "unknown"), done, total


def _ended(child: Running) -> Died | None:
    """Its output is closed: give it a moment to end, or count it as hanging."""
    deadline = time.monotonic() + 10
    while (seen := child.look()).code is None:
        if time.monotonic() > deadline:
            return Died("it closed its output and did not end")
        time.sleep(0.02)
    if seen.code == 0:
        return None
    if seen.broken is not None:
        return Died(plain(seen.broken, 100))
    try:
        return Died(f"signal {signal.Signals(-seen.code).name}")
    except ValueError:
        return Died(f"exit code {seen.code}")


def _result(child: Running, job: Job) -> Unsigned | Refusal | Died:
    left = child.left()
    if left.unreadable:
        return Died(f"its answer cannot be read: {plain(left.unreadable, 200)}")
    if left.refused is not None:
        try:
            return refusal_of(left.refused)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            return Died(f"its answer cannot be read: {error!r}")
    if left.files is None:
        return Died("it left no answer (its log is where it was compiled)")
    try:
        check_files(job.artifact, left.files, job.expected)
    except Refused as error:
        return error.refusal
    return Unsigned(job.artifact, left.files)
