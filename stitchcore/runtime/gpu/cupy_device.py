"""An NVIDIA GPU through CuPy: memory, a stream, events and graphs; cuBLAS and cuDNN beside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from stitchcore.errors import Reason, Refused
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.runtime.cuda_library import DeviceBuffer
from stitchcore.runtime.gpu.library.convolution import convolution
from stitchcore.runtime.gpu.library.cublas import WORKSPACE_BYTES, Cublas
from stitchcore.runtime.gpu.library.gemm import Gemm

DRIVER = "libcuda.so.1"


class CupyDevice:
    """The current device of CuPy. Not for use by several threads."""

    def __init__(self) -> None:
        """Raises Refused where there is no CuPy or no GPU."""
        self.arrays = _cupy()
        cuda = self.arrays.cuda
        self.driver = DRIVER
        self._stream = cuda.Stream(non_blocking=True)
        self.stream = int(self._stream.ptr)
        self._temporaries = _Temporaries(cuda)
        self._owned: dict[int, Any] = {}
        self._workspace = self.allocate(WORKSPACE_BYTES)
        self._cublas = Cublas(self.stream, self._workspace.address)
        self._generator = self.arrays.random.default_rng(0)

    def allocate(self, size: int) -> DeviceBuffer:
        try:
            memory = self.arrays.cuda.alloc(size)
        except self.arrays.cuda.memory.OutOfMemoryError as error:
            raise MemoryError(str(error)) from None
        self._owned[memory.ptr] = memory
        return DeviceBuffer(memory.ptr, size)

    def release(self, buffer: DeviceBuffer) -> None:
        del self._owned[buffer.address]

    def array(self, address: int, dtype: str, dims: Sequence[int]) -> Any:
        kind = DTYPES[dtype].numpy
        size = max(math.prod(dims) * kind.itemsize, 1)
        cuda = self.arrays.cuda
        memory = cuda.MemoryPointer(cuda.UnownedMemory(address, size, self), 0)
        return self.arrays.ndarray(tuple(dims), kind, memory)

    def upload(self, address: int, host: Any) -> None:
        data = np.ascontiguousarray(host)
        self._copy(address, data.ctypes.data, data.nbytes, 1)

    def download(self, address: int, dtype: str, dims: Sequence[int]) -> Any:
        data = np.empty(tuple(dims), DTYPES[dtype].numpy)
        self._copy(data.ctypes.data, address, data.nbytes, 2)
        return data

    def _copy(self, to: int, source: int, size: int, direction: int) -> None:
        if size:
            runtime = self.arrays.cuda.runtime
            runtime.memcpyAsync(to, source, size, direction, self.stream)
        self.synchronize()

    def enqueue(self, work: Callable[[], None]) -> None:
        with self._stream, self.arrays.cuda.using_allocator(self._temporaries.cupy.malloc):
            work()

    def gemm(self, gemm: Gemm, left: Any, right: Any, result: Any) -> None:
        self._cublas.gemm(gemm, left.data.ptr, right.data.ptr, result.data.ptr)

    def convolution(self, node: Instruction, left: Any, right: Any) -> Any:
        import torch

        from stitchcore.runtime.gpu.library.torch_convolution import convolve

        stream = torch.cuda.stream(torch.cuda.ExternalStream(self.stream))
        with stream, torch.cuda.use_mem_pool(self._temporaries.torch):
            operands = (torch.as_tensor(array, device="cuda") for array in (left, right))
            return self.arrays.asarray(convolve(convolution(node), *operands))

    def random(self, node: Instruction, low: Any, high: Any) -> Any:
        """XLA does not say which numbers: these follow from CuPy's generator."""
        dims, dtype = node.shape.static, DTYPES[node.shape.dtype].numpy
        if node["distribution"] == "rng_normal":
            return low + high * self._generator.standard_normal(dims, dtype=dtype)
        drawn = low + (high - low) * self._generator.random(dims, dtype=np.float32)
        return drawn.astype(dtype)

    def synchronize(self) -> None:
        self._stream.synchronize()

    def mark(self) -> Any:
        event = self.arrays.cuda.Event()
        event.record(self._stream)
        return event

    def seconds(self, begin: Any, end: Any) -> float:
        end.synchronize()
        return float(self.arrays.cuda.get_elapsed_time(begin, end)) * 1e-3

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """What is returned keeps the memory of the graph's own arrays: each launch writes there."""
        outside, own = self._temporaries, _Temporaries(self.arrays.cuda)
        self._temporaries = own
        try:
            work()  # whatever is made at first use must be there before the capture
            self.synchronize()
            self._stream.begin_capture()
            try:
                work()
            finally:
                graph = self._stream.end_capture()
        finally:
            self._temporaries = outside
        return partial(_launch, graph, self._stream, own)

    def close(self) -> None:
        """Give everything back."""
        self.synchronize()
        self._cublas.close()
        self._owned.clear()


class _Temporaries:
    """Memory of arrays that library calls make on the way, CuPy's and PyTorch's, in pools that
    nothing else is given memory of."""

    def __init__(self, cuda: Any) -> None:
        self.cupy = cuda.MemoryPool()

    @cached_property
    def torch(self) -> Any:
        import torch

        return torch.cuda.MemPool()


def _launch(graph: Any, stream: Any, _kept: _Temporaries) -> None:
    graph.launch(stream)


def _cupy() -> Any:
    try:
        import cupy

        count = cupy.cuda.runtime.getDeviceCount()
    except ImportError as missing:
        detail = f"{missing}: pip install cupy-cuda12x"
        raise Refused("GPU", Reason.NO_DEVICE, detail) from None
    except Exception as error:  # CuPy's CUDARuntimeError, which needs CuPy to be named
        raise Refused("GPU", Reason.NO_DEVICE, f"there is no GPU here: {error}") from None
    if not count:
        raise Refused("GPU", Reason.NO_DEVICE, "there is no GPU here")
    return cupy
