"""Programs on streams: against a driver that is not there but checks every call of the library."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest

from stitchcore.launch.cuda_table import LaunchTable, write
from stitchcore.runtime.cuda_library import (
    Allocator,
    CudaLibrary,
    DeviceBuffer,
    FailedCheck,
    LaunchError,
    LaunchReason,
    Program,
)
from tests.launch.standin_cuda import FakeKernel, Ran, Standin, fake_cubin
from tests.launch.tables import MANY, SCALE, Cubin, cubins, one_kernel, whole

ROWS = 100
CAPACITY = 16 * ROWS


@dataclass(frozen=True)
class Setting:
    """A loaded program in a context of the caller's, with memory for it."""

    program: Program
    input: DeviceBuffer
    output: DeviceBuffer
    arena: DeviceBuffer


Load = Callable[[LaunchTable], Setting]


@contextmanager
def loaded(standin: Standin, cuda: CudaLibrary, table: LaunchTable) -> Iterator[Setting]:
    program = cuda.load(write(table))
    with standin.context():
        memory = [standin.allocate(size) for size in (CAPACITY, CAPACITY, 65536)]
        yield Setting(program, *memory)
        program.unload()
        for one in memory:
            standin.free(one)


def run(setting: Setting, rows: int = ROWS, stream: int = 0) -> FailedCheck | None:
    """The whole program, waited for where it has checks."""
    one = setting
    checks = one.program.run([one.input], [one.output], [rows], stream=stream, arena=one.arena)
    return None if checks is None else checks.wait()


def read(address: int, count: int = 1) -> list[int]:
    return list((ctypes.c_int64 * count).from_address(address))


def test_kernels_get_what_the_table_says(standin: Standin, cuda: CudaLibrary) -> None:
    ran: list[Ran] = []
    far: list[int] = []

    def act(one: Ran) -> None:
        ran.append(one)
        if one.name == "many":
            far.extend(read(one.words[0], MANY))

    standin.on_launch(act)
    with loaded(standin, cuda, whole()) as setting:
        assert run(setting) is None
        start = setting.arena.address
        regions = [setting.program.region(number, [ROWS]) for number in range(5)]
    temporary, scratch, checks, barrier, words = (start + offset for offset, _ in regions)
    given = setting.input.address, setting.output.address
    assert ran[0] == Ran("scale", (given[0], temporary, 2 * ROWS), ROWS, 128, 0, False)
    reduce = ran[1]
    assert reduce.words[:4] == (temporary, given[1], ROWS, scratch)
    assert reduce.words[5] == checks
    assert reduce.words[4] != barrier, "a stream's own word, where no graph is captured"
    assert (reduce.threads, reduce.shared, reduce.cooperative) == (256, 1024, True)
    assert ran[2] == Ran("many", (words,), 1, 64, 0, False)
    assert far == [given[1], temporary, *range(MANY - 2)]


def test_a_capped_grid_is_one_wave_and_no_more(standin: Standin, cuda: CudaLibrary) -> None:
    """64 registers and 256 threads: four blocks a multiprocessor, of which there are four."""
    ran: list[Ran] = []
    standin.on_launch(ran.append)
    with loaded(standin, cuda, whole()) as setting:
        assert setting.program.kernel_info(1).blocks_per_multiprocessor == 4
        run(setting)
    assert {one.name: one.grid for one in ran} == {"scale": ROWS, "reduce": 16, "many": 1}


def test_nothing_to_do_launches_nothing(standin: Standin, cuda: CudaLibrary) -> None:
    ran: list[Ran] = []
    standin.on_launch(ran.append)
    with loaded(standin, cuda, one_kernel()) as setting:
        run(setting, rows=0)
        empty = DeviceBuffer(0, 0)
        setting.program.run([empty], [empty], [0])
        standin.synchronize()
    assert ran == []


def test_a_check_that_fails_is_told_with_its_value(standin: Standin, cuda: CudaLibrary) -> None:
    def fail(reported: list[int]) -> Callable[[Ran], None]:
        def act(one: Ran) -> None:
            if one.name == "reduce":
                ranges = (ctypes.c_int64 * 4).from_address(one.words[5])
                assert list(ranges) == [2**63 - 1, -(2**63)] * 2
                for value in reported:
                    ranges[2], ranges[3] = min(ranges[2], value), max(ranges[3], value)

        return act

    with loaded(standin, cuda, whole()) as setting:
        for reported, expected in (([7, 3], 7), ([-2, 5], -2), ([], None)):
            standin.on_launch(fail(reported))
            wanted = None if expected is None else FailedCheck(1, 1, expected)
            assert run(setting) == wanted


def test_checks_need_somebody_who_waits(standin: Standin, cuda: CudaLibrary) -> None:
    with loaded(standin, cuda, whole()) as setting:
        checks = setting.program.run([setting.input], [setting.output], [ROWS], arena=setting.arena)
        assert checks is not None
        with pytest.raises(LaunchError, match="2 programs or runs"):
            cuda.close()
        assert checks.wait() is None


