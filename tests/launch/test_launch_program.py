"""From Kernel objects through real cubins to results: the stand-in's kernels are the interpreter's.

What runs is loop_ir/interpreter.py, on the addresses and symbols that the library put into the
words; how many bytes a kernel takes is what NVRTC wrote into the cubin.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from stitchcore.errors import Refused
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.launch.cuda_parameters import PARAMETER_WORDS, WordKind, words
from stitchcore.launch.cuda_program import CudaLaunch, launch_table
from stitchcore.launch.cuda_table import Cubin, write
from stitchcore.launch.place import Input, Output, Temporary
from stitchcore.loop_ir import index
from stitchcore.loop_ir.index import Variable
from stitchcore.loop_ir.interpreter import interpret
from stitchcore.loop_ir.nodes import (
    Buffer,
    Check,
    FromIndex,
    InRange,
    Kernel,
    Load,
    Loop,
    LoopKind,
    Phase,
    Role,
    Scope,
    Section,
    Store,
)
from stitchcore.runtime.cuda_library import CudaLibrary, DeviceBuffer, FailedCheck
from stitchcore.toolchain import nvrtc
from tests.launch.standin_cuda import Ran, Standin
from tests.loop_ir.sample import column_sum, softmax

TARGETS = ("sm_80", "sm_90")
THREADS = 128


@pytest.fixture(scope="module")
def compiled() -> Callable[[list[Kernel]], tuple[Cubin, ...]]:
    """Cubins of kernels that take the ABI's parameter and do nothing with it but one store."""
    try:
        nvrtc.nvrtc_version()
    except Refused as refused:
        pytest.skip(f"{refused}: pip install nvidia-cuda-nvrtc-cu12")

    def compile_kernels(kernels: list[Kernel]) -> tuple[Cubin, ...]:
        source = "\n".join(text for kernel in kernels for text in entry(kernel))
        return tuple(Cubin(t, nvrtc.compile_cuda(source, t).data) for t in TARGETS)

    return compile_kernels


def entry(kernel: Kernel) -> list[str]:
    name, count = kernel.name, len(words(kernel))
    head = f'extern "C" __global__ void __launch_bounds__({THREADS}) {name}('
    if count > PARAMETER_WORDS:
        return [f"{head}unsigned long long *w) {{ w[threadIdx.x] = 0; }}"]
    return [
        f"struct {name}_words {{ unsigned long long w[{count}]; }};",
        f"{head}const __grid_constant__ {name}_words w)"
        " { *(unsigned long long *)w.w[0] = w.w[threadIdx.x]; }",
    ]


class Interpreted:
    """Runs kernels of these names as the interpreter does, on the memory the words name."""

    def __init__(self, *kernels: Kernel) -> None:
        self.kernels = {kernel.name: kernel for kernel in kernels}
        self.ran: list[Ran] = []

    def __call__(self, one: Ran) -> None:
        kernel = self.kernels[one.name]
        self.ran.append(one)
        names = words(kernel)
        given = list(one.words)
        if len(names) > PARAMETER_WORDS:
            [far] = given
            given = list((ctypes.c_uint64 * len(names)).from_address(far))
        assert len(given) == len(names), "the cubin takes what the ABI says"
        found = dict(zip(names, given, strict=True))
        bindings = {w.name: v for w, v in found.items() if w.kind is WordKind.SYMBOL}
        address = {w.name: v for w, v in found.items() if w.kind is WordKind.BUFFER}

        def view(buffer: Buffer) -> np.ndarray:
            dtype = DTYPES[buffer.dtype].numpy
            shape = [index.evaluate(extent, bindings) for extent in buffer.dims]
            size = int(np.prod(shape)) * dtype.itemsize
            memory = (ctypes.c_char * size).from_address(address[buffer.name])
            return np.frombuffer(memory, dtype).reshape(shape)

        inputs = [view(buffer).copy() for buffer in kernel.with_role(Role.INPUT)]
        results = interpret(kernel, inputs, bindings, np.random.default_rng(0))
        for buffer, result in zip(kernel.with_role(Role.OUTPUT), results, strict=True):
            view(buffer)[...] = result


def upload(standin: Standin, array: np.ndarray) -> DeviceBuffer:
    memory = standin.allocate(max(array.nbytes, 16))
    ctypes.memmove(memory.address, array.ctypes.data, array.nbytes)
    return memory


def download(memory: DeviceBuffer, like: np.ndarray) -> np.ndarray:
    found = np.empty_like(like)
    ctypes.memmove(found.ctypes.data, memory.address, found.nbytes)
    return found


