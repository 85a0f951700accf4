"""An NVIDIA GPU through the driver alone: memory, a stream, a CUDA graph.

What launches need, and no more, so that a worker beside TensorFlow proves and times kernels without
CuPy or PyTorch. Declarations follow cuda.h 12.9; all but graphs are those of inject/native/cuda.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stitchcore.errors import Reason, Refused
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.runtime.cuda_library import DeviceBuffer

DRIVER = "libcuda.so.1"
OUT_OF_MEMORY = 2
NON_BLOCKING, THREAD_LOCAL_CAPTURE = 1, 1


class DriverDevice:
    """The first GPU of this process, in its primary context, which is TensorFlow's too and becomes
    current in this thread. Not for use by several threads."""

    def __init__(self, driver: str = DRIVER) -> None:
        """Raises Refused(NO_DEVICE) where there is no driver or no GPU."""
        self.driver = driver
        self._device = ctypes.c_int()
        try:
            self._library: Any = ctypes.CDLL(driver)
            self._do("cuInit", 0)
            self._do("cuDeviceGet", ctypes.byref(self._device), 0)
            self._context = self._made("cuDevicePrimaryCtxRetain", self._device)
        except (OSError, RuntimeError) as error:
            raise Refused("GPU", Reason.NO_DEVICE, str(error)) from None
        self._do("cuCtxPushCurrent_v2", ctypes.c_void_p(self._context))
        self.stream = self._made("cuStreamCreate", NON_BLOCKING)
        self._owned: set[int] = set()
        self._graphs: list[tuple[int, int]] = []

    def allocate(self, size: int) -> DeviceBuffer:
        """Memory of at least `size` bytes, aligned to 256. Raises MemoryError."""
        address = self._made("cuMemAlloc_v2", ctypes.c_size_t(size))
        self._owned.add(address)
        return DeviceBuffer(address, size)

    def release(self, buffer: DeviceBuffer) -> None:
        self._owned.remove(buffer.address)
        self._do("cuMemFree_v2", ctypes.c_uint64(buffer.address))

    def upload(self, address: int, host: Any) -> None:
        data = np.ascontiguousarray(host)
        self._copy("cuMemcpyHtoDAsync_v2", address, data.ctypes.data, data.nbytes)

    def download(self, address: int, dtype: str, dims: Sequence[int]) -> Any:
        data = np.empty(tuple(dims), DTYPES[dtype].numpy)
        self._copy("cuMemcpyDtoHAsync_v2", data.ctypes.data, address, data.nbytes)
        return data

    def _copy(self, function: str, to: int, source: int, size: int) -> None:
        if size:
            sides = (ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_size_t(size))
            self._do(function, *sides, self._stream())
        self.synchronize()

    def synchronize(self) -> None:
        self._do("cuStreamSynchronize", self._stream())

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """What `work` puts into the stream, as a CUDA graph: call to launch it there."""
        graph = ctypes.c_void_p()
        self._do("cuStreamBeginCapture_v2", self._stream(), THREAD_LOCAL_CAPTURE)
        try:
            work()
        finally:
            self._do("cuStreamEndCapture", self._stream(), ctypes.byref(graph))
        made = self._made("cuGraphInstantiateWithFlags", graph, ctypes.c_ulonglong(0))
        self._graphs.append((int(graph.value or 0), made))
        return lambda: self._do("cuGraphLaunch", ctypes.c_void_p(made), self._stream())

    def close(self) -> None:
        """Give everything back."""
        self.synchronize()
        for graph, made in self._graphs:
            self._do("cuGraphExecDestroy", ctypes.c_void_p(made))
            self._do("cuGraphDestroy", ctypes.c_void_p(graph))
        for address in self._owned:
            self._do("cuMemFree_v2", ctypes.c_uint64(address))
        self._do("cuStreamDestroy_v2", self._stream())
        self._made("cuCtxPopCurrent_v2")
        self._do("cuDevicePrimaryCtxRelease_v2", self._device)

    def _stream(self) -> Any:
        return ctypes.c_void_p(self.stream)

    def _made(self, function: str, *arguments: Any) -> int:
        """What `function` makes: a handle or an address."""
        made = ctypes.c_void_p()
        self._do(function, ctypes.byref(made), *arguments)
        return int(made.value or 0)

    def _do(self, function: str, *arguments: Any) -> None:
        result = int(getattr(self._library, function)(*arguments))
        if result == OUT_OF_MEMORY:
            raise MemoryError(function)
        if result:
            name = ctypes.c_char_p()
            self._library.cuGetErrorName(result, ctypes.byref(name))
            raise RuntimeError(f"{function}: {(name.value or b'error').decode()} ({result})")
