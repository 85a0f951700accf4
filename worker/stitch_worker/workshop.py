"""Compiles what a compile child asks for, outside of it: one process per translation unit.

The child parses a stranger's graph and may have been taken over; the C it sends is a stranger's
text, and the compiler that reads it may be taken over too. But a unit is cached under the digest of
its text, and the process that compiles it gets that text alone, on a descriptor, and works in a
folder that no other child reaches: whatever happens in it is a function of the text. So no text can
change what is cached for another one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import msgspec

from stitch_worker import units
from stitch_worker.units import Unit, Units
from stitchcore.device.records import Device, device_of
from stitchcore.errors import Reason, Refused
from stitchcore.sandbox import isolate
from stitchcore.toolchain import c_compiler
from stitchcore.toolchain.c_compiler import Compiler, command, find_compiler, unit_key

log = logging.getLogger("stitch.workshop")
TICK_SECONDS = 0.01
FOLDER_BYTES = 256 * 2**20
_PROGRAM = 'cat > kernels.c && "$@"; code=$?; times >&2; [ $code = 0 ] && cat kernels.so'
"""The shell's arguments are the compiler's command."""
_TIMES = re.compile(rb"(\d+)m([\d.]+)s (\d+)m([\d.]+)s\n(\d+)m([\d.]+)s (\d+)m([\d.]+)s\n\Z")


@dataclass
class Workshop:
    """Serves one compile child. `counts` are units by result: hit (was cached), miss
    (compiled and cached), refused (what was cached is not a worker's; compiled anew), failed (left
    to the child); `seconds` the processor seconds that compilers used."""

    cache: Units
    limits: isolate.Limits
    jobs: int
    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    _end: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def open(self) -> Iterator[socket.socket]:
        """The child's end of the channel, served until the block ends."""
        ours, theirs = socket.socketpair()
        thread = threading.Thread(target=self._serve, args=(ours,), name="workshop", daemon=True)
        thread.start()
        try:
            yield theirs
        finally:
            self._end.set()
            theirs.close()
            _shut(ours)
            thread.join()
            ours.close()

    def _serve(self, channel: socket.socket) -> None:
        device, compiler = device_of(self.cache.target), find_compiler()
        assert device is not None, "a worker begins with a target that is known"
        try:
            while (sources := _receive_sources(channel)) is not None:
                with ThreadPoolExecutor(max_workers=max(1, self.jobs)) as pool:
                    compiled = pool.map(
                        lambda source: self._unit(source, device, compiler), sources
                    )
                    for unit, result, seconds in compiled:
                        self.counts[result] += 1
                        self.seconds += seconds
                        with contextlib.suppress(OSError):  # who asked is gone; the rest counts too
                            units.send(channel, msgspec.msgpack.encode(unit) if unit else b"")
        except (OSError, ValueError) as error:
            if not self._end.is_set():
                log.warning("a compile child asks for what cannot be: %s", error)
        finally:
            _shut(channel)  # whoever waits for an answer learns that none comes

    def _unit(self, data: bytes, device: Device, compiler: Compiler) -> Compiled:
        key = unit_key(data.decode(), compiler, device)
        result = "miss"
        try:
            cached = self.cache.find(key)
            if cached is not None:
                return cached, "hit", 0.0
        except Refused as refused:
            log.warning("%s", refused.refusal)
            if refused.refusal.reason is not Reason.STORE_UNREADABLE:
                result = "refused"
        unit, seconds = compile_alone(
            data, key, command(compiler, device), compiler.version, self.limits, self._end
        )
        if unit is None:
            return None, "failed", seconds
        try:
            self.cache.put(unit)
        except Refused as refused:
            log.warning("not cached: %s", refused.refusal)
            if refused.refusal.reason is not Reason.STORE_UNREADABLE:
                return None, "failed", seconds
        return unit, result, seconds


Compiled = tuple[Unit | None, str, float]
"""A unit, its result (`Workshop.counts`), processor seconds."""


def _shut(channel: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the other end is gone
        channel.shutdown(socket.SHUT_RDWR)


def _receive_sources(channel: socket.socket) -> list[bytes] | None:
    """The sources of a round: their number, then each. Raises ValueError for too many or large."""
    head = units.receive(channel, 4)
    if head is None:
        return None
    count = int.from_bytes(head, "big")
    if count > units.MAXIMUM_UNITS:
        raise ValueError(f"{count} units")
    sources, remaining = [], units.MAXIMUM_BYTES
    for _ in range(count):
        source = units.receive(channel, min(remaining, units.MAXIMUM_SOURCE))
        if source is None:
            return None
        remaining -= len(source)
        sources.append(source)
    return sources


def compile_alone(
    source: bytes,
    key: str,
    compiler: list[str],
    version: str,
    limits: isolate.Limits,
    end: threading.Event,
) -> tuple[Unit | None, float]:
    """The unit of `source`, made by `compiler` in a process of its own, and the processor seconds
    it took; None where it fails, breaks a limit, or `end` is set. Raises OSError."""
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
                if end.wait(TICK_SECONDS) or child.late():
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
