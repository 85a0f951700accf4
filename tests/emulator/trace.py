"""What a kernel asks of memory, at full size: sectors of each request, and turns of shared memory.

A few blocks of the launch run, one after the other, on memory of zeros that is there only where it
is touched. A request is what the lanes of a warp ask for at one place of the text at one time. Of a
GPU's caches nothing is simulated. A block that takes too many accesses is cut off.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stitchcore.codegen import cuda
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.launch.cuda_parameters import PARAMETER_WORDS, WordKind, words
from stitchcore.loop_ir import index
from stitchcore.loop_ir.nodes import Kernel, Role
from tests.emulator import findings
from tests.emulator.findings import Place
from tests.emulator.launch import Buffer, Grid, Memory, launch
from tests.emulator.program import Program

BLOCKS = 4
"""Blocks that are sampled, evenly spaced."""

MOST_ACCESSES = 4_000_000
"""Of one block; at about 20 million a second."""

MOST_PLACES = 8192
INTEGERS = 997
"""What integers of inputs are below: rows of tables, of which there are mostly more."""


class _Requested(ctypes.Structure):
    """`Requested` of native/traced/memory.cc."""

    _fields_ = (
        ("place", ctypes.c_int64),
        ("memory", ctypes.c_int32),
        ("bytes", ctypes.c_int32),
        ("writes", ctypes.c_int32),
        ("unused", ctypes.c_int32),
        ("requests", ctypes.c_int64),
        ("lanes", ctypes.c_int64),
        ("units", ctypes.c_int64),
        ("least", ctypes.c_int64),
        ("lines", ctypes.c_int64),
    )


@dataclass(frozen=True)
class Requests:
    """All requests of one `address` of the text to one `buffer` ("shared" is one), `bytes` a lane:
    sectors of 32 bytes that they take (`units`), and would if none of it was waste (`least`); of
    shared memory turns of its banks. `lines` of 128 bytes are what the first cache looks up."""

    address: int
    buffer: str
    bytes: int
    writes: bool
    requests: int
    lanes: int
    units: int
    least: int
    lines: int


@dataclass(frozen=True)
class Trace:
    """`requests` of one block. `sectors` that it touches of each buffer, each counted once; `cut`:
    there would have been more."""

    requests: tuple[Requests, ...]
    sectors: dict[str, int]
    cut: bool


def traced(
    program: Program,
    name: str,
    grid: Grid,
    memory: Memory,
    arguments: Sequence[bytes],
    block: int,
    limit: int = MOST_ACCESSES,
) -> Trace:
    """Block `block` of a launch of kernel `name`, of a program that was compiled to be TRACED."""
    library = ctypes.CDLL(str(program.library))
    only = ctypes.c_int64.in_dll(library, "emulated_only_block")
    library.emulated_trace_begin(ctypes.c_int64(limit))
    only.value = block
    try:
        launch(program, name, grid, memory, arguments)
    finally:
        only.value = -1
    names = [buffer.name for buffer in memory.buffers]
    found = (_Requested * MOST_PLACES)()
    sectors = (ctypes.c_int64 * len(names))()
    count = library.emulated_trace_end(found, MOST_PLACES, sectors, len(names))
    requests = tuple(
        Requests(
            one.place,
            names[one.memory] if one.memory >= 0 else "shared",
            one.bytes,
            bool(one.writes),
            one.requests,
            one.lanes,
            one.units,
            one.least,
            one.lines,
        )
        for one in found[: min(count, MOST_PLACES)]
    )
    cut = library.emulated_trace_cut() or count > MOST_PLACES
    return Trace(requests, dict(zip(names, sectors, strict=True)), bool(cut))


def of_kernel(kernel: Kernel, program: Program, blocks: int, limit: int) -> Iterator[Trace]:
    """Traces of the sampled blocks of a launch of `blocks`."""
    memory = _memory(kernel)
    grid = Grid((blocks, 1, 1), (kernel.threads, 1, 1), cuda.shared_bytes(kernel))
    sampled = min(BLOCKS, blocks)
    for number in range(sampled):
        at = (2 * number + 1) * blocks // (2 * sampled)
        yield traced(program, kernel.name, grid, memory, [_parameter(kernel, memory)], at, limit)


def lines(program: Program, addresses: Sequence[int]) -> dict[int, tuple[Place, ...]]:
    """Where in the text each address lies, innermost call first."""
    return findings.lines(program.library, set(addresses))


def _memory(kernel: Kernel) -> Memory:
    random = np.random.default_rng(0)
    made = []
    for buffer in kernel.with_role(Role.INPUT) + kernel.with_role(Role.OUTPUT):
        dims = [index.evaluate(dim, {}) for dim in buffer.dims]
        dtype = DTYPES[buffer.dtype]
        given = buffer.role is Role.INPUT and dtype.kind in ("signed", "unsigned")
        if given:
            made.append(Buffer(buffer.name, random.integers(0, INTEGERS, dims).astype(dtype.numpy)))
        else:
            zero = np.broadcast_to(np.zeros((), dtype.numpy), dims)
            made.append(Buffer(buffer.name, zero, blank=True))
    scratch = max(index.evaluate(kernel.scratch_bytes, {}), 1)
    blank = np.broadcast_to(np.zeros((), np.uint8), scratch)
    made.append(Buffer("scratch", blank, blank=True))
    made.append(Buffer("arrived", np.zeros(1, np.uint32)))
    made.append(Buffer("failed", np.zeros(2 * max(len(kernel.errors), 1), np.int64)))
    made.append(Buffer("words", np.zeros(len(words(kernel)), np.int64)))
    return Memory(made)


def _parameter(kernel: Kernel, memory: Memory) -> bytes:
    """The words, or where they lie if they are many."""
    at = dict(zip((one.name for one in memory.buffers), memory.addresses, strict=True))
    own = {WordKind.SCRATCH: "scratch", WordKind.BARRIER: "arrived", WordKind.CHECKS: "failed"}
    values = [at[own.get(word.kind, word.name)] for word in words(kernel)]
    if len(values) <= PARAMETER_WORDS:
        return struct.pack(f"{len(values)}q", *values)
    memory.write(len(memory.buffers) - 1, np.array(values, np.int64))
    return struct.pack("q", memory.addresses[-1])
