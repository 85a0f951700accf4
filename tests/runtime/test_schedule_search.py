"""A search of schedules on a GPU: rehearsed on the stand-in driver, whose clock asks for small
blocks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from stitchcore.autotune import calibrate_gpu, kernels, schedules
from stitchcore.compiler import latency
from stitchcore.compiler.performance_library import MEASURED
from stitchcore.compiler.pipeline import run
from stitchcore.compiler.stages import PLANNED, BuildOptions, ModuleState
from stitchcore.device.records import DEVICES, Device
from stitchcore.hlo.text.parser import parse
from stitchcore.runtime.cuda_library import CudaLibrary
from stitchcore.runtime.gpu.program import GpuModule
from stitchcore.schedule.space import DEFAULT
from tests.autotune.test_kernels import TEXT
from tests.launch.conftest import cuda
from tests.launch.standin_cuda import Ran, Standin
from tests.runtime.host import HostDevice, Kernels, interpreted

__all__ = ["cuda"]

GPU = DEVICES["sm_90"]


class Timed(HostDevice):
    """A launch takes as many nanoseconds as its blocks have threads."""

    threads = 0

    def mark(self) -> Any:
        self.synchronize()

    def seconds(self, begin: Any, end: Any) -> float:
        return 1e-9 * self.threads


@pytest.fixture
def spoiled() -> set[int]:
    """Block sizes whose results are wrong."""
    return set()


@pytest.fixture
def here(
    standin: Standin, cuda: CudaLibrary, spoiled: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This machine's GPU is the stand-in, and the evaluator thinks most of 64 threads, and least of
    the default."""
    standin.free_memory(1 << 33)
    known: dict[str, Kernels] = {}
    real = calibrate_gpu.loaded

    def loaded(module: GpuModule, *rest: Any) -> Any:
        for kernel in module.kernels:
            known[kernel.name] = Kernels(module.kernels, interpreted)
        return real(module, *rest)

    @contextmanager
    def this_gpu(record: Device) -> Iterator[tuple[HostDevice, CudaLibrary]]:
        with standin.context():
            device = Timed(standin)

            def launched(ran: Ran) -> None:
                device.threads = ran.threads
                kernels_of = known[ran.name]
                kernels_of.run = wrongly if ran.threads in spoiled else interpreted
                kernels_of(ran)

            standin.on_launch(launched)
            yield device, cuda

    def wrongly(*given: Any) -> Any:
        return [array * 1.5 for array in interpreted(*given)]

    estimates = {64: 0.1, 128: 0.2, 512: 0.3}
    monkeypatch.setattr(calibrate_gpu, "TOGETHER", 1)  # each launch is interpreted
    monkeypatch.setattr(calibrate_gpu, "loaded", loaded)
    monkeypatch.setattr(calibrate_gpu, "this_gpu", this_gpu)
    monkeypatch.setattr(latency, "seconds", lambda kernel, *_: estimates.get(kernel.threads, 1.0))


def searched() -> schedules.Searched:
    state = run(PLANNED[:3], ModuleState(parse(TEXT), GPU, BuildOptions()))
    assert state.plan is not None
    measuring = kernels.Measuring()
    [one] = schedules.search_all((state.plan,), GPU, BuildOptions(), measuring).values()
    return one


@pytest.mark.slow
@pytest.mark.usefixtures("here", "needs_nvrtc")
def test_where_the_gpu_is_the_quickest_of_the_best_is_kept() -> None:
    found = searched()
    assert found.decided == MEASURED and found.schedules[0] == DEFAULT
    seconds = [trial.seconds for trial in found.trials]
    threads = [chosen.threads or 256 for chosen in found.schedules]
    assert seconds == pytest.approx([1e-9 * count for count in threads])
    assert found.schedules[found.kept].threads == 64


@pytest.mark.slow
@pytest.mark.usefixtures("here", "needs_nvrtc")
def test_what_is_wrong_there_is_not_kept(
    spoiled: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedules, "BEST", 8)
    spoiled.add(64)
    found = searched()
    assert found.schedules[found.kept].threads == 128
    wrong = [c.threads for c, t in zip(found.schedules, found.trials, strict=True) if t.wrong]
    assert wrong and set(wrong) == {64}
