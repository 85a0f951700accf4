"""Every way a launch can fail: a reason of the closed list, nothing leaked, and work goes on."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from stitchcore.inject import build
from stitchcore.launch.cuda_table import KernelEntry, LaunchTable, write
from stitchcore.runtime.cuda_library import (
    Allocator,
    CudaLibrary,
    DeviceBuffer,
    LaunchError,
    LaunchReason,
    Program,
)
from tests.launch.standin_cuda import (
    FakeKernel,
    Live,
    Ran,
    Standin,
    compile_shared,
    fake_cubin,
    open_library,
)
from tests.launch.tables import REDUCE, SCALE, Cubin, one_kernel, whole
from tests.launch.test_cuda_library import CAPACITY, ROWS, loaded, loaded_and_unloaded, run

OUT_OF_MEMORY, ILLEGAL_ADDRESS, UNKNOWN = 2, 700, 999


def refused(standin: Standin, cuda: CudaLibrary, table: LaunchTable, reason: LaunchReason) -> str:
    """Preparing `table` is refused for `reason`; its words."""
    with (
        pytest.raises(LaunchError) as found,
        loaded_and_unloaded(standin, cuda, table) as program,
    ):
        program.prepare()
    assert found.value.reason == reason
    return found.value.detail


def test_no_driver(tmp_path: Path) -> None:
    for driver in (tmp_path / "libcuda.so.1", Path("/dev/null")):
        with pytest.raises(LaunchError) as none:
            CudaLibrary(build.build_launch(), driver)
        assert none.value.reason == LaunchReason.NO_DRIVER


def test_a_driver_without_what_is_needed_is_old(tmp_path: Path) -> None:
    source = tmp_path / "old.cc"
    source.write_text('extern "C" int cuInit(unsigned) { return 0; }\n')
    driver = compile_shared([source], "libcuda.so.1", "-fPIC", "-shared")
    with pytest.raises(LaunchError, match="no cuDriverGetVersion") as old:
        CudaLibrary(build.build_launch(), driver)
    assert old.value.reason == LaunchReason.OLD_DRIVER


def test_old_drivers_and_absent_devices(standin: Standin, cuda: CudaLibrary) -> None:
    standin.devices(version=10020)
    with pytest.raises(LaunchError, match=r"CUDA 10\.2, at least 11\.0") as old:
        CudaLibrary(build.build_launch(), standin.path)
    assert old.value.reason == LaunchReason.OLD_DRIVER
    standin.devices(version=11080)
    again = CudaLibrary(build.build_launch(), standin.path)
    with pytest.raises(LaunchError, match=r"12000.*11080") as cubins:
        again.load(write(one_kernel()))
    assert cubins.value.reason == LaunchReason.OLD_DRIVER
    again.close()
    standin.devices(count=0)
    with pytest.raises(LaunchError) as none:
        CudaLibrary(build.build_launch(), standin.path)
    assert none.value.reason == LaunchReason.NO_DEVICE


def test_no_context(standin: Standin, cuda: CudaLibrary) -> None:
    program = cuda.load(write(one_kernel()))
    with pytest.raises(LaunchError) as none:
        program.prepare()
    assert none.value.reason == LaunchReason.NO_CONTEXT
    program.unload()


def with_kernel(entry: KernelEntry, kernel: FakeKernel) -> LaunchTable:
    cubin = Cubin("sm_90", fake_cubin({entry.name: kernel}))
    return replace(one_kernel(entry), modules=((cubin,),))


def test_what_no_block_of_fits(standin: Standin, cuda: CudaLibrary) -> None:
    much = with_kernel(replace(SCALE, shared_bytes=100_000), FakeKernel(3, shared_bytes=140_000))
    words = refused(standin, cuda, much, LaunchReason.SHARED_MEMORY)
    assert "240000 bytes" in words and "232448" in words
    fits = with_kernel(replace(SCALE, shared_bytes=92_448), FakeKernel(3, shared_bytes=140_000))
    with loaded(standin, cuda, fits) as setting:
        setting.program.prepare()
    threads = with_kernel(replace(SCALE, threads=1024), FakeKernel(3, max_threads=512))
    assert "1024 threads" in refused(standin, cuda, threads, LaunchReason.RESOURCES)
    registers = with_kernel(replace(SCALE, threads=1024), FakeKernel(3, registers=128))
    assert "no block" in refused(standin, cuda, registers, LaunchReason.RESOURCES)


def test_cooperative_launches_that_a_device_does_not_hold(
    standin: Standin, cuda: CudaLibrary
) -> None:
    table = whole()
    exact = (SCALE, replace(REDUCE, capped=False), table.kernels[2])
    with loaded(standin, cuda, replace(table, kernels=exact)) as setting:
        with pytest.raises(LaunchError, match=r"needs 10000 blocks at once, .* holds 16") as large:
            run(setting)
        assert large.value.reason == LaunchReason.COOPERATIVE
        assert not {"cuLaunchKernel", "cuMemcpyHtoDAsync"} & set(standin.calls())
    standin.devices(cooperative=False)
    assert "does not have" in refused(standin, cuda, table, LaunchReason.COOPERATIVE)
    standin.devices(service=True)
    assert "multi-process" in refused(standin, cuda, table, LaunchReason.COOPERATIVE)
    standin.devices(service=True, version=12000)  # this driver does not know of the attribute
    with loaded(standin, cuda, table) as setting:
        setting.program.prepare()


def test_cubins_that_the_driver_or_the_table_does_not_know(
    standin: Standin, cuda: CudaLibrary
) -> None:
    stranger = replace(one_kernel(), kernels=(replace(SCALE, name="stranger"),))
    assert "stranger" in refused(standin, cuda, stranger, LaunchReason.BAD_MODULE)
    empty = replace(one_kernel(), modules=((Cubin("sm_90", fake_cubin({})),),))
    words = refused(standin, cuda, empty, LaunchReason.BAD_MODULE)
    assert "CUDA_ERROR_INVALID_IMAGE (200): words of the stand-in" in words
    lie = Cubin("sm_90", fake_cubin({"scale": FakeKernel(3)}, "sm_80"))
    mislabelled = replace(one_kernel(), modules=((lie,),))
    refused(standin, cuda, mislabelled, LaunchReason.NO_CUBIN)


@pytest.mark.parametrize(
    ("result", "call", "reason"),
    [
        (46, "cuDevicePrimaryCtxRetain", LaunchReason.NO_DEVICE),  # compute mode
        (803, "cuDevicePrimaryCtxRetain", LaunchReason.NO_DEVICE),  # the driver of another kernel
        (807, "cuDevicePrimaryCtxRetain", LaunchReason.NO_DEVICE),  # the multi-process service
        (221, "cuModuleLoadData", LaunchReason.NO_CUBIN),  # no compiler for PTX
        (222, "cuModuleLoadData", LaunchReason.OLD_DRIVER),  # PTX of a newer version
        (218, "cuModuleLoadData", LaunchReason.BAD_MODULE),
    ],
)
def test_what_a_driver_says_has_its_reason(
    standin: Standin, cuda: CudaLibrary, result: int, call: str, reason: LaunchReason
) -> None:
    """Calls that a program makes on a device for the first time: each fails in turn."""
    program = cuda.load(write(one_kernel()))
    standin.calls()
    program.prepare(0)
    number = standin.calls().index(call) + 1
    program.unload()
    again = open_library(standin)
    program = again.load(write(one_kernel()))
    standin.fail(number, result)
    with pytest.raises(LaunchError) as refused:
        program.prepare(0)
    assert standin.did_fail() and refused.value.reason == reason, refused.value
    program.unload()
    again.close()


def test_calls_that_do_not_fit_the_table(standin: Standin, cuda: CudaLibrary) -> None:
    with loaded(standin, cuda, whole()) as setting:
        one, small = setting.input, DeviceBuffer(setting.input.address, CAPACITY - 1)
        odd = DeviceBuffer(setting.input.address + 8, CAPACITY)
        arena, short = setting.arena, DeviceBuffer(setting.arena.address, 2048)
        cases = (
            ([], [one], [ROWS], arena, "1 inputs, 0 given"),
            ([one], [one, one], [ROWS], arena, "1 outputs, 2 given"),
            ([one], [one], [], arena, "1 symbols, 0 given"),
            ([small], [one], [ROWS], arena, "input 0 must have 1600 bytes, has 1599"),
            ([one], [DeviceBuffer(0, CAPACITY)], [ROWS], arena, "output 0 must have 1600 bytes"),
            ([odd], [one], [ROWS], arena, "input 0 is not aligned"),
            ([one], [one], [-1], arena, "size of input 0 has no value"),
            ([one], [one], [2**62], arena, "size of input 0 has no value"),
            ([one], [one], [ROWS], short, "the arena must have"),
        )
        for inputs, outputs, symbols, memory, words in cases:
            with pytest.raises(LaunchError, match=words) as bad:
                setting.program.run(inputs, outputs, symbols, arena=memory)
            assert bad.value.reason == LaunchReason.BAD_CALL
        assert "cuLaunchKernel" not in standin.calls()


def whole_life(program: Program, memory: list[DeviceBuffer], device: int) -> None:
    """Runs with the caller's arena and with an allocator, their checks; a run without checks."""
    held: list[int] = []

    def allocate(size: int) -> int:
        held.append(memory[2].address)
        return memory[2].address

    given = [memory[0]], [memory[1]], [ROWS]
    try:
        for arena, allocator in ((memory[2], None), (None, Allocator(allocate, held.remove))):
            checks = program.run(*given, arena=arena, allocator=allocator, device=device)
            assert checks is not None
            checks.wait()
        program.run(*given, arena=memory[2], device=device, first=2)
    finally:
        assert held == [], "the allocator gets back what it gave"