def test_each_stream_has_a_barrier_word_that_is_zeroed_once(
    standin: Standin, cuda: CudaLibrary
) -> None:
    seen: dict[int, list[int]] = {}

    def act(one: Ran) -> None:
        if one.name == "reduce":
            [word] = read(one.words[4])
            seen.setdefault(one.words[4], []).append(word)
            ctypes.c_int64.from_address(one.words[4]).value = word ^ 0x80000000

    standin.on_launch(act)
    with loaded(standin, cuda, whole()) as setting:
        streams = [standin.make("cuStreamCreate", 1) for _ in range(2)]
        standin.calls()
        for stream in (*streams, 0, *streams, 2, 2):
            run(setting, stream=stream)
        assert standin.calls().count("cuMemsetD32Async") == 4
        for stream in streams:
            standin.do("cuStreamDestroy_v2", ctypes.c_void_p(stream))
    high = 0x80000000
    assert sorted(seen.values()) == [[0], [0, high], [0, high], [0, high]]


def test_own_default_streams_of_threads_do_not_share_a_word(
    standin: Standin, cuda: CudaLibrary
) -> None:
    words: list[int] = []
    standin.on_launch(lambda one: words.append(one.words[4]) if one.name == "reduce" else None)
    with loaded(standin, cuda, whole()) as setting:
        handle = standin.make("cuCtxGetCurrent")

        def other() -> None:
            standin.do("cuCtxPushCurrent_v2", ctypes.c_void_p(handle))
            run(setting, stream=2)
            standin.make("cuCtxPopCurrent_v2")

        run(setting, stream=2)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(set(words)) == len(words) == 2


def test_a_later_stream_of_the_same_handle_waits_for_the_one_before(
    standin: Standin, cuda: CudaLibrary
) -> None:
    with loaded(standin, cuda, whole()) as setting:
        first = standin.make("cuStreamCreate", 1)
        run(setting, stream=first)
        standin.do("cuStreamDestroy_v2", ctypes.c_void_p(first))
        second = standin.make("cuStreamCreate", 1)
        assert second == first
        standin.calls()
        run(setting, stream=second)
        assert "cuCtxSynchronize" in standin.calls()
        run(setting, stream=second)
        assert "cuCtxSynchronize" not in standin.calls()
        standin.do("cuStreamDestroy_v2", ctypes.c_void_p(second))


def test_words_in_memory_live_until_the_stream_has_passed(
    standin: Standin, cuda: CudaLibrary
) -> None:
    """Nobody waits between the runs: each has its own pinned block until the device was there."""
    table = whole()
    table = replace(table, launches=(table.launches[0], table.launches[2]))
    outputs: list[int] = []
    standin.on_launch(
        lambda one: outputs.extend(read(one.words[0])) if one.name == "many" else None
    )
    with loaded(standin, cuda, table) as setting:
        memory = [standin.allocate(CAPACITY) for _ in range(100)]
        for one in memory:
            setting.program.run([setting.input], [one], [ROWS], arena=setting.arena)
        pinned = standin.live().pinned
        standin.synchronize()
        run(setting)
        assert standin.live().pinned == pinned, "blocks that have been passed are taken again"
        assert 64 <= pinned <= 65, "bounded: the 65th run waits for the first"
        standin.synchronize()
        for one in memory:
            standin.free(one)
    assert outputs == [one.address for one in (*memory, setting.output)]


def test_the_arena_comes_from_the_callers_allocator(standin: Standin, cuda: CudaLibrary) -> None:
    asked: list[int] = []
    released: list[int] = []
    with loaded(standin, cuda, whole()) as setting:

        def allocate(size: int) -> int:
            asked.append(size)
            return setting.arena.address

        given = [setting.input], [setting.output], [ROWS]
        checks = setting.program.run(*given, allocator=Allocator(allocate, released.append))
        assert checks is not None and checks.wait() is None
        assert asked == [setting.program.arena_bytes([ROWS])]
        assert released == [setting.arena.address]
        with pytest.raises(LaunchError) as none:
            setting.program.run(*given, allocator=Allocator(lambda _: 0, released.append))
        assert none.value.reason == LaunchReason.OUT_OF_MEMORY
        with pytest.raises(LaunchError, match="arena or an allocator"):
            setting.program.run(*given)
        odd = Allocator(lambda _: setting.arena.address + 16, released.append)
        with pytest.raises(LaunchError, match="not aligned"):
            setting.program.run(*given, allocator=odd)
        assert released[1:] == [setting.arena.address + 16], "what was taken is given back"


def test_launches_run_piece_by_piece(standin: Standin, cuda: CudaLibrary) -> None:
    ran: list[str] = []
    standin.on_launch(lambda one: ran.append(one.name))
    with loaded(standin, cuda, whole()) as setting:
        given = [setting.input], [setting.output], [ROWS]
        for first, count in ((2, 1), (0, 1), (0, 0)):
            assert (
                setting.program.run(*given, arena=setting.arena, first=first, count=count) is None
            )
        standin.synchronize()
        assert ran == ["many", "scale"]
        for first, count in ((0, 4), (4, 0), (-1, 1), (3, None), (1, -2)):
            if (first, count) == (3, None):
                setting.program.run(*given, arena=setting.arena, first=first, count=count)
                continue
            with pytest.raises(LaunchError, match="there are 3 launches"):
                setting.program.run(*given, arena=setting.arena, first=first, count=count)


