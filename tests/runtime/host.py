"""A device that is none: host memory behind the stand-in driver, numpy in CuPy's place.

Kernels run when the stand-in's stream does. What they compute is the loop IR's numpy interpreter,
or, for sizes that would take it too long, the same Kernel object rendered to C; how they are
launched, with which words, is what NVRTC's cubins and the launch library make of it either way.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from stitchcore.codegen.c import render
from stitchcore.hlo.evaluator.evaluate import apply
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.launch.cuda_parameters import PARAMETER_WORDS, WordKind, words
from stitchcore.loop_ir import index
from stitchcore.loop_ir.interpreter import interpret
from stitchcore.loop_ir.nodes import Buffer, Kernel, Role
from stitchcore.runtime.cpu_kernel import CpuKernel, load_library
from stitchcore.runtime.cuda_library import CudaLibrary, DeviceBuffer
from stitchcore.runtime.gpu.library.gemm import Gemm
from stitchcore.runtime.gpu.program import GpuModule
from stitchcore.toolchain.c_compiler import compile_c
from tests.launch.standin_cuda import Ran, Standin, open_library

RunKernel = Callable[[Kernel, list[Any], dict[str, int]], Sequence[Any]]


class HostDevice:
    """`stitchcore.runtime.gpu.device.Device` over the stand-in's context that is current."""

    arrays: Any = np

    def __init__(self, standin: Standin) -> None:
        self.standin = standin
        self.driver = str(standin.path)
        self.stream = 0
        self.capturing = False
        self.largest = 0

    def allocate(self, size: int) -> DeviceBuffer:
        return self.standin.allocate(size)

    def release(self, buffer: DeviceBuffer) -> None:
        self.standin.free(buffer)

    def array(self, address: int, dtype: str, dims: Sequence[int]) -> Any:
        return _view(address, DTYPES[dtype].numpy, dims)

    def upload(self, address: int, host: Any) -> None:
        data = np.ascontiguousarray(host)
        ctypes.memmove(address, data.ctypes.data, data.nbytes)

    def download(self, address: int, dtype: str, dims: Sequence[int]) -> Any:
        self.synchronize()
        return self.array(address, dtype, dims).copy()

    def enqueue(self, work: Callable[[], None]) -> None:
        assert not self.capturing, "numpy cannot be captured"
        self.synchronize()
        with np.errstate(all="ignore"):
            work()

    def gemm(self, gemm: Gemm, left: Any, right: Any, result: Any) -> None:
        """From addresses and strides alone, as cuBLAS has it."""
        sides = []
        pairs = ((left, gemm.left, (gemm.m, gemm.k)), (right, gemm.right, (gemm.k, gemm.n)))
        for array, side, extents in pairs:
            flat = array.reshape(-1)
            strides = [step * flat.itemsize for step in (side.matrix, side.row, side.column)]
            last = side.matrix * (gemm.batch - 1) + side.row * (extents[0] - 1)
            assert last + side.column * (extents[1] - 1) < flat.size, "reads past the operand"
            assert 1 in (side.row, side.column)
            shape = (gemm.batch, *extents)
            sides.append(np.lib.stride_tricks.as_strided(flat, shape, strides))
        result[...] = np.matmul(*sides).reshape(result.shape)

    def convolution(self, node: Instruction, left: Any, right: Any) -> Any:
        return apply(node, [left, right])

    def random(self, node: Instruction, low: Any, high: Any) -> Any:
        return apply(node, [low, high])

    def synchronize(self) -> None:
        self.standin.synchronize(self.stream)

    def mark(self) -> Any:
        return None

    def seconds(self, begin: Any, end: Any) -> float:
        return 1e-6

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        self.synchronize()
        self.standin.capture(self.stream)
        self.capturing = True
        try:
            work()
        finally:
            graph = self.standin.end_capture(self.stream)
            self.capturing = False
        return lambda: self.standin.launch_graph(graph, self.stream)


def _view(address: int, dtype: Any, dims: Sequence[int]) -> Any:
    size = int(np.prod(dims, dtype=np.int64))
    memory = (ctypes.c_char * (size * dtype.itemsize)).from_address(address)
    return np.frombuffer(memory, dtype).reshape(dims)


class Kernels:
    """What the stand-in does when a launch's turn comes: `run` on the memory that words name."""

    def __init__(self, kernels: Sequence[Kernel], run: RunKernel) -> None:
        self.kernels = {kernel.name: kernel for kernel in kernels}
        self.run = run
        self.ran: list[Ran] = []

    def __call__(self, one: Ran) -> None:
        kernel = self.kernels[one.name]
        self.ran.append(one)
        names, given = words(kernel), list(one.words)
        if len(names) > PARAMETER_WORDS:
            given = list((ctypes.c_uint64 * len(names)).from_address(given[0]))
        assert len(given) == len(names), "the cubin takes what the ABI says"
        pairs = list(zip(names, given, strict=True))
        bindings = {w.name: v for w, v in pairs if w.kind is WordKind.SYMBOL}
        address = {w.name: v for w, v in pairs if w.kind is WordKind.BUFFER}

        def view(buffer: Buffer) -> Any:
            dims = [index.evaluate(extent, bindings) for extent in buffer.dims]
            return _view(address[buffer.name], DTYPES[buffer.dtype].numpy, dims)

        inputs = [view(buffer).copy() for buffer in kernel.with_role(Role.INPUT)]
        results = self.run(kernel, inputs, bindings)
        for buffer, result in zip(kernel.with_role(Role.OUTPUT), results, strict=True):
            view(buffer)[...] = result


def interpreted(kernel: Kernel, inputs: list[Any], bindings: dict[str, int]) -> Sequence[Any]:
    return interpret(kernel, inputs, bindings, np.random.default_rng(0))


def in_c(kernels: Sequence[Kernel]) -> RunKernel:
    """By the machine's own compiler, all kernels in one translation unit."""
    from stitchcore.device.host import host_device

    library = load_library(compile_c(render(kernels), host_device()).data)
    loaded = {kernel.name: CpuKernel(library, kernel) for kernel in kernels}

    def run(kernel: Kernel, inputs: list[Any], bindings: dict[str, int]) -> Sequence[Any]:
        return loaded[kernel.name].run(inputs, bindings)

    return run


@contextmanager
def host_device(standin: Standin) -> Iterator[HostDevice]:
    """In a context of its own."""
    with standin.context():
        yield HostDevice(standin)


@contextmanager
def dry_device(
    computes: bool = True,
) -> Iterator[tuple[HostDevice, CudaLibrary, Callable[[GpuModule], None]]]:
    """A device for `python -m bench.gpu --dry-run`, the launch library on it, and what must be told
    of each module, so that its kernels can run: unless it `computes` none. Ends with AssertionError
    for misuse of the driver.
    """
    standin = Standin()
    standin.devices(multiprocessors=132)
    standin.free_memory(1 << 34)
    standin.do("cuInit", 0)
    known: dict[str, Kernels] = {}
    standin.on_launch((lambda ran: known[ran.name](ran)) if computes else lambda _: None)

    def made(module: GpuModule) -> None:
        kernels = Kernels(module.kernels, in_c(module.kernels))
        known.update(dict.fromkeys(kernels.kernels, kernels))

    cuda = open_library(standin)
    with host_device(standin) as device:
        yield device, cuda, made
    cuda.close()
    assert standin.errors() == []
