"""Has compiled what a compile child asks for, outside of it: one process per translation unit.

The child parses a stranger's graph and may have been taken over; the C it sends is a stranger's
text, and the compiler that reads it may be taken over too. But a unit is cached under the digest of
its text, and the process that compiles it gets that text alone, on a descriptor, and works in a
folder that no other child reaches: whatever happens in it is a function of the text. So no text can
change what is cached for another one.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec

from stitch_worker import units
from stitch_worker.children import Children
from stitch_worker.units import Unit, Units
from stitchcore.device.records import Device, device_of
from stitchcore.errors import Reason, Refused
from stitchcore.toolchain.c_compiler import Compiler, find_compiler, unit_key

log = logging.getLogger("stitch.workshop")


@dataclass
class Workshop:
    """Serves one compile child. `counts` are units by result: hit (was cached), miss
    (compiled and cached), refused (what was cached is not a worker's; compiled anew), failed (left
    to the child); `seconds` the processor seconds that compilers used."""

    cache: Units
    children: Children
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
                log.warning("a compile child is served no more: %s", error)
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
        unit, seconds = self.children.compile(data, key, self.cache.target, self._end.is_set)
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
