"""What starts the processes that handle a stranger's text, and what they are asked.

`Local` starts them from this very process. In a pod that is the container `compiler`, which holds
no credential (compiler.py), and the worker, which does, asks it over a socket: remote.py. What
comes back of either is a stranger's (compiling.py, workshop.py).
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import msgspec

import stitch_worker
import stitchcore
from stitch_worker import units
from stitch_worker.units import Unit
from stitchcore.artifact.check import read_files, read_regular
from stitchcore.device.records import device_of
from stitchcore.errors import Reason, Refusal, Refused
from stitchcore.inject.contract import MANIFEST
from stitchcore.sandbox import isolate
from stitchcore.toolchain import c_compiler
from stitchcore.toolchain.c_compiler import command, find_compiler

log = logging.getLogger("stitch.compiler")
SOURCES = tuple(
    dict.fromkeys(
        str(Path(str(module.__file__)).resolve().parents[1])
        for module in (stitchcore, stitch_worker)
    )
)
TICK_SECONDS = 0.01
FOLDER_BYTES = 256 * 2**20
REFUSAL_BYTES = 65536
_PROGRAM = 'cat > kernels.c && "$@"; code=$?; times >&2; [ $code = 0 ] && cat kernels.so'
"""The shell's arguments are the compiler's command."""
_TIMES = re.compile(rb"(\d+)m([\d.]+)s (\d+)m([\d.]+)s\n(\d+)m([\d.]+)s (\d+)m([\d.]+)s\n\Z")


class Handed(msgspec.Struct, frozen=True, tag=True):
    """What a compile child gets: the request's files, its key, how to plan, the target."""

    key: str
    graph: bytes
    meta: bytes
    planner: str
    jobs: int
    tune: float
    target: str


class Look(msgspec.Struct, frozen=True, tag=True):
    """A child as it was just seen: processor seconds of its tree so far, its exit code once it has
    ended, and the limit that it broke, in words."""

    seconds: float
    code: int | None = None
    broken: str | None = None


@dataclass(frozen=True)
class Left:
    """What a child left: its refusal's bytes, an artifact's files, or why those cannot be read."""

    refused: bytes | None = None
    files: dict[str, bytes] | None = None
    unreadable: str = ""


class Running(Protocol):
    """A compile child. Every call may raise OSError where who started it is gone."""

    def look(self) -> Look: ...

    def left(self) -> Left: ...

    def stop(self) -> float:
        """End it and all it started; the processor seconds that it used in all. May be called
        again."""


class Children(Protocol):
    """Who starts them."""

    def ready(self) -> None:
        """Raises OSError where nobody can start any."""

    def start(self, handed: Handed, lines: int, channel: int | None) -> Running:
        """A compile child that writes progress to the descriptor `lines`, and has C compiled at
        `channel` (child.py). Raises OSError."""

    def compile(
        self, source: bytes, key: str, target: str, unwanted: Callable[[], bool]
    ) -> tuple[Unit | None, float]:
        """The unit of `source`, made in a process that sees nothing else, and the processor seconds
        it took; None where it fails, breaks a limit, or is `unwanted`. Raises OSError."""


@dataclass(frozen=True)
class Local:
    """Children of this process. Their output is in the folder `logs`."""

    limits: isolate.Limits
    logs: Path

    def ready(self) -> None:
        """They can be started where this process could."""

    def start(self, handed: Handed, lines: int, channel: int | None) -> Running:
        environment = {"PYTHONPATH": os.pathsep.join(SOURCES), "TF_CPP_MIN_LOG_LEVEL": "2"}
        handles = [] if channel is None else [channel]
        self.logs.mkdir(parents=True, exist_ok=True)
        with (self.logs / f"{handed.key[:16]}.log").open("wb") as errors:
            child = isolate.command(
                [sys.executable, "-m", "stitch_worker.child", ".", *map(str, handles)],
                replace(self.limits, apart=True, shown=(*self.limits.shown, *SOURCES)),
                environment=environment,
                stdout=lines,
                stderr=errors,
                pass_fds=handles,
                gpus=handed.target.startswith("sm_"),
            )
        try:
            _hand_over(child.folder, handed)
        except BaseException:
            child.stop()
            raise
        return _Local(child, self.limits.seconds)

    def compile(
        self, source: bytes, key: str, target: str, unwanted: Callable[[], bool]
    ) -> tuple[Unit | None, float]:
        device, compiler = device_of(target), find_compiler()
        if device is None:
            return None, 0.0
        argv = command(compiler, device)
        return compile_alone(source, key, argv, compiler.version, self.limits, unwanted)


