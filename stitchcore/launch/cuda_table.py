"""The launch table: how a program of CUDA kernels is launched, as data that a C++ library reads.

No host code is generated. The bytes are little-endian: a header with a checksum, 8-byte words, then
names and cubins: docs/contracts.md 12. Sizes are expressions over the program's symbols.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from stitchcore.launch.place import Input, Output
from stitchcore.loop_ir import index
from stitchcore.loop_ir.index import Index

MAGIC = b"STLAUNCH"
VERSION = 1
DRIVER = 12000
"""The oldest driver asked of, CUDA 12.0: the first that has what the launch library checks handles
with."""
ALIGNMENT = 256
"""Of an arena and of the regions in it, in bytes: what TensorFlow's GPU allocator aligns to."""
CHECK_BYTES = 16
BARRIER_BYTES = 8
_CUBIN_ALIGNMENT = 16
_HEADER = struct.Struct("<8sIIQQ")
_LONGEST_PROGRAM = 4096
_Entry = TypeVar("_Entry")


@dataclass(frozen=True)
class InRegion:
    """A word: the address of a region of the arena."""

    region: int


@dataclass(frozen=True)
class Value:
    """A word: an int64."""

    value: Index


@dataclass(frozen=True)
class BarrierWord:
    """A word: the address of the stream's grid barrier."""


@dataclass(frozen=True)
class CheckRanges:
    """A word: the address of the ranges that the launch's checks report."""


Word = Input | Output | InRegion | Value | BarrierWord | CheckRanges
"""A place is the word that holds its address."""


def driver_of(nvrtc: str) -> int:
    """The oldest driver that loads cubins of this version of NVRTC: any of its major version."""
    return max(DRIVER, 1000 * int(nvrtc.partition(".")[0]))


@dataclass(frozen=True)
class Cubin:
    """A module compiled for one architecture, "sm_90". It runs on devices of the same major number
    and of no lower minor one. Its data may be PTX, which the driver compiles for such a device."""

    target: str
    data: bytes

    @property
    def architecture(self) -> tuple[int, int]:
        number = int(self.target.removeprefix("sm_"))
        return number // 10, number % 10


@dataclass(frozen=True)
class KernelEntry:
    """A kernel: its module's number, threads of a block, bytes of dynamic shared memory, whether
    the launch is cooperative, whether one wave is enough, words of its parameter, and checks."""

    name: str
    module: int
    threads: int
    shared_bytes: int
    cooperative: bool
    capped: bool
    words: int
    checks: int = 0


@dataclass(frozen=True)
class LaunchEntry:
    """One launch. `words_region` is where words lie that do not fit a parameter, `first_check` the
    number of its first check among the program's."""

    kernel: int
    grid: Index
    words: tuple[Word, ...]
    words_region: int | None = None
    first_check: int | None = None


@dataclass(frozen=True)
class Region:
    """A stretch of the arena. Regions whose lives do not meet may overlap."""

    offset: Index
    bytes: Index


@dataclass(frozen=True)
class LaunchTable:
    """A program. `driver` is the oldest CUDA version whose driver loads the cubins (12000: 12.0);
    `inputs` and `outputs` are bytes of each."""

    driver: int
    symbols: tuple[str, ...]
    inputs: tuple[Index, ...]
    outputs: tuple[Index, ...]
    arena: Index
    regions: tuple[Region, ...]
    modules: tuple[tuple[Cubin, ...], ...]
    kernels: tuple[KernelEntry, ...]
    launches: tuple[LaunchEntry, ...]
    checks: int = 0
    checks_region: int | None = None
    barrier_region: int | None = None


def write(table: LaunchTable) -> bytes:
    """`table` as bytes. Raises ValueError for an expression longer than the library reads."""
    writer = _Writer(table.symbols)
    writer.table(table)
    body = struct.pack(f"<{len(writer.words)}q", *writer.words) + bytes(writer.blob)
    size = _HEADER.size + len(body)
    counts = struct.pack("<QQ", size, len(writer.words))
    return _HEADER.pack(MAGIC, VERSION, zlib.crc32(counts + body), size, len(writer.words)) + body


