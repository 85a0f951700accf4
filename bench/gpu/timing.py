"""Interleaved seconds on a GPU: caches flushed before each, host and device each by their clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from stitchcore.runtime.gpu.device import Device
from stitchcore.verify.timing import Comparison

FLUSH_BYTES = 256 << 20
"""More than any L2 cache holds."""
COPY_BYTES = 1 << 30
ROUNDS = 21
WARM_UPS = 3
FLUSH = "stitch_flush"
"""The kernel that fills the L2 cache: in a trace it stands between runs."""


class Clock:
    """Times calls on one device. Memory for flushing is taken once."""

    def __init__(
        self, device: Device, flush_bytes: int = FLUSH_BYTES, copy_bytes: int = COPY_BYTES
    ) -> None:
        self.device = device
        self._copy_bytes = copy_bytes
        self._dirt = device.allocate(flush_bytes)
        self._bytes = flush_bytes
        self._fill = _filler(device.arrays)

    def close(self) -> None:
        self.device.release(self._dirt)

    def flush(self) -> None:
        """Fill the L2 cache with something else, and wait for it."""
        dirt = self.device.array(self._dirt.address, "u8", (self._bytes,))
        self.device.enqueue(lambda: self._fill(dirt))
        self.device.synchronize()

    def steps(self, calls: Mapping[str, Callable[[], None]], rounds: int = ROUNDS) -> Comparison:
        """Wall seconds of calls that wait for their device: what a training loop sees."""

        def seconds(call: Callable[[], None]) -> float:
            start = time.perf_counter()
            call()
            return time.perf_counter() - start

        return self._interleaved(calls, seconds, rounds)

    def work(self, calls: Mapping[str, Callable[[], None]], rounds: int = ROUNDS) -> Comparison:
        """Seconds of the device by events around what calls put into its stream."""

        def seconds(call: Callable[[], None]) -> float:
            begin = self.device.mark()
            call()
            return self.device.seconds(begin, self.device.mark())

        return self._interleaved(calls, seconds, rounds)

    def _interleaved(
        self,
        calls: Mapping[str, Callable[[], None]],
        seconds: Callable[[Callable[[], None]], float],
        rounds: int,
    ) -> Comparison:
        for call in calls.values():
            for _ in range(WARM_UPS):
                call()
        found: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name, call in calls.items():
                self.flush()
                found[name].append(seconds(call))
        return Comparison({name: np.asarray(values) for name, values in found.items()})

    def copy_bandwidth(self) -> float:
        """Bytes a second that a copy within the device reads and writes."""
        size = self._copy_bytes
        buffers = [self.device.allocate(size) for _ in range(2)]
        source, target = (self.device.array(b.address, "u8", (size,)) for b in buffers)

        def copy() -> None:
            target[...] = source

        found = self.work({"copy": lambda: self.device.enqueue(copy)})
        for buffer in buffers:
            self.device.release(buffer)
        return 2 * size / found.median("copy")


def _filler(xp: Any) -> Callable[[Any], object]:
    """A kernel of its own name where the array module can have one (CuPy)."""
    if not hasattr(xp, "ElementwiseKernel"):
        return lambda dirt: dirt.fill(1)
    kernel = xp.ElementwiseKernel("", "uint8 dirt", "dirt = 1", FLUSH)
    return lambda dirt: kernel(dirt)
