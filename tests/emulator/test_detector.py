"""What the emulator finds in kernels with one fault each, at which line, and that it finds nothing
in kernels that have none, whatever the schedule."""

from __future__ import annotations

import functools
import struct

import numpy as np
import pytest

from tests.emulator.findings import Finding, Kind
from tests.emulator.launch import Buffer, Grid, Memory, Order, Schedule, launch
from tests.emulator.program import CompileError, Program, compile_text
from tests.emulator.snippets import BLOCK, CLEAN, FAULTS, SIZE, Snippet

SCHEDULES = (
    Schedule(),
    Schedule(Order.REVERSE),
    *(Schedule(Order.RANDOM, seed) for seed in range(4)),
    *(Schedule(Order.RANDOM, seed, preempt=True) for seed in range(4)),
)


@functools.cache
def program(faulty: bool) -> Program:
    return compile_text("".join(snippet.text for snippet in (FAULTS if faulty else CLEAN)))


def memory() -> Memory:
    return Memory(
        [
            Buffer("data", np.arange(SIZE, dtype=np.float32)),
            Buffer("given", np.arange(SIZE, dtype=np.float32), read_only=True),
            Buffer("word", np.zeros(2, np.uint32)),
            Buffer("fresh", np.zeros(SIZE, np.float32), initialised=False),
        ]
    )


def run(snippet: Snippet, schedule: Schedule) -> tuple[Memory, tuple[Finding, ...]]:
    used = memory()
    arguments = [struct.pack("Q", address) for address in used.addresses]
    compiled = program(snippet in FAULTS)
    return used, launch(compiled, snippet.name, snippet.grid, used, arguments, schedule)


def first_line(snippet: Snippet) -> int:
    """Lines of the snippets before it in its translation unit."""
    group = FAULTS if snippet in FAULTS else CLEAN
    return sum(s.text.count("\n") for s in group[: group.index(snippet)])


@pytest.mark.parametrize("snippet", FAULTS, ids=lambda snippet: snippet.name)
def test_a_fault_is_found_in_every_schedule(snippet: Snippet) -> None:
    for schedule in SCHEDULES:
        _, found = run(snippet, schedule)
        assert snippet.kind in {one.kind for one in found}, (schedule, list(map(str, found)))
        if snippet.line:
            lines = {line - first_line(snippet) for one in found for line in one.lines}
            assert snippet.line in lines, list(map(str, found))


@pytest.mark.parametrize("snippet", CLEAN, ids=lambda snippet: snippet.name)
def test_nothing_is_found_where_nothing_is_wrong(snippet: Snippet) -> None:
    for schedule in SCHEDULES:
        _, found = run(snippet, schedule)
        assert not found, (schedule, list(map(str, found)))


def of(name: str) -> Snippet:
    return next(s for s in (*FAULTS, *CLEAN) if s.name == name)


def outcome(name: str, schedule: Schedule = SCHEDULES[-1]) -> Memory:
    made, found = run(of(name), schedule)
    assert not found
    return made


def test_values_are_those_of_a_gpu() -> None:
    i = np.arange(64)
    assert np.array_equal(outcome("barrier").array(0)[:64], 63 - i)
    half = outcome("half_warps").array(0)[:64]
    assert np.array_equal(half, 2 * (i ^ 3))
    assert np.array_equal(outcome("votes").array(0)[:128], np.ones(128))
    down = outcome("lanes_that_ended").array(0)
    assert np.array_equal(down[:16], [4, 5, 6, 7, 4, 5, 6, 7, 12, 13, 14, 15, 12, 13, 14, 15])
    assert np.array_equal(outcome("atomics").array(2), [192, 63])
    assert outcome("spin_lock").array(0)[0] == 3
    assert np.array_equal(outcome("last_block_adds_up").array(0)[:3], [0, 1, 2])
    vectors = outcome("vectors").array(0).reshape(64, 4)
    assert np.array_equal(vectors, np.arange(SIZE).reshape(64, 4)[::-1])


def test_a_race_names_both_threads_both_lines_and_the_element() -> None:
    _, found = run(of("no_barrier"), Schedule())
    race = next(one for one in found if one.kind is Kind.RACE)
    assert race.buffer == "shared" and race.accesses in (("write", "read"), ("read", "write"))
    assert race.threads[0] != race.threads[1] and race.bytes == 4
    first = first_line(of("no_barrier"))
    assert {line - first for line in race.lines} == {3, 4}
    assert "RACE shared+" in str(race) and "kernels.cu:" in str(race)


def test_a_fault_ends_the_launch_before_it_does_harm() -> None:
    used, found = run(of("past_the_end"), Schedule())
    assert [one.kind for one in found] == [Kind.OUT_OF_BOUNDS]
    assert found[0].buffer == "data" and found[0].offset == 4 * SIZE
    assert np.array_equal(used.array(0)[:193], np.arange(193))


def test_one_schedule_is_one_result() -> None:
    for snippet in (of("no_barrier"), of("flag_without_fence"), of("two_masks")):
        first, again = (run(snippet, SCHEDULES[-1])[1] for _ in range(2))
        assert first == again


def test_shared_memory_of_blocks_is_their_own() -> None:
    text = (
        'extern "C" __global__ void own(float *data) {\n'
        "extern __shared__ __align__(16) float shared[];\n__shared__ int part;\n"
        "shared[threadIdx.x] = blockIdx.x;\nif (threadIdx.x == 0) part = blockIdx.x;\n"
        "__syncthreads();\n"
        "data[blockIdx.x * 64 + threadIdx.x] = shared[63 - threadIdx.x] + part;\n}"
    )
    used = memory()
    grid = Grid((4, 1, 1), (64, 1, 1), 256, cooperative=True)
    arguments = [struct.pack("Q", used.addresses[0])]
    for schedule in SCHEDULES:
        assert not launch(compile_text(text), "own", grid, used, arguments, schedule)
        assert np.array_equal(used.array(0), np.repeat(np.arange(4), 64) * 2)


def test_static_shared_memory_alone() -> None:
    text = (
        'extern "C" __global__ void k(float *data) {\n__shared__ float part[64];\n'
        "part[threadIdx.x] = threadIdx.x;\n__syncthreads();\n"
        "data[threadIdx.x] = part[63 - threadIdx.x];\n}"
    )
    used = memory()
    arguments = [struct.pack("Q", used.addresses[0])]
    assert not launch(compile_text(text), "k", BLOCK, used, arguments)
    assert np.array_equal(used.array(0)[:64], 63 - np.arange(64))


def test_a_struct_by_value_is_a_parameter() -> None:
    text = (
        "struct words { float *data; long long n; };\n"
        'extern "C" __global__ void k(const __grid_constant__ words w, int twice) {\n'
        "if (threadIdx.x < w.n) w.data[threadIdx.x] = twice * 2;\n}"
    )
    used = memory()
    arguments = [struct.pack("Qq", used.addresses[0], 3), struct.pack("i", 4)]
    assert not launch(compile_text(text), "k", BLOCK, used, arguments)
    assert np.array_equal(used.array(0)[:5], [8, 8, 8, 3, 4])


def test_what_g_does_not_understand_is_an_error() -> None:
    with pytest.raises(CompileError, match="no_such_function"):
        compile_text('extern "C" __global__ void k() { no_such_function(); }')
