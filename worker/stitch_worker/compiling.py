"""The compile child from outside: started alone in a folder, fed, followed, bounded, judged.

This process reads no graph. It gives the child a copy of the request and takes from it progress
lines and files; those are bytes of a stranger until they fit what was computed here: the
artifact's key, the digest of the request, every library's hash (`checked`).
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import stitch_worker
import stitchcore
from stitch_worker.units import Units
from stitch_worker.workshop import Workshop
from stitchcore.artifact.check import check_files, read_files, read_regular
from stitchcore.artifact.package import Unsigned
from stitchcore.errors import Reason, Refusal, Refused
from stitchcore.inject.contract import MANIFEST
from stitchcore.sandbox import isolate

TICK_SECONDS = 0.5
LINE_BYTES = 4096
MOST_COUNTED = 10**9
SOURCES = tuple(
    dict.fromkeys(
        str(Path(str(module.__file__)).resolve().parents[1])
        for module in (stitchcore, stitch_worker)
    )
)
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
    limits: isolate.Limits,
    log: Path,
    progress: Progress,
    stop: Callable[[], bool],
    spent: Spent,
    cache: Units | None = None,
) -> Unsigned | Refusal | Died | None:
    """Run the child to its end. None: `stop` said that nobody wants the result any more.

    `progress` is called at least every few seconds while the child lives. With `cache` its kernels
    are compiled by a workshop, where they are not there already. Raises OSError where no child can
    be started.
    """
    if cache is None:
        return _run(job, limits, log, progress, stop, spent, None)
    workshop = Workshop(cache, limits, job.jobs)
    try:
        with workshop.open() as channel:
            return _run(job, limits, log, progress, stop, spent, channel)
    finally:
        spent.add_units(workshop)


def _run(
    job: Job,
    limits: isolate.Limits,
    log: Path,
    progress: Progress,
    stop: Callable[[], bool],
    spent: Spent,
    channel: socket.socket | None,
) -> Unsigned | Refusal | Died | None:
    environment = {"PYTHONPATH": os.pathsep.join(SOURCES), "TF_CPP_MIN_LOG_LEVEL": "2"}
    log.parent.mkdir(parents=True, exist_ok=True)
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as lines, log.open("wb") as errors:
        try:
            handles = [] if channel is None else [channel.fileno()]
            child = isolate.command(
                [sys.executable, "-m", "stitch_worker.child", ".", *map(str, handles)],
                replace(limits, apart=True, shown=(*limits.shown, *SOURCES)),
                environment=environment,
                stdout=writing,
                stderr=errors,
                pass_fds=handles,
                gpus=str(job.expected.get("target")).startswith("sm_"),
            )
        finally:
            os.close(writing)
        try:
            _hand_over(child.folder, job)
            died = _follow(child, limits, lines, progress, stop, spent)
            if died is not None:
                return None if died.cause == "" else died
            return _result(child, job, log)
        finally:
            child.stop()
            spent.used(child.seconds)


def _hand_over(folder: Path, job: Job) -> None:
    """The child waits for `options.json`, which comes last."""
    (folder / "request").mkdir()
    (folder / "request" / "graph.pb").write_bytes(job.graph)
    (folder / "request" / "meta.json").write_bytes(job.meta)
    options = {"key": job.key, "planner": job.planner, "jobs": job.jobs, "tune": job.tune}
    (folder / ".options").write_text(json.dumps(options))
    (folder / ".options").rename(folder / "options.json")


def _follow(
    child: isolate.Child,
    limits: isolate.Limits,
    lines: Any,
    progress: Progress,
    stop: Callable[[], bool],
    spent: Spent,
) -> Died | None:
    """Until the child ends by itself with code 0: None; else why it did not."""
    stage = ("start", 0, 1)
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(lines, selectors.EVENT_READ)
        while True:
            ready = selector.select(TICK_SECONDS)
            broken = child.exceeded()
            spent.used(child.seconds)
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
            if child.late():
                return Died(f"it took longer than {limits.seconds:g} s")
            if broken is not None:
                return Died(f"it used {broken}")


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


def _plain(text: object, most: int) -> str:
    """A child's words as they may go to terminals, logs and UTF-8: nothing that does not print."""
    return "".join(character if character.isprintable() else " " for character in str(text)[:most])


def _ended(child: isolate.Child) -> Died | None:
    """Its output is closed: give it a moment to end, or count it as hanging."""
    deadline = time.monotonic() + 10
    while (code := child.poll()) is None:
        if time.monotonic() > deadline:
            return Died("it closed its output and did not end")
        time.sleep(0.02)
    if code == 0:
        return None
    return Died(f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}")


def _result(child: isolate.Child, job: Job, log: Path) -> Unsigned | Refusal | Died:
    refused = child.folder / "refused.json"
    try:
        if refused.exists():
            document = json.loads(read_regular(refused, 65536))
            reason = Reason(document["reason"])
            return Refusal(
                _plain(document["subject"], 200), reason, _plain(document["detail"], 500)
            )
        if not (child.folder / "unsigned" / MANIFEST).exists():
            return Died(f"it left no answer (see {log})")
        files = read_files(child.folder / "unsigned")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        return Died(f"its answer cannot be read: {error!r}")
    except Refused as error:
        return error.refusal
    try:
        check_files(job.artifact, files, job.expected)
    except Refused as error:
        return error.refusal
    return Unsigned(job.artifact, files)