class _Writer:
    """Words in the order of the file; the blob's parts are shared where they are equal."""

    def __init__(self, symbols: tuple[str, ...]) -> None:
        self.symbols = symbols
        self.words: list[int] = []
        self.blob = bytearray()
        self.parts: dict[bytes, int] = {}

    def table(self, table: LaunchTable) -> None:
        self.words += (table.driver, len(table.symbols))
        self.each(table.inputs, self.expression)
        self.each(table.outputs, self.expression)
        self.expression(table.arena)
        self.each(table.regions, self.region)
        self.words.append(table.checks)
        self.optional(table.checks_region)
        self.optional(table.barrier_region)
        self.each(table.modules, lambda cubins: self.each(cubins, self.cubin))
        self.each(table.kernels, self.kernel)
        self.each(table.launches, self.launch)

    def each(self, entries: Sequence[_Entry], write_one: Callable[[_Entry], None]) -> None:
        self.words.append(len(entries))
        for entry in entries:
            write_one(entry)

    def expression(self, value: Index) -> None:
        program = index.postfix(value, self.symbols)
        if program[0] > _LONGEST_PROGRAM:
            raise ValueError(f"an expression of {program[0]} words: {_LONGEST_PROGRAM} are read")
        self.words += program

    def optional(self, position: int | None) -> None:
        self.words.append(-1 if position is None else position)

    def part(self, data: bytes, alignment: int) -> None:
        if data not in self.parts:
            self.blob += bytes(-len(self.blob) % alignment)
            self.parts[data] = len(self.blob)
            self.blob += data
        self.words += (self.parts[data], len(data))

    def region(self, region: Region) -> None:
        self.expression(region.offset)
        self.expression(region.bytes)

    def cubin(self, cubin: Cubin) -> None:
        self.words += cubin.architecture
        self.part(cubin.data, _CUBIN_ALIGNMENT)

    def kernel(self, kernel: KernelEntry) -> None:
        self.part(kernel.name.encode("ascii"), 1)
        self.words += (kernel.module, kernel.threads, kernel.shared_bytes)
        self.words += (int(kernel.cooperative), int(kernel.capped), kernel.words, kernel.checks)

    def launch(self, launch: LaunchEntry) -> None:
        self.words.append(launch.kernel)
        self.expression(launch.grid)
        self.optional(launch.words_region)
        self.optional(launch.first_check)
        self.each(launch.words, self.word)

    def word(self, word: Word) -> None:
        match word:
            case Input(position):
                self.words += (0, position)
            case Output(position):
                self.words += (1, position)
            case InRegion(region):
                self.words += (2, region)
            case Value(value):
                self.words.append(3)
                self.expression(value)
            case BarrierWord():
                self.words.append(4)
            case CheckRanges():
                self.words.append(5)


# ---- the arena ------------------------------------------------------------------------------
@dataclass(frozen=True)
class Lifetime:
    """Memory that launches `first` to `last` use, both included."""

    bytes: Index
    first: int
    last: int


@dataclass
class _Slot:
    size: Index
    free_after: int


def plan_arena(lifetimes: Sequence[Lifetime]) -> tuple[tuple[Index, ...], Index]:
    """Offsets of `lifetimes`, and the arena's size: each takes a slot whose user has gone.

    A slot of the same size is taken first, then the one whose known size is nearest, then any: a
    slot is as large as its largest user, so sharing never costs more than a slot of one's own.
    """
    slots: list[_Slot] = []
    chosen: dict[int, int] = {}
    for number in sorted(range(len(lifetimes)), key=lambda n: (lifetimes[n].first, n)):
        lifetime = lifetimes[number]
        size = index.multiply(index.ceil_divide(lifetime.bytes, ALIGNMENT), ALIGNMENT)
        free = [s for s, slot in enumerate(slots) if slot.free_after < lifetime.first]
        if not free:
            slots.append(_Slot(size, lifetime.last))
            chosen[number] = len(slots) - 1
            continue
        best = min(free, key=lambda s: _distance(slots[s].size, size))
        slots[best] = _Slot(index.maximum(slots[best].size, size), lifetime.last)
        chosen[number] = best
    offsets: list[Index] = [0]
    for slot in slots:
        offsets.append(index.add(offsets[-1], slot.size))
    return tuple(offsets[chosen[n]] for n in range(len(lifetimes))), offsets[-1]


def _distance(first: Index, second: Index) -> tuple[int, int]:
    if first == second:
        return 0, 0
    if isinstance(first, int) and isinstance(second, int):
        return 1, abs(first - second)
    return 2, 0
