"""What runs steps: a device's memory, stream and library, as few calls as steps need.

`cupy_device.py` is the one for NVIDIA GPUs; for launches alone `driver_device.py` does. Tests hand
in host memory under a stand-in driver, with numpy in CuPy's place, so that steps, places and lives
are proved where there is no GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.runtime.cuda_library import DeviceBuffer
from stitchcore.runtime.gpu.library.gemm import Gemm

Event = Any


class LaunchDevice(Protocol):
    """What launches need: memory, and one stream in which all work is put in order.

    `stream` is the driver's handle, `driver` the path of the launch library's driver.
    """

    stream: int
    driver: str

    def allocate(self, size: int) -> DeviceBuffer:
        """Memory of at least `size` bytes, aligned to 256. Raises MemoryError."""
        ...

    def release(self, buffer: DeviceBuffer) -> None:
        """Give it back, when all work in the stream is done."""
        ...

    def upload(self, address: int, host: Any) -> None:
        """A numpy array's bytes to the device; done when it returns."""
        ...

    def download(self, address: int, dtype: str, dims: Sequence[int]) -> Any:
        """A numpy array of what is there when all work in the stream is done."""
        ...

    def synchronize(self) -> None:
        """Wait for the stream."""
        ...

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """What `work` puts into the stream, as a CUDA graph: call to launch it there."""
        ...


class Device(LaunchDevice, Protocol):
    """A device for all steps of a module.

    `arrays` is numpy or what is written as numpy is (CuPy). Its arrays must not be handed to numpy.
    """

    arrays: Any

    def array(self, address: int, dtype: str, dims: Sequence[int]) -> Any:
        """Memory of the device as an array of HLO type `dtype`."""
        ...

    def enqueue(self, work: Callable[[], None]) -> None:
        """Put what `work` does through `arrays`, `gemm` and their like into the stream."""
        ...

    def gemm(self, gemm: Gemm, left: Any, right: Any, result: Any) -> None:
        """Batched matrix product of arrays, within `enqueue`."""
        ...

    def convolution(self, node: Instruction, left: Any, right: Any) -> Any:
        """A convolution's result, within `enqueue`."""
        ...

    def random(self, node: Instruction, low: Any, high: Any) -> Any:
        """What an `rng` instruction draws, within `enqueue`."""
        ...

    def mark(self) -> Event:
        """An event in the stream."""
        ...

    def seconds(self, begin: Event, end: Event) -> float:
        """Between two events that have passed."""
        ...
