"""What the emulator finds wrong with a kernel, as data: kind, lines of source, threads, buffer."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class Kind(Enum):
    """Numbers are those of native/machine.h. After all but the first two, DIVERGENT_BARRIER,
    DIVERGENT_WARP and NOT_COHERENT the launch is stopped: what would follow has no meaning."""

    RACE = 0  # two threads touch an element, one of them writes, and nothing orders them
    UNINITIALISED = 1  # a read of shared, scratch or output memory that nothing has written
    OUT_OF_BOUNDS = 2
    MISALIGNED = 3  # a vector access at an address that is no multiple of its type's alignment
    READ_ONLY = 4  # a write to an input
    NOT_COHERENT = 5  # a read-only load (__ldg) of what this launch writes
    DIVERGENT_BARRIER = 6  # threads of a block meet at different __syncthreads
    EXITED = 7  # a thread has ended while others wait at __syncthreads
    WRONG_MASK = 8  # a lane is not in the mask it gives, or lanes that meet give different ones
    DIVERGENT_WARP = 9  # lanes meet at different warp operations
    ABSENT_LANE = 10  # a shuffle reads a lane that takes no part
    DEADLOCK = 11
    TRAP = 12


ACCESSES = ("read", "write", "volatile read", "atomic", "volatile write")
SHARED, STATIC_SHARED = -2, -3
EMULATED = "emulated_cuda.h"
"""Its functions stand for instructions: what calls them is the line that is meant."""


class Raw(ctypes.Structure):
    """`Finding` of native/machine.h."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("memory", ctypes.c_int32),
        ("offset", ctypes.c_int64),
        ("bytes", ctypes.c_int64),
        ("blocks", ctypes.c_int32 * 2),
        ("threads", ctypes.c_int32 * 2),
        ("places", ctypes.c_int64 * 2),
        ("accesses", ctypes.c_int32 * 2),
        ("mask", ctypes.c_uint32),
        ("count", ctypes.c_int32),
    )


@dataclass(frozen=True)
class Place:
    """A line of the kernel's text, or of a header it includes."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Finding:
    """`places` are one or two, of the threads in order; each begins with the line itself and goes
    on with the calls that were inlined around it. `threads` are (block, thread of it).

    `buffer` is a buffer's name, "shared" (dynamic), "static shared" or "" where it is none;
    `offset` and `bytes` say which of its bytes. `count` threads wait in a DEADLOCK at that place.
    """

    kind: Kind
    places: tuple[tuple[Place, ...], ...]
    threads: tuple[tuple[int, int], ...]
    buffer: str = ""
    offset: int = 0
    bytes: int = 0
    accesses: tuple[str, ...] = ()
    mask: int = 0
    count: int = 0

    @property
    def lines(self) -> tuple[int, ...]:
        """The innermost line of each place."""
        return tuple(place[0].line for place in self.places if place)

    def __str__(self) -> str:
        where = " and ".join(" in ".join(map(str, place)) for place in self.places)
        who = ", ".join(f"{thread} of block {block}" for block, thread in self.threads)
        what = f" {self.buffer}+{self.offset}" if self.buffer else ""
        how = f" ({' after '.join(self.accesses)})" if self.accesses else ""
        mask = f" mask {self.mask:08x}" if self.mask else ""
        return f"{self.kind.name}{what}{how}{mask} at {where or '?'}, thread {who}"


def read(raw: Sequence[Raw], library: Path, names: Sequence[str]) -> tuple[Finding, ...]:
    """Findings with their places in the source. `names` are the buffers'.

    Threads that meet at copies which the compiler made of one line have not diverged.
    """
    addresses = {int(place) for one in raw for place in one.places if place}
    at = lines(library, addresses)
    found = (_finding(one, at, names) for one in raw if not _same_line(one, at))
    return tuple(dict.fromkeys(found))


def _same_line(raw: Raw, lines: Mapping[int, tuple[Place, ...]]) -> bool:
    diverged = raw.kind in (Kind.DIVERGENT_BARRIER.value, Kind.DIVERGENT_WARP.value)
    return diverged and len({lines[place] for place in raw.places}) == 1


def _finding(raw: Raw, lines: Mapping[int, tuple[Place, ...]], names: Sequence[str]) -> Finding:
    buffer = {SHARED: "shared", STATIC_SHARED: "static shared", -1: ""}.get(raw.memory)
    return Finding(
        Kind(raw.kind),
        tuple(
            tuple(place for place in lines[address] if place.file != EMULATED)
            for address in raw.places
            if address
        ),
        tuple(pair for pair in zip(raw.blocks, raw.threads, strict=True) if pair[0] >= 0),
        names[raw.memory] if buffer is None else buffer,
        raw.offset,
        raw.bytes,
        tuple(ACCESSES[access] for access in raw.accesses if access >= 0),
        raw.mask,
        raw.count,
    )


def lines(library: Path, addresses: Iterable[int]) -> dict[int, tuple[Place, ...]]:
    """Of return addresses: the lines of the calls before them, innermost first."""
    ordered = sorted(addresses)
    if not ordered:
        return {}
    command = ["addr2line", "--inlines", "--addresses", f"--exe={library}"]
    command += [hex(address - 1) for address in ordered]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    chains = re.split(r"^0x[0-9a-f]+\n", said, flags=re.MULTILINE)[1:]
    return {
        address: tuple(
            Place(Path(file).name, int(line))
            for file, line in re.findall(r"^(.+):(\d+)", chain, flags=re.MULTILINE)
        )
        for address, chain in zip(ordered, chains, strict=True)
    }