@pytest.mark.parametrize("major", [8, 9])
@pytest.mark.parametrize("rows", [1, 42])
def test_two_kernels_compute_what_numpy_does(
    standin: Standin,
    cuda: CudaLibrary,
    compiled: Callable[[list[Kernel]], tuple[Cubin, ...]],
    rows: int,
    major: int,
) -> None:
    """softmax of a column sum over an unknown number of rows, the sum in the arena."""
    standin.devices(major=major)
    first, second = column_sum(), softmax(1, 40)
    table = launch_table(
        [
            CudaLaunch(first, (Input(0),), (Temporary(0),), 0, THREADS, 160, {"B": Variable("n")}),
            CudaLaunch(second, (Temporary(0),), (Output(0),), 0, THREADS, 160),
        ],
        [compiled([first, second])],
        ("n",),
        inputs=1,
        outputs=1,
        driver=12000,
    )
    run_on_device = Interpreted(first, second)
    standin.on_launch(run_on_device)
    x = np.random.default_rng(1).standard_normal((rows, 40)).astype(np.float32) / rows
    program = cuda.load(write(table))
    with standin.context():
        memory = upload(standin, x), standin.allocate(160)
        memory += (standin.allocate(program.arena_bytes([rows])),)
        program.run([memory[0]], [memory[1]], [rows], arena=memory[2])
        standin.synchronize()
        y = download(memory[1], np.empty(40, np.float32))
        program.unload()
        for one in memory:
            standin.free(one)
    total = x.sum(axis=0, dtype=np.float64)
    power = np.exp(total - total.max())
    np.testing.assert_allclose(y, power / power.sum(), rtol=1e-5)
    assert [one.name for one in run_on_device.ran] == ["column_sum", "softmax"]


def test_hundreds_of_tensors_go_by_one_address(
    standin: Standin, cuda: CudaLibrary, compiled: Callable[[list[Kernel]], tuple[Cubin, ...]]
) -> None:
    """600 buffers: the words lie in device memory, and the kernel takes their address."""
    kernel = copies(300)
    places = tuple(map(Input, range(300))), tuple(map(Output, range(300)))
    launch = CudaLaunch(kernel, *places, 0, THREADS, 0)
    table = launch_table([launch], [compiled([kernel])], (), 300, 300, 12000)
    assert table.launches[0].words_region is not None
    standin.on_launch(Interpreted(kernel))
    arrays = [np.full(4, number, np.float32) for number in range(300)]
    program = cuda.load(write(table))
    with standin.context():
        inputs = [upload(standin, array) for array in arrays]
        outputs = [standin.allocate(16) for _ in arrays]
        arena = standin.allocate(program.arena_bytes())
        program.run(inputs, outputs, arena=arena)
        standin.synchronize()
        for array, memory in zip(arrays, outputs, strict=True):
            assert (download(memory, array) == array).all()
        program.unload()
        for memory in (*inputs, *outputs, arena):
            standin.free(memory)


def copies(count: int) -> Kernel:
    """`count` arrays of four numbers copied, a section each."""
    sections, sources, results = [], [], []
    for number in range(count):
        x = Buffer(f"x{number}", "f32", (4,), Scope.DEVICE, Role.INPUT)
        y = Buffer(f"y{number}", "f32", (4,), Scope.DEVICE, Role.OUTPUT)
        i = Variable(f"i{number}")
        body = (Loop(i.name, 0, 4, LoopKind.LANES, (Store(y, (i,), Load(x, (i,))),)),)
        sections.append(Section(f"task{number}", 1, body))
        sources.append(x)
        results.append(y)
    return Kernel("copies", (), (*sources, *results), (Phase(tuple(sections)),))


def test_a_kernel_with_checks_has_ranges(
    standin: Standin, cuda: CudaLibrary, compiled: Callable[[list[Kernel]], tuple[Cubin, ...]]
) -> None:
    copy = copies(1)
    check = Check(InRange(0, 0, 1), 0, FromIndex(0, "s64"))
    [section] = copy.phases[0].sections
    checked = replace(section, body=(*section.body, check))
    kernel = replace(copy, name="checked", phases=(Phase((checked,)),), errors=("{} is odd",))
    launches = [
        CudaLaunch(copy, (Input(0),), (Temporary(0),), 0, THREADS, 0),
        CudaLaunch(kernel, (Temporary(0),), (Temporary(1),), 0, THREADS, 0),
        CudaLaunch(kernel, (Temporary(1),), (Output(0),), 0, THREADS, 0),
    ]
    table = launch_table(launches, [compiled([copy, kernel])], (), 1, 1, 12000)
    assert table.checks == 2 and len(table.kernels) == 2
    places = [word.kind for word in words(kernel)]
    reports: list[int] = []

    def report(one: Ran) -> None:
        if one.name == "checked" and (value := reports.pop(0)):
            ranges = (ctypes.c_int64 * 2).from_address(one.words[places.index(WordKind.CHECKS)])
            ranges[0] = ranges[1] = value

    standin.on_launch(report)
    program = cuda.load(write(table))
    with standin.context():
        memory = [standin.allocate(16) for _ in range(2)]
        memory.append(standin.allocate(program.arena_bytes()))
        cases = (([0, 0], None), ([0, -9], FailedCheck(2, 0, -9)), ([5, 6], FailedCheck(1, 0, 5)))
        for given, expected in cases:
            reports[:] = given
            checks = program.run(memory[:1], memory[1:2], arena=memory[2])
            assert checks is not None and checks.wait() == expected
        program.unload()
        for one in memory:
            standin.free(one)


def test_the_entry_may_use_words_as_the_renderer_will() -> None:
    """One word for each buffer and symbol, and no word that a kernel does not use."""
    assert [word.name for word in words(softmax())] == ["x", "y"]
    kinds = [word.kind for word in words(column_sum())]
    assert kinds == [
        WordKind.BUFFER,
        WordKind.BUFFER,
        WordKind.SYMBOL,
        WordKind.SCRATCH,
        WordKind.BARRIER,
    ]
    with_error = replace(softmax(), errors=("wrong",))
    assert words(with_error)[-1].kind is WordKind.CHECKS
