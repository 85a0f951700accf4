"""The GPU kernel of StitchedFusion as far as there is none: programs, refusals and launches.

The plug-in's own sources, without those that need TensorFlow, against the stand-in driver of
tests/launch; what runs is the numpy interpreter on the addresses that the kernel passed on.
"""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stitchcore.codegen.cuda import render, shared_bytes
from stitchcore.inject import build, reasons
from stitchcore.inject.client import Artifact
from stitchcore.inject.plugin import ERROR_BYTES, Plugin, reason_of
from stitchcore.inject.program import load_kernels
from stitchcore.launch.cuda_program import CudaLaunch, launch_table
from stitchcore.launch.cuda_table import Cubin, write
from stitchcore.launch.place import Input, Output
from stitchcore.loop_ir.nodes import Kernel
from stitchcore.toolchain import nvrtc
from tests.launch.standin_cuda import Live, Standin, compile_shared, standin_library
from tests.loop_ir.sample import column_sum
from tests.runtime.host import Kernels, interpreted

KEY = "sha:column_sum"


class _Scratch(ctypes.Structure):
    _fields_ = (
        ("address", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("taken", ctypes.c_int),
        ("released", ctypes.c_int),
    )


@pytest.fixture(scope="module")
def table(needs_nvrtc: None) -> Callable[[str], bytes]:
    """column_sum over an unknown number of rows, as an artifact holds it."""

    def made(target: str) -> bytes:
        kernel = column_sum()
        binary = nvrtc.compile_cuda(render([kernel]), target).data
        launch = CudaLaunch(
            kernel, (Input(0),), (Output(0),), 0, kernel.threads, shared_bytes(kernel)
        )
        return write(launch_table([launch], [[Cubin(target, binary)]], ("B",), 1, 1, 12000))

    return made


@pytest.fixture(scope="module")
def whole_standin(tmp_path_factory: pytest.TempPathFactory) -> Standin:
    """A driver of this module's own: what it holds in it stays."""
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler: apt-get install g++")
    return Standin(Path(shutil.copy(standin_library(), tmp_path_factory.mktemp("driver"))))


@pytest.fixture(scope="module")
def library(whole_standin: Standin) -> Any:
    """Programs are never unloaded, so one library serves all tests."""
    names = ("gpu.cc", *build.LAUNCH_SOURCES)
    sources = [Path(__file__).parent / "gpu_driver.cc", *(build.NATIVE / name for name in names)]
    flags = ("-fPIC", "-shared", "-fvisibility=hidden", *build.OWN_SYMBOLS, f"-I{build.NATIVE}")
    return ctypes.CDLL(str(compile_shared(sources, "gpu_driver.so", *flags)))


@pytest.fixture
def plugin(library: Any, whole_standin: Standin) -> Plugin:
    whole_standin.devices()
    whole_standin.fail(0)
    whole_standin.free_memory(1 << 30)
    made = Plugin(library)
    made.open_gpu(str(whole_standin.path))
    return made


@pytest.mark.slow
def test_without_a_driver_nothing_is_registered(
    library: Any, table: Callable[[str], bytes]
) -> None:
    """First of all tests here: a process opens the driver once."""
    plugin = Plugin(library)
    with pytest.raises(reasons.Refused, match="the driver has not been opened") as refused:
        plugin.register_program(KEY, table("sm_90"), 0)
    assert refused.value.reason == reasons.NO_DEVICE
    with pytest.raises(reasons.Refused) as refused:
        plugin.open_gpu("libcuda_that_is_not_there.so")
    assert refused.value.reason == reasons.NO_DEVICE


@pytest.mark.parametrize(
    ("target", "device", "reason"),
    [
        ("sm_80", 0, reasons.WRONG_TARGET),
        ("sm_90", 3, reasons.NO_DEVICE),
        ("damaged", 0, reasons.BAD_ARTIFACT),
    ],
)
def test_what_a_device_cannot_run_is_refused_before_a_patch(
    plugin: Plugin, table: Callable[[str], bytes], target: str, device: int, reason: str
) -> None:
    data = table("sm_90")[:-5] if target == "damaged" else table(target)
    with pytest.raises(reasons.Refused) as refused:
        plugin.register_program("sha:refused", data, device)
    assert refused.value.reason == reason
    assert run(plugin, "sha:refused", np.zeros((2, 40), np.float32))[0] == -1


def run(
    plugin: Plugin, key: str, x: Any, scratch: int = 1 << 16, output: int = 160
) -> tuple[int, str, Any, _Scratch]:
    """As the kernel does it: result, error, output, and what was asked of the allocator."""
    memory = np.zeros(scratch + 256, np.uint8)
    made = np.zeros(40, np.float32)
    start = -(-memory.ctypes.data // 256) * 256
    given = _Scratch(start, scratch, 0, 0)
    buffers = (ctypes.c_uint64 * 4)(x.ctypes.data, x.nbytes, made.ctypes.data, output)
    symbols = (ctypes.c_int64 * 1)(len(x))
    error = ctypes.create_string_buffer(ERROR_BYTES)
    place = ctypes.byref(given)
    library = plugin._library
    found = library.run_on_gpu(
        key.encode(), None, buffers, 1, 1, symbols, 1, place, error, ctypes.c_size_t(ERROR_BYTES)
    )
    return found, error.value.decode(), made, given


@pytest.mark.parametrize("rows", [1, 42])
def test_a_kernel_runs_in_the_frameworks_stream_with_its_memory(
    plugin: Plugin, whole_standin: Standin, table: Callable[[str], bytes], rows: int
) -> None:
    kernel: Kernel = column_sum()
    ran = Kernels([kernel], interpreted)
    whole_standin.on_launch(ran)
    plugin.register_program(KEY, table("sm_90"), 0)
    plugin.register_program(KEY, table("sm_90"), 0)  # another artifact with the same kernel
    x = np.random.default_rng(0).standard_normal((rows, 40)).astype(np.float32)
    with whole_standin.primary():
        found, error, made, scratch = run(plugin, KEY, x)
        assert (found, error) == (1, "")
        assert (scratch.taken, scratch.released) == (1, 1)
        whole_standin.synchronize()
        for wrong in (run(plugin, KEY, x, scratch=8), run(plugin, KEY, x, output=156)):
            assert wrong[0] == 0 and wrong[1]
    np.testing.assert_allclose(made, x.sum(axis=0, dtype=np.float64), rtol=1e-4, atol=1e-5)
    assert [one.name for one in ran.ran] == [kernel.name]
    assert whole_standin.errors() == []
    assert whole_standin.live() != Live(), "programs stay"


def test_each_failure_of_a_launch_is_told_with_its_reason_and_leaves_nothing(
    plugin: Plugin, whole_standin: Standin, table: Callable[[str], bytes]
) -> None:
    """Every call of the driver that a launch makes fails once, in turn; after each the same kernel
    runs as ever."""
    kernel: Kernel = column_sum()
    whole_standin.on_launch(Kernels([kernel], interpreted))
    plugin.register_program(KEY, table("sm_90"), 0)
    x = np.random.default_rng(0).standard_normal((42, 40)).astype(np.float32)
    told = set()
    with whole_standin.primary():
        assert run(plugin, KEY, x)[0] == 1
        whole_standin.synchronize()
        before = whole_standin.live()
        for call in range(1, 100):
            whole_standin.fail(call)
            found, error, _, scratch = run(plugin, KEY, x)
            failed = whole_standin.did_fail()
            whole_standin.fail(0)
            whole_standin.synchronize()
            assert scratch.taken == scratch.released and whole_standin.live() == before
            if not failed:
                assert found == 1
                break
            if found == 0:
                told.add(reason_of(error))
                assert error.startswith("launch failed (")
            again, error, made, _ = run(plugin, KEY, x)
            whole_standin.synchronize()
            assert (again, error) == (1, "")
            np.testing.assert_allclose(made, x.sum(axis=0, dtype=np.float64), rtol=1e-4, atol=1e-5)
        short = run(plugin, KEY, x, scratch=8)
    assert call > 2 and told == {reasons.KERNEL_FAILED}
    assert short[0] == 0 and reason_of(short[1]) == reasons.MEMORY
    assert whole_standin.errors() == []


def test_a_device_that_has_gone_fails_every_launch_and_breaks_nothing(
    plugin: Plugin, whole_standin: Standin, table: Callable[[str], bytes]
) -> None:
    """From some call on all fail, as after an error that stays with the context."""
    whole_standin.on_launch(Kernels([column_sum()], interpreted))
    plugin.register_program(KEY, table("sm_90"), 0)
    x = np.zeros((42, 40), np.float32)
    with whole_standin.primary():
        before = whole_standin.live()
        for call in range(1, 6):
            whole_standin.fail(call, sticky=True)
            results = [run(plugin, KEY, x) for _ in range(3)]
            whole_standin.fail(0)
            whole_standin.synchronize()
            assert results[-1][0] == 0 and results[-1][1]
            assert all(one[3].taken == one[3].released for one in results)
        assert whole_standin.live() == before
        assert run(plugin, KEY, x)[0] == 1
        whole_standin.synchronize()
    assert whole_standin.errors() == []


@pytest.mark.parametrize(
    ("failure", "reason"),
    [("launch failed (13): out of memory", reasons.MEMORY),
     ("launch failed (2): the driver has no cuLaunchKernelEx", reasons.NO_DEVICE),
     ("launch failed (7): no cubin", reasons.WRONG_TARGET),
     ("launch failed (12): cuLaunchKernel: 719", reasons.KERNEL_FAILED),
     ("launch failed (99): of another version", reasons.KERNEL_FAILED),
     ("input 3 has another shape", reasons.KERNEL_FAILED)],
)  # fmt: skip
def test_a_failed_operation_has_a_reason(failure: str, reason: str) -> None:
    assert reason_of(failure) == reason


@pytest.mark.parametrize("gpus", [(0,), (0, 2)])
def test_an_artifact_is_ready_on_its_devices_before_its_patch(
    plugin: Plugin, whole_standin: Standin, table: Callable[[str], bytes], gpus: tuple[int, ...]
) -> None:
    """On no other one, where it would make a context; and a graph without one of this process's, or
    whose device it is not made for, is kept."""
    whole_standin.devices(count=4)
    key = f"sha{gpus}"
    kernel = {"key": key, "symbol": "column_sum", "library": 0}
    manifest = {"target": "sm_90", "kernels": [kernel]}
    whole_standin.calls()
    loaded = load_kernels(plugin, Artifact(manifest, (table("sm_90"),)), gpus)
    calls = whole_standin.calls()
    assert sum(one.startswith("cuModuleLoad") for one in calls) == 2 * len(gpus)
    assert sum(one.startswith("cuDevicePrimaryCtxRetain") for one in calls) <= len(gpus)
    assert loaded == {key, f"{key}:column_sum"}
    with pytest.raises(reasons.Refused) as refused:
        load_kernels(plugin, Artifact(manifest, (table("sm_90"),)), ())
    assert refused.value.reason == reasons.NO_DEVICE
    manifest["kernels"] = [{**kernel, "key": "sha80"}]
    with pytest.raises(reasons.Refused) as refused:
        load_kernels(plugin, Artifact(manifest, (table("sm_80"),)), gpus)
    assert refused.value.reason == reasons.WRONG_TARGET
