"""The process's peak memory with stitched steps against its peak with original ones.

An estimate of live bytes cannot tell what a job's allocators keep, so the job measures while its
blocks alternate. On a CPU the native sampler (native/memory.cc) gives the most resident bytes of
each block; the untouched peak is the higher of what the process had reached before the swap and of
the original blocks. On a GPU it is the allocator's own peak before the swap and after, which only
grows: its counts are the user's and are never reset, so a step on a GPU begins with its original
where it can. Memory that an allocator keeps counts in both arms.

A peak counts once two stitched blocks have reached it: what the job does now and then between two
steps (a checkpoint, an evaluation) is nobody's step, and what grows all the while has grown in the
original block that lies between them.

On a GPU an operation that finds no memory ends the job, and a step that has begun cannot be begun
again: so there is no swap where the GPU has no room for what a stitched step may hold (`no_room`).
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Optional, Sequence

from .plugin import Peak, Plugin

LIMIT = 1.05  # of the untouched peak: beyond it the swap is taken back
SLACK = 2**20  # below this nobody's memory is short: the worker lets a step hold so much more
ROOM = 2 * (LIMIT - 1)  # of the untouched peak, to be free before a swap: the worker only estimates
ESTIMATED = 2  # times what the worker says a stitched step holds, where no step has run
BLOCKS = 3  # of each arm, sampled, before anything is said
ENOUGH = 12  # blocks of each arm after which nothing new is looked for
IDLE_SECONDS = 600.0  # without a new block, after which a step is not watched any more
STATUS = "/proc/self/status"
LOCAL = "/job:localhost/replica:0/task:0"  # left out of a logical device's name


@dataclass(frozen=True)
class Finding:
    """Peaks in bytes, of the process (`of` "resident") or of its GPUs ("allocator"); zeros and
    `why` where there are none to compare. The peak may grow by `more` bytes if 5 % is less."""

    of: str = "resident"
    stitched: int = 0
    untouched: int = 0
    why: str = ""
    more: int = 0

    @property
    def ratio(self) -> float:
        return self.stitched / self.untouched if self.untouched else 0.0

    @property
    def over(self) -> bool:
        """Whether the swap is to be taken back."""
        return self.ratio > LIMIT and self.stitched > self.untouched + max(self.more, SLACK)

    @property
    def detail(self) -> str:
        both = f"{self.stitched / 2**20:,.0f} MiB, {self.untouched / 2**20:,.0f} untouched"
        return f"peak of {self.of} memory {both}: {self.ratio:.3f} times"

    def fields(self) -> Dict[str, Any]:
        """For events."""
        if self.why:
            return {"of": self.of, "why": self.why}
        peaks = {"stitched": self.stitched, "untouched": self.untouched}
        return {"of": self.of, **peaks, "ratio": round(self.ratio, 4)}


class Watch:
    """Of one step, from just before its swap on. Never raises."""

    def __init__(
        self, native: Plugin, step: int, on_gpu: bool, untouched_steps: int, more: int = 0
    ) -> None:
        self._plugin = native
        self._step = step
        self._more = more
        self._of = "allocator" if on_gpu else "resident"
        self._blocks = 0
        self._idle_at = time.monotonic() + IDLE_SECONDS
        self._why = ""
        self._before = 0
        if on_gpu:
            self._before = allocated_peak() if untouched_steps > 1 else 0
            if not self._before:
                silent = "the allocator does not tell its peak"
                self._why = silent if untouched_steps > 1 else "no untouched step before the swap"
        else:
            self._before = resident_peak()
            if not native.watch_memory(step):
                self._why = "the system does not tell what is resident"

    def look(self, decided: bool, enough: bool) -> Optional[Finding]:
        """What has been found, once it is: the swap's time is `decided`, or `enough` pairs of
        blocks have been timed. None: not yet."""
        if self._why:
            return Finding(self._of, why=self._why)
        finding = self._measured(enough or decided)
        if finding is not None and (finding.over or decided or enough or self._has_enough()):
            self.close()
            return finding
        if not enough and not self._idle():
            return None
        self.close()
        short = "its steps are too short to be sampled"
        return Finding(self._of, why=short if enough else "it is not called any more")

    def close(self) -> None:
        """Ends the sampling."""
        self._plugin.unwatch_memory(self._step)

    def last(self) -> Finding:
        """What is known at the end of the job."""
        self.close()
        why = self._why or "the job ended before there were enough blocks"
        return (None if self._why else self._measured(True)) or Finding(self._of, why=why)

    def _measured(self, late: bool) -> Optional[Finding]:
        if self._of == "resident":
            return compare(self._plugin.memory(self._step), self._before, self._more)
        now = allocated_peak() if self._before else 0
        finding = Finding(self._of, now, self._before, more=self._more)
        return finding if now and (late or finding.over) else None

    def _idle(self) -> bool:
        blocks = len(self._plugin.memory(self._step))
        if blocks != self._blocks:
            self._blocks, self._idle_at = blocks, time.monotonic() + IDLE_SECONDS
        return time.monotonic() > self._idle_at

    def _has_enough(self) -> bool:
        arms = [peak.arm for peak in self._plugin.memory(self._step)]
        return min(arms.count(0), arms.count(1)) >= ENOUGH


def compare(peaks: Sequence[Peak], before: int, more: int = 0) -> Optional[Finding]:
    """Of sampled blocks; None while there are too few of either arm."""
    original = sorted(peak.bytes for peak in peaks if peak.arm == 0)
    stitched = sorted(peak.bytes for peak in peaks if peak.arm == 1)
    if min(len(original), len(stitched)) < BLOCKS:
        return None
    return Finding("resident", stitched[-2], max(before, original[-1]), more=more)


def resident_peak() -> int:
    """The most resident bytes of this process so far; 0 where the system does not tell. The mark is
    read and never reset: the user may read it too."""
    try:
        with open(STATUS, encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return 0


@dataclass(frozen=True)
class Allocator:
    """Of one GPU: bytes that it has given out now and at most, and that it can give out at all."""

    device: str
    current: int
    peak: int
    limit: int


def allocators() -> List[Allocator]:
    """Of all GPUs; none where TensorFlow does not tell. It is not asked where the job has no eager
    context: that would make one."""
    try:
        context = sys.modules["tensorflow.python.eager.context"]
        if context._context is None or not context._context._initialized:
            return []
        limits = _limits(context._context)
        devices = context._context.list_logical_devices("GPU")
        usage = [context._context.get_memory_info(device.name) for device in devices]
        return [
            Allocator(device.name, int(each["current"]), int(each["peak"]), limits[device.name])
            for device, each in zip(devices, usage)
        ]
    except Exception:  # private names, and statistics that an allocator may not keep
        return []


def _limits(context: Any) -> Dict[str, int]:
    """By the name of a logical device."""
    from tensorflow.python import pywrap_tfe
    from tensorflow.python.client import pywrap_tf_session

    known = pywrap_tfe.TFE_ContextListDevices(context._context_handle)
    try:
        return {
            pywrap_tfe.TF_DeviceListName(known, i).replace(
                LOCAL, ""
            ): pywrap_tf_session.TF_DeviceListMemoryBytes(known, i)
            for i in range(pywrap_tfe.TF_DeviceListCount(known))
        }
    finally:
        pywrap_tfe.TF_DeleteDeviceList(known)


def allocated_peak() -> int:
    """The most bytes that the allocators of all GPUs have given out so far; 0 where TensorFlow does
    not tell."""
    return sum(allocator.peak for allocator in allocators())


def no_room(
    known: Iterable[Allocator], untouched: bool, estimate: int, more: int = 0
) -> Optional[str]:
    """Which GPU could not hold a stitched step for sure; None where all can, or do not tell.

    Where `untouched` steps have run they fit into the peak, and a stitched one holds little more
    than they did (`more` bytes if the user allows that); else it holds about `estimate`."""
    for each in (one for one in known if one.limit > 0):
        free, wanted = each.limit - each.peak, max(round(ROOM * each.peak), more, SLACK)
        if not untouched:
            free, wanted = each.limit - each.current, ESTIMATED * estimate
        if free < wanted:
            has = f"{each.device} has {free / 2**20:,.0f} of {each.limit / 2**20:,.0f} MiB left"
            return f"{has}, a swap takes {wanted / 2**20:,.0f}"
    return None