def retry(act: Callable[[], None], failures: list[LaunchError]) -> None:
    """An end of a life that fails may be asked for again."""
    try:
        act()
    except LaunchError as error:
        failures.append(error)
        act()


def life_with_a_failure(
    standin: Standin, device: int, call: int, result: int
) -> tuple[list[LaunchError], bool, str]:
    """The failures of a life whose `call`th call fails; whether there was such a call; its name."""
    failures: list[LaunchError] = []
    context = standin.context() if device < 0 else standin.primary(device)
    with context:
        memory = [standin.allocate(size) for size in (CAPACITY, CAPACITY, 65536)]
        standin.calls()
        standin.fail(call, result)
        try:
            cuda = CudaLibrary(build.build_launch(), standin.path)
        except LaunchError as error:
            failures.append(error)
            cuda = CudaLibrary(build.build_launch(), standin.path)
        program = cuda.load(write(whole()))
        try:
            program.prepare(device)
            whole_life(program, memory, device)
        except LaunchError as error:
            failures.append(error)
            whole_life(program, memory, device)
        retry(program.unload, failures)
        retry(cuda.close, failures)
        calls, failed = standin.calls(), standin.did_fail()
        live = standin.live()
        assert (live.modules, live.memory, live.pinned, live.events, live.current) == (
            0,
            3,
            0,
            0,
            1,
        )
        for one in memory:
            standin.free(one)
    assert standin.errors() == [] and standin.live() == Live()
    return failures, failed, calls[call - 1] if failed else ""


