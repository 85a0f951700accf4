"""Sectors and turns of shared memory, as a trace counts them, where the counts are known."""

from __future__ import annotations

import functools
import struct

import numpy as np
import pytest

from tests.emulator.launch import Buffer, Grid, Memory
from tests.emulator.program import Look, Program, compile_text
from tests.emulator.trace import Requests, Trace, traced

SIZE = 1 << 16
WARP = Grid((8, 1, 1), (32, 1, 1), 16384)
SIGNATURE = "(float *data, const float *given, unsigned *word)"
HEAD = "const int i = threadIdx.x; extern __shared__ __align__(16) float shared[];"
BODIES = {
    # text, of which buffer, and per request: sectors or turns, the least, lines
    "neighbours": ("data[0] = given[i];", "given", 4, 4, 1),
    "one_off": ("data[0] = given[i + 1];", "given", 5, 4, 2),
    "across": ("data[0] = given[512 * i];", "given", 32, 4, 32),
    "all_one": ("data[0] = given[7];", "given", 1, 1, 1),
    "sixteen_bytes": ("((float4 *)data)[0] = ((const float4 *)given)[i];", "given", 16, 16, 4),
    "read_only": ("((float4 *)data)[0] = __ldg((float4 *)given + i);", "given", 16, 16, 4),
    "every_other": ("data[0] = given[2 * i];", "given", 8, 4, 2),
    "banks": ("shared[i] = i;", "shared", 1, 1, 0),
    "banks_by_two": ("shared[2 * i] = i;", "shared", 2, 1, 0),
    "banks_by_32": ("shared[32 * i] = i;", "shared", 32, 1, 0),
    "banks_by_33": ("shared[33 * i] = i;", "shared", 1, 1, 0),
    "banks_share_a_word": ("data[i] = shared[3];", "shared", 1, 1, 0),
    "banks_of_sixteen_bytes": ("((float4 *)shared)[i] = ((float4 *)given)[0];", "shared", 4, 4, 0),
}


@functools.cache
def program() -> Program:
    kernels = {name: row[0] for name, row in BODIES.items()}
    kernels["blocks"] = "data[blockIdx.x * 32 + i] = 1.0f;"
    kernels["endless"] = "for (int n = 0; n < 1000; n++) data[n * 32 + i] = 1.0f;"
    kernels["barrier"] = (
        "data[i] = 1.0f;\n__syncthreads();\nif (i == 0) {\n"
        "  const unsigned before = atomicAdd(word, 1u);\n"
        "  while (((*(volatile unsigned *)word ^ before) & 0x80000000u) == 0u) __nanosleep(64);\n"
        "}\n__syncthreads();\ndata[1024 + i] = 1.0f;"
    )
    text = (
        f'extern "C" __global__ void {name}{SIGNATURE} {{\n{HEAD}\n{body}\n}}\n'
        for name, body in kernels.items()
    )
    return compile_text("".join(text), look=Look.TRACED)


def trace(name: str, block: int = 0, limit: int = 100_000) -> Trace:
    memory = Memory(
        [
            Buffer("data", np.zeros(SIZE, np.float32), blank=True),
            Buffer("given", np.zeros(SIZE, np.float32), blank=True),
            Buffer("word", np.zeros(1, np.uint32)),
        ]
    )
    arguments = [struct.pack("q", address) for address in memory.addresses]
    return traced(program(), name, WARP, memory, arguments, block, limit)


@pytest.mark.parametrize("name", BODIES)
def test_a_request_takes_the_sectors_and_turns_of_its_addresses(name: str) -> None:
    _, buffer, units, least, lines = BODIES[name]
    [found] = [one for one in trace(name).requests if one.buffer == buffer]
    assert (found.requests, found.lanes) == (1, 32)
    assert (found.units, found.least, found.lines) == (units, least, lines)


def test_only_the_block_that_is_asked_for_runs() -> None:
    for block in (0, 5):
        found = trace("blocks", block)
        assert [one.requests for one in found.requests] == [1]
        assert found.sectors["data"] == 4 and not found.cut


def test_sectors_of_a_buffer_count_once_and_a_long_block_is_cut() -> None:
    whole = trace("endless")
    [stores] = whole.requests
    assert isinstance(stores, Requests) and stores.writes
    assert (stores.requests, stores.units) == (1000, 4000)
    assert whole.sectors["data"] == 4000 and not whole.cut
    short = trace("endless", limit=3200)
    assert short.cut and sum(one.lanes for one in short.requests) <= 3201


def test_a_grid_barrier_does_not_wait_for_blocks_that_do_not_run() -> None:
    stores = [one for one in trace("barrier", 3).requests if one.buffer == "data"]
    assert [one.requests for one in stores] == [1, 1]
