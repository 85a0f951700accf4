"""Runs CPU kernels from Python: for verification, measurement and tests, not for training jobs.

Threads are Python's; ctypes releases the GIL during a call. A phase's tasks are split into one
contiguous range per thread, and phases follow one another, as the ABI asks (docs/contracts.md 2).
"""

from __future__ import annotations

import ctypes
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial, reduce
from typing import Any

import numpy as np

from stitchcore.errors import CheckFailed, worse
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.loop_ir import index
from stitchcore.loop_ir.nodes import Buffer, Kernel, Role

Array = np.ndarray[Any, np.dtype[Any]]

_ARGUMENTS = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p) + (ctypes.c_int64,) * 3


def _first(left: int, right: int) -> int:
    """Of two results of task ranges the one to raise (contracts.md 2)."""
    if not left or not right:
        return left or right
    if left & 255 != right & 255:
        return min(left, right, key=lambda result: result & 255)
    return worse(left >> 8, right >> 8) << 8 | left & 255


def aligned_empty(shape: Sequence[int], dtype: np.dtype[Any], alignment: int = 64) -> Array:
    """An uninitialised row-major array whose first byte is aligned."""
    count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    block = np.empty(count + alignment, np.uint8)
    start = -block.ctypes.data % alignment
    return block[start : start + count].view(dtype).reshape(shape)