WITHOUT_ANYBODY_TO_TELL = {
    "cuCtxPopCurrent",
    "cuCtxSynchronize",
    "cuDevicePrimaryCtxRelease",
    "cuEventDestroy",
    "cuMemFree",
    "cuMemFreeHost",
    "cuModuleUnload",
}
WITH_ANOTHER_WAY = {
    "cuThreadExchangeStreamCaptureMode",  # matters in a capture only; then the next call says so
    "cuEventQuery",  # takes another block
    "cuEventRecord",  # waits for the stream instead
    "cuFuncGetParamInfo",  # how the end of the parameters is found
}


@pytest.mark.slow
@pytest.mark.parametrize("result", [OUT_OF_MEMORY, ILLEGAL_ADDRESS, UNKNOWN])
@pytest.mark.parametrize("device", [-1, 0])
def test_any_call_of_the_driver_may_fail(standin: Standin, device: int, result: int) -> None:
    """The n-th call of a whole life fails, for every n: one clean reason at most, no leak, no wrong
    call, and the same program runs right afterwards."""
    seen: Counter[LaunchReason] = Counter()
    silent: set[str] = set()
    for call in range(1, 400):
        failures, failed, name = life_with_a_failure(standin, device, call, result)
        if not failed:
            assert failures == []
            break
        assert len(failures) <= 1
        seen.update(error.reason for error in failures)
        assert all(error.detail for error in failures)
        if not failures:
            silent.add(name)
    else:
        pytest.fail("the calls do not end")
    assert silent <= WITHOUT_ANYBODY_TO_TELL | WITH_ANOTHER_WAY
    assert call > 80 and seen.total() > call // 2
    if result == OUT_OF_MEMORY:
        assert set(seen) == {LaunchReason.OUT_OF_MEMORY}
    else:
        assert set(seen) >= {
            LaunchReason.DRIVER_FAILED,
            LaunchReason.LAUNCH_FAILED,
            LaunchReason.BAD_MODULE,
            LaunchReason.NO_DRIVER,
        }


