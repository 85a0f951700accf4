"""Runs a GpuModule on a device: memory once, then any number of runs in the device's stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from stitchcore.hlo.evaluator.evaluate import apply
from stitchcore.launch.cuda_table import write
from stitchcore.launch.place import Input, Output, Place, Temporary
from stitchcore.runtime.cuda_library import CudaLibrary, DeviceBuffer, Program
from stitchcore.runtime.gpu.device import Device
from stitchcore.runtime.gpu.library import dispatch
from stitchcore.runtime.gpu.program import (
    Array,
    Choice,
    Copy,
    GpuModule,
    HostCall,
    LaunchRange,
    LibraryCall,
    Loop,
    Step,
    every_step,
)


@dataclass(frozen=True)
class Loaded:
    """A module on a device, its parameters not yet given.

    Buffers are the table's inputs and outputs and the arena. Not for use by several threads.
    """

    module: GpuModule
    device: Device
    program: Program
    inputs: tuple[DeviceBuffer, ...]
    outputs: tuple[DeviceBuffer, ...]
    arena: DeviceBuffer

    def give(self, arguments: Sequence[Any]) -> None:
        """Parameters' leaves, as numpy arrays in storage types."""
        pairs = zip(self.module.parameters, arguments, strict=True)
        for number, (parameter, argument) in enumerate(pairs):
            if tuple(argument.shape) != parameter.dims:
                raise ValueError(f"parameter {number} is {parameter.dims}: {argument.shape}")
            self.device.upload(self.inputs[number].address, argument)

    def run(self) -> None:
        """Put one run into the stream; it ends there unless `module.waits`."""
        for step in self.module.steps:
            self._step(step)

    def kernels(self) -> None:
        """Put only a run's kernels into the stream, whatever is in memory: to time them. Not for a
        module that `waits`."""
        self._kernels(self.module.steps)

    def _kernels(self, block: Sequence[Step]) -> None:
        for step in block:
            match step:
                case LaunchRange(first, count):
                    self.launch(first, count)
                case Loop(_, _, body, int(trips)):
                    for _ in range(trips):
                        self._kernels(body)

    def launch(self, first: int, count: int) -> None:
        self.program.run(
            self.inputs,
            self.outputs,
            stream=self.device.stream,
            arena=self.arena,
            first=first,
            count=count,
        )

    def results(self) -> list[Any]:
        """The outputs of the last run, as numpy arrays."""
        return [self.download(output) for output in self.module.outputs]

    def download(self, array: Array) -> Any:
        return self.device.download(self.address(array.place), array.dtype, array.dims)

    def address(self, place: Place) -> int:
        match place:
            case Input(position):
                return self.inputs[position].address
            case Output(position):
                return self.outputs[position].address
            case Temporary(position):
                region = self.module.table.regions[self.module.regions[position]]
                assert isinstance(region.offset, int)
                return self.arena.address + region.offset

    def _step(self, step: Step) -> None:
        match step:
            case LaunchRange(first, count):
                self.launch(first, count)
            case LibraryCall(node, operands, results):
                arrays = [*map(self._view, operands)], [*map(self._view, results)]
                self.device.enqueue(lambda: dispatch.compute(self.device, node, *arrays))
            case HostCall(node, operands, results):
                value = apply(node, [self.download(operand) for operand in operands])
                values = value if isinstance(value, tuple) else (value,)
                for result, part in zip(results, values, strict=True):
                    self.device.upload(self.address(result.place), part)
            case Copy(source, target):
                self.device.enqueue(lambda: self._copy(source, target))
            case Loop(_, _, body, int(trips)):
                for _ in range(trips):
                    self._block(body)
            case Loop(condition, predicate, body, None):
                self._block(condition)
                while bool(self.download(predicate)):
                    self._block(body)
                    self._block(condition)
            case Choice(index, branches):
                self._block(branches[self._chosen(index, len(branches))])

    def _block(self, block: Sequence[Step]) -> None:
        for step in block:
            self._step(step)

    def _chosen(self, index: Array, count: int) -> int:
        value = self.download(index).item()
        if isinstance(value, bool):
            return 0 if value else 1
        return value if 0 <= value < count else count - 1

    def _copy(self, source: Array, target: Array) -> None:
        self._view(target)[...] = self._view(source)

    def _view(self, array: Array) -> Any:
        return self.device.array(self.address(array.place), array.dtype, array.dims)


@contextmanager
def loaded(module: GpuModule, device: Device, cuda: CudaLibrary) -> Iterator[Loaded]:
    """`module` on `device`; memory and kernels go at the end.

    Raises LaunchError where a kernel cannot run there, MemoryError where memory does not suffice.
    """
    program = cuda.load(write(module.table))
    buffers: list[DeviceBuffer] = []

    def allocate(size: int) -> DeviceBuffer:
        buffers.append(device.allocate(max(size, 1)))
        return buffers[-1]

    try:
        program.prepare()
        inputs = [allocate(parameter.bytes) for parameter in module.parameters]
        for literal in module.constants:
            inputs.append(allocate(len(literal.data)))
            device.upload(inputs[-1].address, literal.array)
        sizes = [output.bytes * isinstance(output.place, Output) for output in module.outputs]
        outputs = tuple(allocate(size) for size in sizes)
        arena = allocate(program.arena_bytes())
        yield Loaded(module, device, program, tuple(inputs), outputs, arena)
    finally:
        device.synchronize()
        program.unload()
        for buffer in buffers:
            device.release(buffer)


def captured(module: Loaded, kernels: bool = False) -> Callable[[], None]:
    """A run, or only its `kernels`, as a CUDA graph; call to launch it. The graph holds addresses,
    so it must not be used when `module` is closed. Raises ValueError where the host takes part in a
    run."""
    why = capture_refused(module.module)
    if why:
        raise ValueError(f"no CUDA graph can hold {module.module.module.name}: {why}")
    return module.device.capture(module.kernels if kernels else module.run)


def capture_refused(module: GpuModule) -> str:
    """Why a run of `module` cannot be a CUDA graph, or ""."""
    if module.waits:
        return "the host waits for what the device computes (a loop, a branch, or numpy's part)"
    if module.table.checks:
        return "a kernel has checks, which the host reads after each run"
    calls = (step.node for step in every_step(module.steps) if isinstance(step, LibraryCall))
    waiting = next((node for node in calls if dispatch.waits(node)), None)
    return "" if waiting is None else f"CuPy's {waiting.opcode} of {waiting.shape} waits for itself"