def test_a_primary_context_is_retained_once_and_released(
    standin: Standin, cuda: CudaLibrary
) -> None:
    standin.devices(count=2)
    programs = [cuda.load(write(one_kernel())) for _ in range(2)]
    for device in (0, 1, 1):
        for program in programs:
            program.prepare(device)
    live = standin.live()
    assert (live.retained, live.modules, live.current) == (2, 4, 0)
    with pytest.raises(LaunchError) as no_device:
        programs[0].prepare(2)
    assert no_device.value.reason == LaunchReason.NO_DEVICE
    for program in programs:
        program.unload()


def test_a_context_that_was_destroyed_is_not_taken_for_its_successor(
    standin: Standin, cuda: CudaLibrary
) -> None:
    program = cuda.load(write(one_kernel()))
    handles = []
    for _ in range(2):
        with standin.context() as handle:
            handles.append(handle)
            memory = standin.allocate(CAPACITY)
            standin.calls()
            program.run([memory], [memory], [ROWS])
            assert "cuModuleLoadData" in standin.calls()
    assert handles[0] == handles[1]
    program.unload()


def test_the_nearest_cubin_is_taken(standin: Standin, cuda: CudaLibrary) -> None:
    table = one_kernel(SCALE, "sm_80", "sm_86", "sm_89", "sm_90")
    for major, minor, expected in ((8, 0, 0), (8, 6, 6), (8, 7, 6), (8, 9, 9), (9, 0, 0)):
        standin.devices(major=major, minor=minor)
        with loaded(standin, cuda, table) as setting:
            assert setting.program.kernel_info(0).minor == expected
    standin.devices(major=7, minor=5)
    with pytest.raises(LaunchError) as refused, loaded_and_unloaded(standin, cuda, table) as one:
        one.prepare()
    assert refused.value.reason == LaunchReason.NO_CUBIN
    assert "no cubin for this sm_75, only for sm_80 sm_86 sm_89 sm_90" in refused.value.detail


PTX = b"""//
.version 8.8
.target sm_121
.visible .entry scale(
\t.param .align 8 .b8 scale_param_0[24]
)
.maxntid 128, 1, 1
{ ret; }
\0"""


def test_ptx_stands_in_for_the_cubin_of_an_architecture(
    standin: Standin, cuda: CudaLibrary
) -> None:
    """Of one that NVRTC has yet to learn; the driver compiles it. Its words are still compared."""
    table = replace(one_kernel(), modules=((Cubin("sm_130", PTX),),))
    standin.devices(major=13)
    with loaded(standin, cuda, table) as setting:
        assert setting.program.kernel_info(0).registers > 0
        assert run(setting) is None
    other = replace(table, modules=((Cubin("sm_130", PTX.replace(b"[24]", b"[32]")),),))
    with (
        pytest.raises(LaunchError, match="32 bytes"),
        loaded_and_unloaded(standin, cuda, other) as one,
    ):
        one.prepare()
    standin.devices(major=12)
    with pytest.raises(LaunchError) as refused, loaded_and_unloaded(standin, cuda, table) as one:
        one.prepare()
    assert refused.value.reason == LaunchReason.NO_CUBIN


@contextmanager
def loaded_and_unloaded(
    standin: Standin, cuda: CudaLibrary, table: LaunchTable
) -> Iterator[Program]:
    """A program that a test expects to be refused."""
    program = cuda.load(write(table))
    with standin.context():
        try:
            yield program
        finally:
            program.unload()


def test_another_parameter_than_the_tables_is_refused(standin: Standin, cuda: CudaLibrary) -> None:
    for kernel, words in ((FakeKernel(2), "16 bytes"), (FakeKernel(3, parameters=2), "several")):
        cubin = Cubin("sm_90", fake_cubin({"scale": kernel}))
        table = replace(one_kernel(), modules=((cubin,),))
        with (
            pytest.raises(LaunchError, match=words) as refused,
            loaded_and_unloaded(standin, cuda, table) as program,
        ):
            program.prepare()
        assert refused.value.reason == LaunchReason.BAD_MODULE


def test_large_shared_memory_is_asked_for(standin: Standin, cuda: CudaLibrary) -> None:
    entry = replace(SCALE, shared_bytes=200_000)
    with loaded(standin, cuda, one_kernel(entry)) as setting:
        run(setting)
        assert "cuFuncSetAttribute" in standin.calls()


def test_modules_are_loaded_when_a_launch_needs_them(standin: Standin, cuda: CudaLibrary) -> None:
    table = one_kernel()
    other = replace(SCALE, module=1)
    table = replace(table, modules=(cubins("sm_90"), cubins("sm_90")), kernels=(SCALE, other))
    with loaded(standin, cuda, table) as setting:
        run(setting)
        run(setting)
        assert standin.calls().count("cuModuleLoadData") == 1
        setting.program.prepare()
        assert standin.calls().count("cuModuleLoadData") == 1
