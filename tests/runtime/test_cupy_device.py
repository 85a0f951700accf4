"""Memory of arrays that library calls make on the way, on stand-ins for CuPy and PyTorch, which are
not here: which pool each allocation comes from, and how long it lives."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from stitchcore.runtime.gpu import cupy_device
from stitchcore.runtime.gpu.library import torch_convolution


class Pool:
    """Hands out memory; which pool is in use is what counts."""

    def malloc(self, size: int) -> None: ...


class Uses:
    """Pools in use by the two libraries, in the order of the work."""

    def __init__(self) -> None:
        self.cupy: list[Any] = []
        self.torch: list[weakref.ref[Pool]] = []
        self.now: Any = None


class Stream:
    ptr = 1

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None: ...

    def synchronize(self) -> None: ...

    def begin_capture(self) -> None: ...

    def end_capture(self) -> Any:
        return SimpleNamespace(launch=lambda stream: None)


@pytest.fixture
def uses(monkeypatch: pytest.MonkeyPatch) -> Uses:
    found = Uses()

    @contextmanager
    def use_mem_pool(pool: Pool) -> Iterator[None]:
        found.now = weakref.ref(pool)
        yield
        found.now = None

    def convolve(*_: object) -> None:
        found.torch.append(found.now)

    torch: Any = ModuleType("torch")
    torch.as_tensor = lambda array, device: array
    torch.cuda = SimpleNamespace(
        MemPool=Pool,
        use_mem_pool=use_mem_pool,
        stream=lambda _: nullcontext(),
        ExternalStream=lambda pointer: pointer,
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(torch_convolution, "convolve", convolve)
    monkeypatch.setattr(cupy_device, "convolution", lambda node: node)
    return found


@pytest.fixture
def device(uses: Uses, monkeypatch: pytest.MonkeyPatch) -> cupy_device.CupyDevice:
    @contextmanager
    def using_allocator(malloc: Any) -> Iterator[None]:
        uses.cupy.append(weakref.ref(malloc.__self__))
        yield

    cuda = SimpleNamespace(
        Stream=lambda non_blocking: Stream(),
        MemoryPool=Pool,
        using_allocator=using_allocator,
        alloc=lambda size: SimpleNamespace(ptr=256),
    )
    arrays = SimpleNamespace(
        cuda=cuda,
        asarray=lambda array: array,
        random=SimpleNamespace(default_rng=lambda seed: None),
    )
    monkeypatch.setattr(cupy_device, "_cupy", lambda: arrays)
    monkeypatch.setattr(cupy_device, "Cublas", lambda stream, workspace: None)
    return cupy_device.CupyDevice()


@pytest.mark.slow
def test_a_graph_keeps_the_memory_of_its_temporaries(
    device: cupy_device.CupyDevice, uses: Uses
) -> None:
    def work() -> None:
        device.enqueue(lambda: device.convolution(None, 0, 0))  # type: ignore[arg-type]

    work()
    launch = device.capture(work)
    work()
    gc.collect()
    for pools in (uses.cupy, uses.torch):
        before, warm, captured, after = pools
        assert warm() is captured() is not None, "what a first use made is there in the capture"
        assert before() is after() is not captured(), "later work has memory of its own"
    launch()
    captured = [pools[2] for pools in (uses.cupy, uses.torch)]
    del launch
    gc.collect()
    assert [pool() for pool in captured] == [None, None]
