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
from stitchcore.hlo.ir.numerics import Array
from stitchcore.launch.place import Place, value_at
from stitchcore.launch.region_program import RegionProgram
from stitchcore.loop_ir import index
from stitchcore.loop_ir.layout import bytes_of
from stitchcore.runtime.cuda_library import DeviceBuffer, LaunchError, LaunchReason, Program
from stitchcore.runtime.gpu.device import LaunchDevice


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

    def __init__(
        self, program: RegionProgram, programs: Sequence[Program], device: LaunchDevice
    ) -> None:
        self.program = program
        self._programs = programs
        self._device = device
        self._held: list[DeviceBuffer] = []

    @property
    def launches(self) -> int:
        """How many kernels a run launches."""
        return len(self.program.launches)

    def run(self, inputs: Sequence[Array], bindings: Mapping[str, int]) -> list[Array]:
        """The region's outputs for its inputs. Raises Refused where the device does not run it."""
        with _refusing():
            try:
                calls = self._calls(inputs, bindings)
                self._launch(calls)
                written = self._written(calls, bindings)
                return self.program.results(inputs, written, bindings)
            finally:
                self.release()

    def prepared(
        self,
        inputs: Sequence[Array],
        bindings: Mapping[str, int],
        pool: ThreadPoolExecutor,
        threads: int,
    ) -> tuple[Callable[[], None], Callable[[], None]]:
        """All launches as one call to repeat, which waits for the device, and the wait alone.

        They are a CUDA graph, so that no launch waits for Python: inside a job TensorFlow's
        executor launches them. Raises Refused."""
        del pool, threads
        with _refusing():
            calls = self._calls(inputs, bindings)
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

    def _calls(self, inputs: Sequence[Array], bindings: Mapping[str, int]) -> list[_Call]:
        self.release()
        memory = [self._upload(array) for array in inputs]
        written: dict[Place, DeviceBuffer] = {}
        calls: list[_Call] = []
        for launch, program in zip(self.program.launches, self._programs, strict=True):
            symbols = tuple(bindings[name] for name in launch.kernel.symbols)
            for place, buffer in launch.written:
                written[place] = self._allocate(index.evaluate(bytes_of(buffer), bindings))
            calls.append(
                _Call(
                    program,
                    tuple(
                        value_at(place, memory, written, self._upload) for place in launch.inputs
                    ),
                    tuple(written[place] for place in launch.outputs),
                    symbols,
                    self._allocate(program.arena_bytes(symbols)),
                )
            )
        return calls

    def _written(self, calls: Sequence[_Call], bindings: Mapping[str, int]) -> dict[Place, Array]:
        """What the launches wrote of the region's outputs."""
        wanted = {output.place for output in self.program.outputs}
        written = {}
        for launch, call in zip(self.program.launches, calls, strict=True):
            for (place, buffer), memory in zip(launch.written, call.outputs, strict=True):
                if place in wanted:
                    shape = [index.evaluate(extent, bindings) for extent in buffer.dims]
                    written[place] = self._device.download(memory.address, buffer.dtype, shape)
        return written

    def _upload(self, array: Array) -> DeviceBuffer:
        buffer = self._allocate(array.nbytes)
        self._device.upload(buffer.address, array)
        return buffer

    def _allocate(self, size: int) -> DeviceBuffer:
        self._held.append(self._device.allocate(max(size, 1)))
        return self._held[-1]


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
    except RuntimeError as error:  # errors of the driver are such
        raise Refused("region", Reason.KERNEL_FAILED, f"on the device: {error}") from error
