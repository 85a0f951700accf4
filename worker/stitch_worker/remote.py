"""Compile children of another container, asked for over a Unix socket (compiler.py listens there).

A connection is one matter: a byte that may carry descriptors, then frames (units.py) of msgpack,
each of a bounded size. Neither end believes the other: a compiler gets no more than a graph and its
settings, and whoever took it over says what a compile child could have said, which is judged the
same (compiling.py).
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from stitch_worker import units
from stitch_worker.children import REFUSAL_BYTES, Handed, Left, Look, Running
from stitch_worker.units import Unit
from stitchcore.artifact.check import MAXIMUM_FILE_BYTES, MAXIMUM_FILES
from stitchcore.errors import Reason, Refused
from stitchcore.inject.contract import FILE_NAME, MAXIMUM_ARTIFACT_BYTES
from stitchcore.toolchain.c_compiler import find_compiler

log = logging.getLogger("stitch.worker")
MOST_HANDED = 96 * 2**20
"""Of graph and settings: children take graphs of 64 MiB."""
MOST_LEAVING = 2 * REFUSAL_BYTES
MOST_SAID = 65536
READY_SECONDS = 10.0
"""A container that was ended is back within seconds, and whoever waits is told of its graph every
15 (answers.py)."""
ANSWER_SECONDS = 60.0
TICK_SECONDS = 0.1
T = TypeVar("T")


class Greet(msgspec.Struct, frozen=True, tag=True):
    """Answered by About."""


class About(msgspec.Struct, frozen=True, tag=True):
    """What a compiler's children make: for which target and TensorFlow, so many units at a time."""

    target: str
    tf: str
    jobs: int


class Compile(msgspec.Struct, frozen=True, tag=True):
    """Answered by Compiled; closing the connection ends it."""

    key: str
    source: bytes
    target: str


class Compiled(msgspec.Struct, frozen=True, tag=True):
    """No library: it failed."""

    library: bytes | None
    remarks: str
    seconds: float


class LookAt(msgspec.Struct, frozen=True, tag=True):
    """Of a Handed's connection: answered by Look."""


class Collect(msgspec.Struct, frozen=True, tag=True):
    """The same: answered by Leaving, and a frame for each file that it names."""


class Leaving(msgspec.Struct, frozen=True, tag=True):
    """children.Left."""

    refused: bytes | None = None
    names: list[str] | None = None
    unreadable: str = ""


class End(msgspec.Struct, frozen=True, tag=True):
    """The same: the child is ended, answered by the last Look. Closing the connection does so,
    too."""


def say(connection: socket.socket, message: msgspec.Struct) -> None:
    """Raises OSError."""
    units.send(connection, msgspec.msgpack.encode(message))


def hear(connection: socket.socket, kind: type[T] | Any, most: int) -> T:
    """The next message. Raises ConnectionError where the other end is gone, or says what cannot
    be; TimeoutError."""
    try:
        data = units.receive(connection, most)
        if data is None:
            raise ConnectionError("the other end is gone")
        heard: T = msgspec.msgpack.decode(data, type=kind)
        return heard
    except (ValueError, msgspec.DecodeError) as error:
        raise ConnectionError(f"the other end says what cannot be: {error}") from error


@dataclass(frozen=True)
class Remote:
    """Children of who listens at `path`."""

    path: Path

    def about(self) -> About:
        """Raises OSError."""
        with self._asked(Greet()) as connection:
            about: About = hear(connection, About, MOST_SAID)
            return about

    def awaited(self) -> About:
        """As soon as it answers: it starts beside its worker."""
        told = False
        while True:
            try:
                return self.about()
            except OSError as error:
                if not told:
                    log.info("the compiler at %s is waited for: %s", self.path, error)
                    told = True
            time.sleep(1.0)

    def ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                self.about()
                return
            except OSError as error:
                if time.monotonic() > deadline:
                    raise ConnectionError(f"no compiler at {self.path}: {error}") from error
            time.sleep(TICK_SECONDS)

    def start(self, handed: Handed, lines: int, channel: int | None) -> Running:
        """Raises OSError, and Refused(GRAPH_TOO_LARGE) for what cannot be handed over."""
        if len(handed.graph) + len(handed.meta) > MOST_HANDED - MOST_SAID:
            raise Refused("graph", Reason.GRAPH_TOO_LARGE, f"{len(handed.graph)} bytes")
        connection = self._asked(handed, [lines, *([] if channel is None else [channel])])
        child = _Remote(connection)
        try:
            hear(connection, Look, MOST_SAID)
        except OSError:
            connection.close()
            raise
        return child

    def compile(
        self, source: bytes, key: str, target: str, unwanted: Callable[[], bool]
    ) -> tuple[Unit | None, float]:
        began = time.monotonic()
        with self._asked(Compile(key, source, target)) as connection:
            while not select.select([connection], [], [], TICK_SECONDS)[0]:
                if unwanted():
                    return None, time.monotonic() - began
            most = units.MAXIMUM_LIBRARY + units.MAXIMUM_REMARKS + MOST_SAID
            heard: Compiled = hear(connection, Compiled, most)
        seconds = believed(heard.seconds, time.monotonic() - began)
        if heard.library is None:
            return None, seconds
        return Unit(key, find_compiler().version, heard.remarks, heard.library), seconds

    def _asked(self, first: msgspec.Struct, handles: Sequence[int] = ()) -> socket.socket:
        """A connection that begins with `first`. Raises OSError."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(ANSWER_SECONDS)
            connection.connect(str(self.path))
            socket.send_fds(connection, [b"\0"], handles)
            say(connection, first)
        except OSError:
            connection.close()
            raise
        return connection


def believed(seconds: float, most: float) -> float:
    """What another one says that it has used, as far as that can be."""
    return min(max(0.0, seconds), most) if math.isfinite(seconds) else 0.0


class _Remote:
    """A child at the other end of a connection, which is its life."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._began = time.monotonic()
        self._seconds = 0.0

    def look(self) -> Look:
        return self._seen(LookAt())

    def left(self) -> Left:
        say(self._connection, Collect())
        leaving: Leaving = hear(self._connection, Leaving, MOST_LEAVING)
        if leaving.names is None:
            return Left(leaving.refused, None, leaving.unreadable)
        if len(leaving.names) > MAXIMUM_FILES or not all(map(FILE_NAME.fullmatch, leaving.names)):
            return Left(unreadable="names that no artifact has")
        files, remaining = {}, MAXIMUM_ARTIFACT_BYTES
        for name in leaving.names:
            files[name] = self._file(min(remaining, MAXIMUM_FILE_BYTES))
            remaining -= len(files[name])
        return Left(files=files)

    def stop(self) -> float:
        with self._connection, contextlib.suppress(OSError):
            self._seen(End())
        return self._seconds

    def _seen(self, request: msgspec.Struct) -> Look:
        say(self._connection, request)
        seen: Look = hear(self._connection, Look, MOST_SAID)
        most = (time.monotonic() - self._began) * (os.cpu_count() or 1)
        self._seconds = max(self._seconds, believed(seen.seconds, most))
        return Look(self._seconds, seen.code, seen.broken)

    def _file(self, most: int) -> bytes:
        try:
            data = units.receive(self._connection, most)
        except ValueError as error:
            raise ConnectionError(f"a file that no artifact has: {error}") from error
        if data is None:
            raise ConnectionError("the other end is gone")
        return data