def test_a_driver_that_fails_for_good_ends_nothing_but_its_context(standin: Standin) -> None:
    """As after an illegal address: every later call fails. What is the context's goes with it."""

    def fails(act: Callable[[], None]) -> bool:
        try:
            act()
        except LaunchError:
            return True
        return False

    for call in range(1, 400):
        cuda = CudaLibrary(build.build_launch(), standin.path)
        program = cuda.load(write(whole()))
        with standin.context():
            memory = [standin.allocate(size) for size in (CAPACITY, CAPACITY, 65536)]
            standin.fail(call, ILLEGAL_ADDRESS, sticky=True)
            failed_run = fails(partial(whole_life, program, memory, -1))
            left = fails(program.unload)
            reached = standin.did_fail()
        if left:
            program.unload()
        cuda.close()
        assert standin.errors() == [] and standin.live() == Live()
        if not reached:
            assert not failed_run and not left
            return
    pytest.fail("the calls do not end")


def test_a_failed_launch_has_the_drivers_words(standin: Standin, cuda: CudaLibrary) -> None:
    with loaded(standin, cuda, one_kernel()) as setting:
        setting.program.prepare()
        standin.calls()
        run(setting)
        position = standin.calls().index("cuLaunchKernel") + 1
        standin.fail(position, 719)
        with pytest.raises(LaunchError) as failed:
            run(setting)
    assert failed.value.reason == LaunchReason.LAUNCH_FAILED
    expected = "launch of scale: CUDA_ERROR_LAUNCH_FAILED (719): unspecified launch failure"
    assert failed.value.detail == expected


def test_a_captured_run_needs_nothing_of_its_stream(standin: Standin, cuda: CudaLibrary) -> None:
    """A graph's launches zero a barrier word of their own and read words that stay where they are;
    it may run beside its stream's later work."""
    words: list[int] = []
    values: list[int] = []

    def act(one: Ran) -> None:
        if one.name == "reduce":
            words.append(one.words[4])
            word = ctypes.c_int64.from_address(one.words[4])
            values.append(word.value)
            word.value ^= 0x80000000
        if one.name == "many":
            values.append(ctypes.c_uint64.from_address(one.words[0]).value)

    table = whole()
    reduce = replace(table.launches[1], words=table.launches[1].words[:5], first_check=None)
    kernels = (SCALE, replace(REDUCE, checks=0, words=5), table.kernels[2])
    table = replace(table, kernels=kernels, launches=(table.launches[0], reduce, table.launches[2]))
    cubin = {"scale": FakeKernel(3), "reduce": FakeKernel(5), "many": FakeKernel(1)}
    table = replace(table, modules=((Cubin("sm_90", fake_cubin(cubin)),),), checks=0)
    standin.on_launch(act)
    with loaded(standin, cuda, table) as setting:
        stream = standin.make("cuStreamCreate", 1)
        standin.capture(stream)
        run(setting, stream=stream)
        graph = standin.end_capture(stream)
        assert words == []
        later = replace(setting, output=setting.input)
        run(later, stream=stream)
        for _ in range(3):
            standin.launch_graph(graph, stream)
        run(later, stream=stream)
        standin.synchronize(stream)
        barrier = setting.arena.address + setting.program.region(3, [ROWS])[0]
        standin.end_graph(graph)
        output, other = setting.output.address, setting.input.address
        standin.do("cuStreamDestroy_v2", ctypes.c_void_p(stream))
    assert words[1:4] == [barrier] * 3 and words[0] == words[4] != barrier
    assert values[1::2] == [other, output, output, output, other]
    assert values[0::2] == [0, 0, 0, 0, 0x80000000]


def test_checks_are_for_no_graph(standin: Standin, cuda: CudaLibrary) -> None:
    with loaded(standin, cuda, whole()) as setting:
        stream = standin.make("cuStreamCreate", 1)
        standin.capture(stream)
        with pytest.raises(LaunchError) as captured:
            run(setting, stream=stream)
        standin.end_graph(standin.end_capture(stream))
        assert captured.value.reason == LaunchReason.CAPTURE
        standin.do("cuStreamDestroy_v2", ctypes.c_void_p(stream))
