"""The CUDA launch library (inject/native/cuda) through ctypes: programs on streams of the caller's.

For verification, measurement and tests; inside TensorFlow the operation calls the library itself.
Nothing here imports a GPU framework: streams and addresses are integers, as CuPy and DLPack have
them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from stitchcore.errors import worse

CURRENT = -1
"""In place of a device: the context that is current in this thread."""


class LaunchReason(IntEnum):
    """StitchReason of stitch_launch.h: the closed list."""

    NO_DRIVER = 1
    OLD_DRIVER = 2
    NO_DEVICE = 3
    NO_CONTEXT = 4
    BAD_TABLE = 5
    BAD_CALL = 6
    NO_CUBIN = 7
    BAD_MODULE = 8
    SHARED_MEMORY = 9
    RESOURCES = 10
    COOPERATIVE = 11
    LAUNCH_FAILED = 12
    OUT_OF_MEMORY = 13
    CAPTURE = 14
    DRIVER_FAILED = 15
    INTERNAL = 16


class LaunchError(Exception):
    """The library refused or the driver failed; `detail` has the driver's words."""

    def __init__(self, reason: LaunchReason, detail: str) -> None:
        self.reason, self.detail = reason, detail
        super().__init__(f"{reason.name.lower()}: {detail}")


@dataclass(frozen=True)
class DeviceBuffer:
    """Device memory: its address and its size in bytes."""

    address: int
    bytes: int


@dataclass(frozen=True)
class Allocator:
    """Where a run's arena comes from. `release` may give the memory to later work of the stream.

    `allocate` returns a multiple of 256, or 0. What either raises is printed, and counts as 0.
    """

    allocate: Callable[[int], int]
    release: Callable[[int], None]


@dataclass(frozen=True)
class FailedCheck:
    """Check `check` of launch `launch` failed; `reported` is the value that its message names."""

    launch: int
    check: int
    reported: int


@dataclass(frozen=True)
class KernelInfo:
    """A kernel as one device has it: registers a thread, bytes of static shared memory a block and
    of local memory a thread, blocks resident on a multiprocessor, multiprocessors, and the minor
    number of the cubin that was chosen."""

    registers: int
    shared_bytes: int
    local_bytes: int
    blocks_per_multiprocessor: int
    multiprocessors: int
    minor: int


class _Error(ctypes.Structure):
    _fields_ = (("reason", ctypes.c_int32), ("text", ctypes.c_char * 508))


class _Buffer(ctypes.Structure):
    _fields_ = (("address", ctypes.c_uint64), ("bytes", ctypes.c_uint64))


_Allocate = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64)
_Release = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64)


class _Allocator(ctypes.Structure):
    _fields_ = (("allocate", _Allocate), ("release", _Release), ("user", ctypes.c_void_p))


class _Call(ctypes.Structure):
    _fields_ = (
        ("device", ctypes.c_int32),
        ("first_launch", ctypes.c_int32),
        ("launches", ctypes.c_int32),
        ("symbol_count", ctypes.c_int32),
        ("input_count", ctypes.c_int32),
        ("output_count", ctypes.c_int32),
        ("stream", ctypes.c_void_p),
        ("symbols", ctypes.POINTER(ctypes.c_int64)),
        ("inputs", ctypes.POINTER(_Buffer)),
        ("outputs", ctypes.POINTER(_Buffer)),
        ("arena", _Buffer),
        ("allocator", ctypes.POINTER(_Allocator)),
        ("checks", ctypes.POINTER(ctypes.c_void_p)),
    )


class _Check(ctypes.Structure):
    _fields_ = (
        ("launch", ctypes.c_int32),
        ("check", ctypes.c_int32),
        ("low", ctypes.c_int64),
        ("high", ctypes.c_int64),
    )


class _KernelInfo(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_int32) for name in KernelInfo.__dataclass_fields__)


class CudaLibrary:
    """The launch library with a driver opened. Raises LaunchError(NO_DRIVER, ...) without one.

    `library` is the built file (`inject.build.build_launch`), `driver` another file than
    libcuda.so.1. Close programs before it.
    """

    def __init__(self, library: Path, driver: Path | None = None) -> None:
        self._library = ctypes.CDLL(str(library))
        self._handle = ctypes.c_void_p()
        path = None if driver is None else str(driver).encode()
        self._call("stitch_cuda_open", path, ctypes.byref(self._handle))

    def load(self, table: bytes) -> Program:
        """A program from a launch table (`cuda_table.write`)."""
        program = ctypes.c_void_p()
        size = ctypes.c_size_t(len(table))
        self._call("stitch_program_load", _alive(self._handle), table, size, ctypes.byref(program))
        return Program(self, program)

    def close(self) -> None:
        """Let go of what the library holds on devices. Raises LaunchError while a program is
        loaded."""
        self._call("stitch_cuda_close", _alive(self._handle))
        self._handle.value = None

    def _call(self, name: str, *arguments: Any) -> None:
        error = _Error()
        if getattr(self._library, name)(*arguments, ctypes.byref(error)) != 0:
            raise LaunchError(LaunchReason(error.reason), error.text.decode(errors="replace"))


