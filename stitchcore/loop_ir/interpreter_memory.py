"""Memory of the loop IR interpreter: buffers that remember who touched each element last.

An access is by a task (to LOCAL memory by a group, which runs tasks one after another), between two
barriers (an epoch), by one lane or by all of them, and, inside a lane loop, by one iteration. Two
accesses to one element of which one writes are a race when they are in one phase and by different
tasks, or in one epoch and by different lanes, or in one lane loop and by different iterations
(which a CPU runs as one vector).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.loop_ir import index
from stitchcore.loop_ir.nodes import Buffer, Kernel, Role

Array = np.ndarray[Any, np.dtype[Any]]

ALL_LANES = -2
_NEVER = -1


class KernelError(Exception):
    """The kernel breaks a rule of the loop IR; the message names kernel, buffer and element."""


class Race(KernelError):
    """Two accesses to one element are not ordered, and one of them writes."""


@dataclass(frozen=True)
class Access:
    """Who accesses. `lane` and `iteration` are arrays in a lane loop, else one number.

    Tasks are numbered from 1 over the whole run, so tasks of this phase are >= `phase_start`.
    Iterations are numbered over the whole run, so those of this lane loop are >= `loop_start`.
    """

    task: int
    phase_start: int
    epoch: int
    lane: Any
    iteration: Any
    loop_start: int


class _Trace:
    """The last access of one kind (read or write) to every element."""

    def __init__(self, size: int, written: bool) -> None:
        self.task = np.full(size, 0 if written else _NEVER, np.int64)
        self.epoch = np.full(size, _NEVER, np.int64)
        self.lane = np.full(size, _NEVER, np.int64)
        self.iteration = np.full(size, _NEVER, np.int64)
        self.shared = np.full(size, _NEVER, np.int64)  # phase in which several tasks came here

    def conflicts(self, at: Array, by: Access) -> Array:
        """Which of the positions `at` were touched, unordered, by someone else."""
        recent = self.task[at] >= by.phase_start
        other_task = (self.task[at] != by.task) | (self.shared[at] == by.phase_start)
        iteration = self.iteration[at]
        same_loop = (iteration >= by.loop_start) | (iteration == ALL_LANES)
        other_lane = (self.lane[at] != by.lane) | (self.lane[at] == ALL_LANES)
        inside = np.where(same_loop, iteration != by.iteration, other_lane)
        conflict: Array = recent & (other_task | ((self.epoch[at] == by.epoch) & inside))
        return conflict

    def record_write(self, at: Array, by: Access) -> Array:
        """Remember the access; returns which positions several iterations wrote."""
        self.task[at], self.epoch[at], self.lane[at] = by.task, by.epoch, by.lane
        self.iteration[at] = by.iteration
        clash: Array = self.iteration[at] != by.iteration
        return clash

    def record_read(self, at: Array, by: Access) -> None:
        """Remember the access, and that several readers came where that is so."""
        recent = self.task[at] >= by.phase_start
        self.shared[at[recent & (self.task[at] != by.task)]] = by.phase_start
        together = recent & (self.task[at] == by.task) & (self.epoch[at] == by.epoch)
        lane = np.where(together & (self.lane[at] != by.lane), ALL_LANES, by.lane)
        many = together & (self.iteration[at] != by.iteration)
        many &= self.iteration[at] >= by.loop_start
        iteration = np.where(many, ALL_LANES, by.iteration)
        self.task[at], self.epoch[at] = by.task, by.epoch
        self.lane[at], self.iteration[at] = lane, iteration
        self.lane[at[self.lane[at] != lane]] = ALL_LANES
        self.iteration[at[self.iteration[at] != iteration]] = ALL_LANES


class Memory:
    """One buffer: flat data, dimensions, and traces unless it is read only."""

    def __init__(self, name: str, data: Array, dims: tuple[int, ...], mode: str) -> None:
        """`mode`: "input" (read only), "shared" (a forwarded input), "fresh" (poisoned)."""
        self.name, self.data, self.dims, self.mode = name, data, dims, mode
        if mode == "fresh":
            data.view(np.uint8)[...] = 0xFF
        if mode != "input":
            self.reads = _Trace(data.size, False)
            self.writes = _Trace(data.size, mode == "shared")
            self.defined = np.full(data.size, mode == "shared")

    @staticmethod
    def local(buffer: Buffer, before: Memory | None = None) -> Memory:
        """Memory of a LOCAL buffer; its dimensions are integers. It lies where the task `before`
        had it: the values are gone, who accessed them is not."""
        dims = tuple(index.evaluate(extent, {}) for extent in buffer.dims)
        data = np.empty(int(np.prod(dims, dtype=np.int64)), DTYPES[buffer.dtype].numpy)
        memory = Memory(buffer.name, data, dims, "fresh")
        if before is not None:
            memory.reads, memory.writes = before.reads, before.writes
        return memory

    def array(self) -> Array:
        return self.data.reshape(self.dims)

    def positions(self, indices: Sequence[Any]) -> Array:
        """Flat positions of elements. Raises KernelError for an index outside its dimension."""
        flat: Any = np.zeros((), np.int64)
        for axis, (at, extent) in enumerate(zip(indices, self.dims, strict=True)):
            if np.any(np.asarray(at) < 0) or np.any(np.asarray(at) >= extent):
                raise KernelError(f"{self.name}: index {at} of axis {axis} not in [0, {extent})")
            flat = flat * extent + at
        return np.asarray(flat)

    def load(self, at: Array, by: Access) -> Array:
        if self.mode != "input":
            self._undefined(~self.defined[at], at)
            self._race(self.writes.conflicts(at, by), at, "read", by)
            self.reads.record_read(np.atleast_1d(at), by)
        return np.asarray(self.data[at])

    def store(self, at: Array, values: Array, by: Access) -> None:
        if self.mode == "input":
            raise KernelError(f"{self.name}: an input is written")
        self._race(self.writes.conflicts(at, by), at, "written twice", by)
        self._race(self.reads.conflicts(at, by), at, "read, then written", by)
        self._race(self.writes.record_write(at, by), at, "written by several iterations", by)
        self.data[at] = values
        self.defined[at] = True

    def check_written(self) -> None:
        """Raises KernelError when a task left an element of this output unwritten."""
        missing = np.flatnonzero(self.writes.task < 1)
        if missing.size:
            where = np.unravel_index(int(missing[0]), self.dims)
            raise KernelError(
                f"output {self.name}: {missing.size} elements never written,"
                f" first {[int(i) for i in where]}"
            )

    def _undefined(self, where: Array, at: Array) -> None:
        if np.any(where):
            raise KernelError(f"{self.name}: element {_first(where, at)} read but never written")

    def _race(self, where: Array, at: Array, what: str, by: Access) -> None:
        if np.any(where):
            raise Race(
                f"{self.name}: element {_first(where, at)} {what} with nothing to order it"
                f" (task {by.task}, epoch {by.epoch})"
            )


def _first(where: Array, at: Array) -> int:
    return int(np.broadcast_to(at, where.shape)[where][0])


def allocate(
    kernel: Kernel, inputs: Sequence[Array], bindings: Mapping[str, int], share_aliases: bool
) -> dict[Buffer, Memory]:
    """Memory of every buffer but the LOCAL ones. Raises ValueError for inputs that do not fit."""
    memories: dict[Buffer, Memory] = {}
    input_buffers = kernel.with_role(Role.INPUT)
    if len(input_buffers) != len(inputs):
        raise ValueError(f"{kernel.name}: {len(input_buffers)} inputs, {len(inputs)} given")
    for buffer, array in zip(input_buffers, inputs, strict=True):
        dims = tuple(index.evaluate(extent, bindings) for extent in buffer.dims)
        dtype = DTYPES[buffer.dtype].numpy
        if array.shape != dims or array.dtype != dtype:
            raise ValueError(
                f"{kernel.name}: input {buffer.name} must be {dtype}{dims},"
                f" is {array.dtype}{array.shape}"
            )
        memories[buffer] = Memory(buffer.name, np.ascontiguousarray(array).ravel(), dims, "input")
    outputs = kernel.with_role(Role.OUTPUT)
    if share_aliases:
        for source, target in kernel.aliases:
            old = memories[input_buffers[source]]
            memory = Memory(old.name, old.data.copy(), old.dims, "shared")
            memories[input_buffers[source]] = memories[outputs[target]] = memory
    for buffer in outputs:
        if buffer not in memories:
            dims = tuple(index.evaluate(extent, bindings) for extent in buffer.dims)
            data = np.empty(int(np.prod(dims, dtype=np.int64)), DTYPES[buffer.dtype].numpy)
            memories[buffer] = Memory(buffer.name, data, dims, "fresh")
    return memories | _scratch(kernel, bindings)


def _scratch(kernel: Kernel, bindings: Mapping[str, int]) -> dict[Buffer, Memory]:
    """Scratch buffers as views of one block: those that share bytes do so here too."""
    block = np.empty(index.evaluate(kernel.scratch_bytes, bindings), np.uint8)
    memories = {}
    for buffer, offset in zip(kernel.with_role(Role.SCRATCH), kernel.scratch_offsets, strict=True):
        dims = tuple(index.evaluate(extent, bindings) for extent in buffer.dims)
        dtype = DTYPES[buffer.dtype].numpy
        begin = index.evaluate(offset, bindings)
        size = int(np.prod(dims, dtype=np.int64)) * dtype.itemsize
        if begin < 0 or begin + size > block.size or begin % 64:
            raise KernelError(f"{kernel.name}: scratch {buffer.name} does not fit or is misaligned")
        memories[buffer] = Memory(
            buffer.name, block[begin : begin + size].view(dtype), dims, "fresh"
        )
    return memories
