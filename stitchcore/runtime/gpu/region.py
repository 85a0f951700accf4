"""A region's launches on a GPU, by the launch tables that a job will load: to prove and time them.

What `verify.region.Runner` is on a processor. Memory is a device's (device.py), so that this runs
on the stand-in driver of the tests too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from stitchcore.errors import Reason, Refused
from stitchcore.hlo.ir import dim as dims
from stitchcore.hlo.ir.numerics import Array
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.launch.region_program import (
    FromConstant,
    FromLaunch,
    FromRegion,
    Operand,
    RegionProgram,
)
from stitchcore.loop_ir import index
from stitchcore.loop_ir.nodes import Buffer, Role
from stitchcore.runtime.cuda_library import DeviceBuffer, LaunchError, LaunchReason, Program
from stitchcore.runtime.gpu.device import Device


@dataclass(frozen=True)
class _Call:
    """One launch with its memory."""

    program: Program
    inputs: tuple[DeviceBuffer, ...]
    outputs: tuple[DeviceBuffer, ...]
    symbols: tuple[int, ...]
    arena: DeviceBuffer


class GpuRegion:
    """`programs[i]` is launch i's table, loaded. What `prepared` takes of the device's memory stays
    until the next call, or `release`. Not for use by several threads."""

    def __init__(self, program: RegionProgram, programs: Sequence[Program], device: Device) -> None:
        self.program = program
        self._programs = programs
        self._device = device
        self._held: list[DeviceBuffer] = []

    @property
    def launches(self) -> int:
        """How many kernels a run launches."""
        return len(self.program.launches)

    def run(self, given: Sequence[Array], bindings: Mapping[str, int]) -> list[Array]:
        """The region's outputs for its inputs. Raises Refused where the device does not run it."""
        with _refusing():
            try:
                calls = self._calls(given, bindings)
                self._launch(calls)
                return [self._read(one, given, calls, bindings) for one in self.program.outputs]
            finally:
                self.release()

    def prepared(
        self,
        given: Sequence[Array],
        bindings: Mapping[str, int],
        pool: ThreadPoolExecutor,
        threads: int,
    ) -> tuple[Callable[[], None], Callable[[], None]]:
        """All launches as one call to repeat, which waits for the device, and the wait alone.

        They are a CUDA graph, so that no launch waits for Python: inside a job TensorFlow's
        executor launches them. Raises Refused."""
        del pool, threads
        with _refusing():
            calls = self._calls(given, bindings)
            self._launch(calls)  # modules load when they are first launched: no capture allows it
            self._device.synchronize()
            replay = self._device.capture(lambda: self._launch(calls))

        def launch() -> None:
            replay()
            self._device.synchronize()

        return launch, self._device.synchronize

    def release(self) -> None:
        """Give memory back, when all work is done. A driver that says an error (of earlier work,
        say) has released all the same."""
        if self._held:
            self._device.synchronize()
        while self._held:
            self._device.release(self._held.pop())

    def _launch(self, calls: Sequence[_Call]) -> None:
        for call in calls:
            call.program.run(
                call.inputs,
                call.outputs,
                call.symbols,
                stream=self._device.stream,
                arena=call.arena,
            )

    def _calls(self, given: Sequence[Array], bindings: Mapping[str, int]) -> list[_Call]:
        self.release()
        inputs = [self._upload(array) for array in given]
        calls: list[_Call] = []
        for launch, program in zip(self.program.launches, self._programs, strict=True):
            kernel = launch.kernel
            symbols = tuple(bindings[name] for name in kernel.symbols)
            calls.append(
                _Call(
                    program,
                    tuple(self._place(one, inputs, calls) for one in launch.inputs),
                    tuple(
                        self._allocate(_bytes(b, bindings)) for b in kernel.with_role(Role.OUTPUT)
                    ),
                    symbols,
                    self._allocate(program.arena_bytes(symbols)),
                )
            )
        return calls

    def _place(
        self, operand: Operand, inputs: Sequence[DeviceBuffer], calls: Sequence[_Call]
    ) -> DeviceBuffer:
        match operand.source:
            case FromRegion(position):
                return inputs[position]
            case FromLaunch(launch, output):
                return calls[launch].outputs[output]
            case FromConstant(literal):
                return self._upload(literal.array)

    def _upload(self, array: Array) -> DeviceBuffer:
        buffer = self._allocate(array.nbytes)
        self._device.upload(buffer.address, array)
        return buffer

    def _allocate(self, size: int) -> DeviceBuffer:
        self._held.append(self._device.allocate(max(size, 1)))
        return self._held[-1]

    def _read(
        self,
        operand: Operand,
        given: Sequence[Array],
        calls: Sequence[_Call],
        bindings: Mapping[str, int],
    ) -> Array:
        shape = [dims.evaluate(dim, bindings) for dim in operand.dims]
        match operand.source:
            case FromRegion(position):
                return given[position].reshape(shape)
            case FromLaunch(launch, output):
                kernel = self.program.launches[launch].kernel
                dtype = kernel.with_role(Role.OUTPUT)[output].dtype
                address = calls[launch].outputs[output].address
                made: Array = self._device.download(address, dtype, shape)
                return made
            case FromConstant(literal):
                return literal.array.reshape(shape)


REASONS = {
    LaunchReason.NO_DRIVER: Reason.NO_DEVICE,
    LaunchReason.OLD_DRIVER: Reason.NO_DEVICE,
    LaunchReason.NO_DEVICE: Reason.NO_DEVICE,
    LaunchReason.BAD_TABLE: Reason.BAD_ARTIFACT,
    LaunchReason.NO_CUBIN: Reason.WRONG_TARGET,
    LaunchReason.BAD_MODULE: Reason.BAD_ARTIFACT,
    LaunchReason.SHARED_MEMORY: Reason.SHARED_MEMORY,
    LaunchReason.RESOURCES: Reason.REGISTERS,
    LaunchReason.OUT_OF_MEMORY: Reason.MEMORY,
}
"""Why a region is refused, by what the launch library says; all else is KERNEL_FAILED."""


def reason_of(error: LaunchError) -> Reason:
    """The closed list's word for an error of the launch library."""
    return REASONS.get(error.reason, Reason.KERNEL_FAILED)


@contextmanager
def _refusing() -> Iterator[None]:
    """What a device does not do is a refusal of the region."""
    try:
        yield
    except LaunchError as error:
        raise Refused("region", reason_of(error), str(error)) from error
    except MemoryError as error:
        raise Refused("region", Reason.MEMORY, f"on the device: {error}") from error
    except RuntimeError as error:  # CuPy's errors of the driver are such
        raise Refused("region", Reason.KERNEL_FAILED, f"on the device: {error}") from error


def _bytes(buffer: Buffer, bindings: Mapping[str, int]) -> int:
    count = DTYPES[buffer.dtype].bytes
    for extent in buffer.dims:
        count *= index.evaluate(extent, bindings)
    return count