@dataclass(frozen=True)
class _Local:
    child: isolate.Child
    most_seconds: float

    def look(self) -> Look:
        exceeded, code = self.child.exceeded(), self.child.poll()
        broken = f"it used {exceeded}" if exceeded else None
        if self.child.late():
            broken = f"it took longer than {self.most_seconds:g} s"
        return Look(self.child.seconds, code, broken)

    def left(self) -> Left:
        folder = self.child.folder
        try:
            if (folder / "refused.json").exists():
                return Left(refused=read_regular(folder / "refused.json", REFUSAL_BYTES))
            if not (folder / "unsigned" / MANIFEST).exists():
                return Left()
            return Left(files=read_files(folder / "unsigned"))
        except OSError as error:
            return Left(unreadable=repr(error))
        except Refused as error:
            return Left(refused=document(error.refusal))

    def stop(self) -> float:
        self.child.stop()
        return self.child.seconds


def document(refusal: Refusal) -> bytes:
    """A refusal as a child leaves it."""
    fields = {"subject": refusal.subject, "reason": refusal.reason.value, "detail": refusal.detail}
    return json.dumps(fields).encode()


def refusal_of(data: bytes) -> Refusal:
    """What a child's document says, in words that print. Raises ValueError, KeyError, TypeError or
    RecursionError for what is none."""
    said = json.loads(data)
    reason = Reason(said["reason"])
    return Refusal(plain(said["subject"], 200), reason, plain(said["detail"], 500))


def plain(text: object, most: int) -> str:
    """A stranger's words as they may go to terminals, logs and UTF-8: nothing that does not
    print."""
    return "".join(character if character.isprintable() else " " for character in str(text)[:most])


def _hand_over(folder: Path, handed: Handed) -> None:
    """The child waits for `options.json`, which comes last."""
    (folder / "request").mkdir()
    (folder / "request" / "graph.pb").write_bytes(handed.graph)
    (folder / "request" / "meta.json").write_bytes(handed.meta)
    named = ("key", "planner", "jobs", "tune")
    (folder / ".options").write_text(json.dumps({name: getattr(handed, name) for name in named}))
    (folder / ".options").rename(folder / "options.json")


# ---- one translation unit ------------------------------------------------------------------------
def compile_alone(
    source: bytes,
    key: str,
    compiler: Sequence[str],
    version: str,
    limits: isolate.Limits,
    unwanted: Callable[[], bool],
) -> tuple[Unit | None, float]:
    """The unit of `source`, made by `compiler` in a process of its own, and the processor seconds
    it took; None where it fails, breaks a limit, or is `unwanted`. Raises OSError."""
    with (
        _memory(b"source", source) as stdin,
        _memory(b"library") as stdout,
        _memory(b"said") as stderr,
    ):
        argv = ["sh", "-c", _PROGRAM, "sh", *compiler]
        compiler_limits = replace(
            limits,
            private=FOLDER_BYTES,
            file_bytes=units.MAXIMUM_LIBRARY,
            apart=True,
            shown=(*limits.shown, str(c_compiler.INCLUDE)),
        )
        child = isolate.command(argv, compiler_limits, stdin=stdin, stdout=stdout, stderr=stderr)
        started = time.monotonic()
        look = started + 0.5
        try:
            while (code := child.poll()) is None:
                time.sleep(TICK_SECONDS)
                if unwanted() or child.late():
                    break
                if time.monotonic() > look:
                    look += 0.5
                    if child.exceeded() is not None:
                        break
        finally:
            child.stop()
        elapsed = time.monotonic() - started
        remarks = _content(stderr, units.MAXIMUM_REMARKS)
        if code != 0:
            log.warning("unit %s: %s", key[:16], _short(remarks) if code else "it was ended")
            return None, elapsed if code is None else min(elapsed, _seconds(remarks, elapsed))
        seconds = min(elapsed, _seconds(remarks, elapsed))
        library = _content(stdout, units.MAXIMUM_LIBRARY)
    return Unit(key, version, _TIMES.sub(b"", remarks).decode(errors="replace"), library), seconds


def _seconds(said: bytes, otherwise: float) -> float:
    """Processor seconds of the compiler, by the shell's `times`."""
    times = _TIMES.search(said)
    if times is None:
        return otherwise
    parts = [float(part) for part in times.groups()]
    return sum(
        60 * minutes + seconds for minutes, seconds in zip(parts[::2], parts[1::2], strict=True)
    )


def _short(said: bytes) -> str:
    """What a compiler says, as a line of a log; a stranger's text."""
    return repr(_TIMES.sub(b"", said)[-300:].decode(errors="replace"))


@contextmanager
def _memory(name: bytes, content: bytes = b"") -> Iterator[int]:
    """A file in memory that has no name; the descriptor stands at its beginning."""
    handle = os.memfd_create(name.decode(), os.MFD_CLOEXEC)
    try:
        with os.fdopen(handle, "wb", closefd=False) as file:
            file.write(content)
        os.lseek(handle, 0, os.SEEK_SET)
        yield handle
    finally:
        os.close(handle)


def _content(handle: int, limit: int) -> bytes:
    """The first `limit` bytes of a file in memory."""
    return os.pread(handle, limit, 0)
