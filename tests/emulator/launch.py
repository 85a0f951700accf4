"""Launching a compiled kernel on the emulator: memory, arguments, schedule; findings come back.

Buffers lie in one mapping, far apart, so that an index beyond one does not fall into the next; an
access is looked at before it happens, so one outside of all buffers ends the launch harmlessly.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from tests.emulator import findings
from tests.emulator.findings import Finding
from tests.emulator.program import DYNAMIC_BYTES, Program

Array = np.ndarray[Any, np.dtype[Any]]

GAP = 16 << 20
"""Bytes between two buffers that nothing may touch."""

MOST_FINDINGS = 64
MOST_THREADS = 16384
"""Threads that are resident at once: each has a stack."""

_MAP_NORESERVE = 0x4000  # Linux; Python's mmap module names it from 3.13
_alone = threading.Lock()


class Order(Enum):
    """In which order threads and blocks run."""

    FORWARD = 0
    REVERSE = 1
    RANDOM = 2


@dataclass(frozen=True)
class Schedule:
    """`preempt` lets a thread lose its turn at any access, not only where it waits."""

    order: Order = Order.FORWARD
    seed: int = 0
    preempt: bool = False


FORWARD = Schedule()


@dataclass(frozen=True)
class Grid:
    """`cooperative` blocks are all resident and may wait for each other; others run one by one."""

    blocks: tuple[int, int, int]
    threads: tuple[int, int, int]
    shared_bytes: int = 0
    cooperative: bool = False


@dataclass(frozen=True)
class Buffer:
    """Memory of a launch: `data` is copied in, and back into the result. What is not `initialised`
    must be written before it is read, and starts as all bits set. What is `blank` is zeros that
    take no memory until they are touched, whatever `data` holds: a trace's buffers are gigabytes.
    """

    name: str
    data: Array
    initialised: bool = True
    read_only: bool = False
    blank: bool = False


class Memory:
    """Buffers at their addresses in the emulated device. `addresses` in the order of `buffers`."""

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        self.buffers = tuple(buffers)
        sizes = [-(-buffer.data.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE for buffer in buffers]
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self._mapping = mmap.mmap(-1, sum(sizes) + GAP * (len(sizes) + 1), flags=flags)
        whole = np.frombuffer(self._mapping, np.uint8)
        self.addresses: list[int] = []
        self._arrays: list[Array] = []
        at = GAP
        for buffer, size in zip(buffers, sizes, strict=True):
            part = whole[at : at + buffer.data.nbytes]
            array = part.view(buffer.data.dtype).reshape(buffer.data.shape)
            if buffer.initialised and not buffer.blank:
                array[...] = buffer.data
            elif not buffer.blank:
                part[...] = 0xFF
            self.addresses.append(int(part.ctypes.data))
            self._arrays.append(array)
            at += size + GAP

    def write(self, number: int, data: Array) -> None:
        self._arrays[number][...] = data

    def array(self, number: int) -> Array:
        """What a buffer holds now."""
        return self._arrays[number].copy()


class _Index(ctypes.Structure):
    _fields_ = (("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint))


class _Buffer(ctypes.Structure):
    _fields_ = (
        ("begin", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("read_only", ctypes.c_int32),
        ("initialised", ctypes.c_int32),
    )


class _Launch(ctypes.Structure):
    _fields_ = (
        ("grid", _Index),
        ("block", _Index),
        ("dynamic_bytes", ctypes.c_uint64),
        ("dynamic_most", ctypes.c_uint64),
        ("seed", ctypes.c_uint64),
        ("order", ctypes.c_int32),
        ("cooperative", ctypes.c_int32),
        ("preempt", ctypes.c_int32),
        ("buffers", ctypes.c_int32),
    )


def launch(
    program: Program,
    name: str,
    grid: Grid,
    memory: Memory,
    arguments: Sequence[bytes],
    schedule: Schedule = FORWARD,
) -> tuple[Finding, ...]:
    """Run kernel `name`; `arguments` are the bytes of its parameters. `memory` then holds the
    outcome, unless a finding ended the launch."""
    resident = int(np.prod(grid.threads)) * (int(np.prod(grid.blocks)) if grid.cooperative else 1)
    assert resident <= MOST_THREADS, f"{resident} threads at once"
    assert grid.shared_bytes <= DYNAMIC_BYTES, grid
    kept = [ctypes.create_string_buffer(argument, len(argument)) for argument in arguments]
    pointers = (ctypes.c_void_p * max(len(kept), 1))(*(ctypes.addressof(one) for one in kept))
    given = _Launch(
        _Index(*grid.blocks),
        _Index(*grid.threads),
        grid.shared_bytes,
        DYNAMIC_BYTES,
        schedule.seed,
        schedule.order.value,
        grid.cooperative,
        schedule.preempt,
        len(memory.buffers),
    )
    buffers = (_Buffer * max(len(memory.buffers), 1))(
        *(
            _Buffer(address, buffer.data.nbytes, buffer.read_only, buffer.initialised)
            for address, buffer in zip(memory.addresses, memory.buffers, strict=True)
        )
    )
    found = (findings.Raw * MOST_FINDINGS)()
    library = ctypes.CDLL(str(program.library))
    with _alone:
        count = library.emulated_launch(
            ctypes.cast(getattr(library, f"emulated_entry_{name}"), ctypes.c_void_p),
            ctypes.cast(library.emulated_dynamic, ctypes.c_void_p),
            pointers,
            ctypes.byref(given),
            buffers,
            found,
        )
    names = [buffer.name for buffer in memory.buffers]
    return findings.read(found[:count], program.library, names)