def unwritten(shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """An aligned array of what no correct result is (NaN, -1): memory that was freed lately often
    holds what the same kernel wrote there before, so what a kernel leaves out would look right."""
    array = aligned_empty(shape, dtype)
    array.reshape(-1).view(np.uint8).fill(255)
    return array


def load_library(data: bytes) -> ctypes.CDLL:
    """Load a shared object from its bytes. It is never unloaded."""
    with tempfile.NamedTemporaryFile(prefix="stitch-", suffix=".so", delete=False) as file:
        file.write(data)
    try:
        return ctypes.CDLL(file.name)
    finally:
        os.unlink(file.name)


class CpuKernel:
    """One kernel of a loaded library. Immutable; calls may run at the same time.

    `library` is the shared object's bytes, or one already loaded (many kernels share one).
    """

    def __init__(self, library: bytes | ctypes.CDLL, kernel: Kernel) -> None:
        self.kernel = kernel
        self._library = load_library(library) if isinstance(library, bytes) else library
        self._function = getattr(self._library, kernel.name)
        self._function.argtypes = _ARGUMENTS
        self._function.restype = ctypes.c_int64

    def run(
        self,
        inputs: Sequence[Array],
        bindings: Mapping[str, int] | None = None,
        threads: int = 1,
        outputs: Sequence[Array] | None = None,
    ) -> list[Array]:
        """Outputs for `inputs`. Given `outputs` are written (they may be forwarded inputs).

        Raises ValueError for a wrong count, dtype or shape, CheckFailed when a Check fails.
        """
        call = self._prepare(inputs, bindings or {}, outputs)
        with ThreadPoolExecutor(max_workers=threads) as pool:
            for phase, tasks in enumerate(call.tasks):
                ranges = _split(tasks, threads)
                if len(ranges) <= 1:
                    results = [call(self._function, phase, *part) for part in ranges]
                else:
                    results = list(pool.map(lambda r, p=phase: call(self._function, p, *r), ranges))
                failed = reduce(_first, results, 0)
                if failed:
                    message = self.kernel.errors[(failed & 255) - 1]
                    raise CheckFailed.of(message, failed >> 8)
        return call.outputs

    def seconds(
        self,
        inputs: Sequence[Array],
        bindings: Mapping[str, int] | None = None,
        repeats: int = 5,
        threads: int = 1,
    ) -> list[float]:
        """Wall seconds of `repeats` runs into the same outputs, after one warm-up."""
        call = self._prepare(inputs, bindings or {}, None)
        plan = [(p, _split(tasks, threads)) for p, tasks in enumerate(call.tasks)]
        taken = []
        with ThreadPoolExecutor(max_workers=threads) as pool:
            for repeat in range(repeats + 1):
                start = time.perf_counter()
                for phase, ranges in plan:
                    rest = [pool.submit(call, self._function, phase, *r) for r in ranges[1:]]
                    for part in ranges[:1]:
                        call(self._function, phase, *part)
                    for future in rest:
                        future.result()
                if repeat:
                    taken.append(time.perf_counter() - start)
        return taken

    def prepared(
        self,
        inputs: Sequence[Array],
        bindings: Mapping[str, int] | None,
        pool: ThreadPoolExecutor,
        threads: int,
    ) -> tuple[Callable[[], None], list[Array], Callable[[], None]]:
        """A call to repeat, the outputs it writes each time, and a call that does all but the work:
        what calling from Python costs.

        For timing: nothing is allocated or checked in it. One range of each phase runs on the
        calling thread, the rest in `pool`, whose threads Python takes far longer to reach than the
        plug-in takes for its own: without their work they are called, too.
        """
        call = self._prepare(inputs, bindings or {}, None)
        plan = [(p, _split(tasks, threads)) for p, tasks in enumerate(call.tasks)]

        def through(plan: Sequence[tuple[int, Sequence[tuple[int, int]]]]) -> None:
            for phase, ranges in plan:
                rest = [pool.submit(call, self._function, phase, *r) for r in ranges[1:]]
                for part in ranges[:1]:
                    call(self._function, phase, *part)
                for future in rest:
                    future.result()

        empty = [(phase, [(0, 0)] * max(len(ranges), 1)) for phase, ranges in plan]
        return partial(through, plan), call.outputs, partial(through, empty)

    def _prepare(
        self,
        inputs: Sequence[Array],
        bindings: Mapping[str, int],
        outputs: Sequence[Array] | None,
    ) -> _Call:
        kernel = self.kernel
        operands = [np.asarray(array, order="C") for array in inputs]
        _check(kernel, Role.INPUT, operands, bindings)
        if outputs is None:
            results = [
                unwritten(_shape(buffer, bindings), DTYPES[buffer.dtype].numpy)
                for buffer in kernel.with_role(Role.OUTPUT)
            ]
        else:
            results = list(outputs)
            _check(kernel, Role.OUTPUT, results, bindings)
        tasks = [
            sum(max(index.evaluate(s.tasks, bindings), 0) for s in phase.sections)
            for phase in kernel.phases
        ]
        size = (index.evaluate(kernel.scratch_bytes, bindings),)
        scratch = unwritten(size, np.dtype(np.uint8))
        symbols = np.array([bindings[name] for name in kernel.symbols], np.int64)
        return _Call(operands, results, scratch, symbols, tasks)


class _Call:
    """The arguments of one run, kept alive; calling it runs one task range of one phase."""

    def __init__(
        self,
        inputs: list[Array],
        outputs: list[Array],
        scratch: Array,
        symbols: Array,
        tasks: list[int],
    ) -> None:
        self.inputs, self.outputs, self.tasks = inputs, outputs, tasks
        self._scratch, self._symbols = scratch, symbols
        pointers = [array.ctypes.data for array in (*inputs, *outputs)]
        self._buffers = (ctypes.c_void_p * max(len(pointers), 1))(*pointers)

    def __call__(self, function: Any, phase: int, begin: int, end: int) -> int:
        return int(
            function(
                self._buffers,
                self._symbols.ctypes.data,
                self._scratch.ctypes.data,
                phase,
                begin,
                end,
            )
        )


def _split(tasks: int, threads: int) -> list[tuple[int, int]]:
    """[0, tasks) in at most `threads` non-empty ranges of nearly equal size."""
    parts = max(min(threads, tasks), 1)
    cuts = [tasks * i // parts for i in range(parts + 1)]
    return [(a, b) for a, b in itertools.pairwise(cuts) if a < b]


def _shape(buffer: Buffer, bindings: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(index.evaluate(extent, bindings) for extent in buffer.dims)


def _check(
    kernel: Kernel, role: Role, arrays: Sequence[Array], bindings: Mapping[str, int]
) -> None:
    missing = [name for name in kernel.symbols if name not in bindings]
    if missing:
        raise ValueError(f"{kernel.name}: no value for symbols {missing}")
    buffers = kernel.with_role(role)
    if len(buffers) != len(arrays):
        raise ValueError(f"{kernel.name}: {len(buffers)} {role.value}s, {len(arrays)} given")
    for buffer, array in zip(buffers, arrays, strict=True):
        expected = (DTYPES[buffer.dtype].numpy, _shape(buffer, bindings))
        if (array.dtype, array.shape) != expected:
            raise ValueError(
                f"{kernel.name}: {role.value} {buffer.name} must be {expected[0]}{expected[1]},"
                f" is {array.dtype}{array.shape}"
            )
        if not array.flags.c_contiguous:
            raise ValueError(f"{kernel.name}: {role.value} {buffer.name} is not row-major")