class Program:
    """A loaded launch table. Calls may come from any thread."""

    def __init__(self, cuda: CudaLibrary, handle: ctypes.c_void_p) -> None:
        self._cuda, self._handle = cuda, handle

    def prepare(self, device: int = CURRENT) -> None:
        """Load every kernel for `device`. Raises LaunchError for one that cannot run there."""
        self._cuda._call("stitch_program_prepare", _alive(self._handle), device)

    def kernel_info(self, kernel: int, device: int = CURRENT) -> KernelInfo:
        info = _KernelInfo()
        self._cuda._call(
            "stitch_kernel_info", _alive(self._handle), device, kernel, ctypes.byref(info)
        )
        return KernelInfo(*(getattr(info, name) for name in KernelInfo.__dataclass_fields__))

    def arena_bytes(self, symbols: Sequence[int] = ()) -> int:
        """Bytes that a run's arena must have."""
        size = ctypes.c_uint64()
        values = _array(ctypes.c_int64, symbols)
        self._cuda._call(
            "stitch_arena_bytes", _alive(self._handle), values, len(symbols), ctypes.byref(size)
        )
        return size.value

    def region(self, region: int, symbols: Sequence[int] = ()) -> tuple[int, int]:
        """Offset and size of a region of the arena, in bytes."""
        offset, size = ctypes.c_uint64(), ctypes.c_uint64()
        values = _array(ctypes.c_int64, symbols)
        places = ctypes.byref(offset), ctypes.byref(size)
        self._cuda._call(
            "stitch_region", _alive(self._handle), region, values, len(symbols), *places
        )
        return offset.value, size.value

    def run(
        self,
        inputs: Sequence[DeviceBuffer],
        outputs: Sequence[DeviceBuffer],
        symbols: Sequence[int] = (),
        *,
        device: int = CURRENT,
        stream: int = 0,
        arena: DeviceBuffer | None = None,
        allocator: Allocator | None = None,
        first: int = 0,
        count: int | None = None,
    ) -> Checks | None:
        """Put `count` launches from number `first` on into the stream (None: all that follow).

        Returns what to wait for where a kernel has checks. Raises LaunchError.
        """
        checks = ctypes.c_void_p()
        call = _Call(
            device,
            first,
            -1 if count is None else count,
            len(symbols),
            len(inputs),
            len(outputs),
            stream,
            _array(ctypes.c_int64, symbols),
            _array(_Buffer, [_Buffer(buffer.address, buffer.bytes) for buffer in inputs]),
            _array(_Buffer, [_Buffer(buffer.address, buffer.bytes) for buffer in outputs]),
            _Buffer(0, 0) if arena is None else _Buffer(arena.address, arena.bytes),
            None if allocator is None else ctypes.pointer(_native(allocator)),
            ctypes.pointer(checks),
        )
        self._cuda._call("stitch_run", _alive(self._handle), ctypes.byref(call))
        return Checks(self._cuda, checks) if checks.value else None

    def unload(self) -> None:
        """Wait for the program's work and let its modules go."""
        self._cuda._call("stitch_program_unload", _alive(self._handle))
        self._handle.value = None


class Checks:
    """What the checks of one run will have found; wait exactly once."""

    def __init__(self, cuda: CudaLibrary, handle: ctypes.c_void_p) -> None:
        self._cuda, self._handle = cuda, handle

    def wait(self) -> FailedCheck | None:
        """Wait for the run: the first check that failed, in the order of launches."""
        check = _Check()
        handle = ctypes.c_void_p(_alive(self._handle).value)
        self._handle.value = None  # gone whatever comes of it
        self._cuda._call("stitch_checks_wait", handle, ctypes.byref(check))
        if check.launch < 0:
            return None
        return FailedCheck(check.launch, check.check, worse(check.low, check.high))


def _alive(handle: ctypes.c_void_p) -> ctypes.c_void_p:
    if handle.value is None:
        raise ValueError("closed, unloaded or waited for before")
    return handle


def _array(kind: Any, values: Sequence[Any]) -> Any:
    return (kind * max(len(values), 1))(*values)


def _native(allocator: Allocator) -> _Allocator:
    return _Allocator(
        _Allocate(lambda _, size: allocator.allocate(size)),
        _Release(lambda _, address: allocator.release(address)),
        None,
    )
