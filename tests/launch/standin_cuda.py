"""The stand-in for libcuda from Python: built once, told what device it is, asked what it saw.

Also small cubins of the form NVRTC writes, as far as a driver without a GPU can read them.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from stitchcore.errors import Refused
from stitchcore.inject import build
from stitchcore.runtime.cuda_library import CudaLibrary, DeviceBuffer
from stitchcore.toolchain import nvrtc

HERE = Path(__file__).parent / "standin"
SOURCES = tuple(sorted(HERE.glob("*.cc")))
_Callback = ctypes.CFUNCTYPE(
    None,
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_uint64),
    ctypes.c_size_t,
    ctypes.c_uint,
    ctypes.c_uint,
    ctypes.c_uint,
    ctypes.c_int,
)


class Ran(NamedTuple):
    """A launch when it ran: its parameter's words, blocks, threads, dynamic shared bytes."""

    name: str
    words: tuple[int, ...]
    grid: int
    threads: int
    shared: int
    cooperative: bool


class Live(NamedTuple):
    """Objects of the driver that are still there."""

    modules: int = 0
    memory: int = 0
    pinned: int = 0
    events: int = 0
    retained: int = 0
    current: int = 0


def compile_shared(sources: Sequence[Path], name: str, *flags: str) -> Path:
    """A shared object or program of `sources`, kept by content in the temporary folder."""
    compiler = shutil.which("g++")
    assert compiler is not None, "no C++ compiler: apt-get install g++"
    seen = [*sources, *HERE.glob("*.h"), *(build.NATIVE / "cuda").glob("*"), *_expression()]
    digest = hashlib.sha256(" ".join(flags).encode())
    for source in seen:
        digest.update(source.read_bytes())
    folder = Path(tempfile.gettempdir()) / "stitch-native-tests" / digest.hexdigest()[:24]
    target = folder / name
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    command = [compiler, "-std=c++17", "-Wall", "-Wextra", "-g", "-O1", *flags]
    made = target.with_suffix(f".{os.getpid()}")
    subprocess.run([*command, *map(str, sources), "-o", str(made), "-ldl"], check=True)
    made.rename(target)
    return target


def _expression() -> tuple[Path, Path]:
    return build.NATIVE / "expression.cc", build.NATIVE / "expression.h"


def launch_sources() -> tuple[Path, ...]:
    """The library's own sources, for programs that are built with sanitizers."""
    return tuple(build.NATIVE / source for source in build.LAUNCH_SOURCES)


def standin_library(*flags: str) -> Path:
    # No soname: NVRTC in this process would find it under its name, and call what it lacks.
    shared = ("-fPIC", "-shared", "-fvisibility=hidden")
    return compile_shared(SOURCES, "libcuda.so.1", *shared, *flags)


@dataclass(frozen=True)
class FakeKernel:
    """What a cubin says of a kernel."""

    words: int
    registers: int = 32
    shared_bytes: int = 0
    max_threads: int = 1024
    parameters: int = 1


def fake_cubin(kernels: Mapping[str, FakeKernel], target: str = "sm_90") -> bytes:
    """An ELF file with the sections that say how kernels are launched, and no code."""
    sections: list[tuple[str, int, bytes, int, int]] = []  # name, type, data, size, info
    for name, kernel in kernels.items():
        sections.append((f".text.{name}", 1, b"\0" * 16, 16, kernel.registers << 24))
        info = struct.pack("<BBHIII", 4, 5, 12, kernel.max_threads, 1, 1)
        for number in range(kernel.parameters):
            size = 8 * kernel.words
            place = (number, size * number)
            info += struct.pack("<BBHIHHI", 4, 0x17, 12, 0, *place, size << 18 | 0x1F000)
        sections.append((f".nv.info.{name}", 0x70000000, info, len(info), 0))
        if kernel.shared_bytes:
            sections.append((f".nv.shared.{name}", 8, b"", kernel.shared_bytes, 0))
    names = b"\0" + b"".join(s[0].encode() + b"\0" for s in sections) + b".shstrtab\0"
    sections.append((".shstrtab", 3, names, len(names), 0))
    body, headers = b"", b"\0" * 64
    for name, kind, data, size, info in sections:
        place = names.index(name.encode() + b"\0")
        fields = (place, kind, 0, 0, 64 + len(body), size, 0, info, 1, 0)
        headers += struct.pack("<IIQQQQIIQQ", *fields)
        body += data
    body += b"\0" * (-len(body) % 8)
    number = int(target.removeprefix("sm_"))
    ident = b"\x7fELF\x02\x01\x01\x33\x07" + b"\0" * 7
    start = struct.pack("<HHIQQQI", 2, 190, 1, 0, 0, 64 + len(body), number << 16 | number)
    counts = struct.pack("<HHHHHH", 64, 0, 0, 64, len(sections) + 1, len(sections))
    return ident + start + counts + body + headers


def newest_driver() -> int:
    """CUDA's version in a driver that loads what NVRTC makes here."""
    try:
        major, minor = map(int, nvrtc.nvrtc_version().split("."))
    except Refused:
        return 12090
    return 1000 * major + 10 * minor


class Standin:
    """One process has one: `devices` makes it a fresh one. A copy of the library at another path
    is a driver of its own."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or standin_library()
        self._library = ctypes.CDLL(str(self.path))
        for name in ("standin_errors", "standin_calls", "standin_end_capture"):
            getattr(self._library, name).restype = ctypes.c_void_p
        self._callback: Any = None

    def devices(
        self,
        count: int = 1,
        major: int = 9,
        minor: int = 0,
        multiprocessors: int = 4,
        cooperative: bool = True,
        service: bool = False,
        version: int = 0,
        shared_optin: int = 232448,
    ) -> None:
        """A `version` of 0: a driver as new as NVRTC."""
        known = version or newest_driver()
        figures = (major, minor, multiprocessors, int(cooperative), int(service), known)
        self._library.standin_devices(count, *figures, shared_optin)

    def fail(self, call: int, result: int = 999, sticky: bool = False) -> None:
        """The `call`th call from now on fails with `result`, and where `sticky` all later ones."""
        self._library.standin_fail(call, result, int(sticky))

    def did_fail(self) -> bool:
        """Whether the call that was to fail has been made; none is to fail any more."""
        return int(self._library.standin_fail(0, 0, 0)) < 0

    def on_launch(self, act: Callable[[Ran], None] | None) -> None:
        def callback(
            name: bytes, words: Any, size: int, grid: int, threads: int, shared: int, together: int
        ) -> None:
            assert act is not None
            given = tuple(words[i] for i in range(size // 8))
            act(Ran(name.decode(), given, grid, threads, shared, bool(together)))

        self._callback = _Callback(callback) if act is not None else _Callback()
        self._library.standin_callback(self._callback)

    def free_memory(self, size: int) -> None:
        self._library.standin_memory(ctypes.c_uint64(size))

    def errors(self) -> list[str]:
        """What callers did wrong since the last time."""
        return self._lines(self._library.standin_errors())

    def calls(self) -> list[str]:
        """Names of the driver's functions that were called since the last time."""
        return self._lines(self._library.standin_calls())

    def live(self) -> Live:
        found = (ctypes.c_int64 * 6)()
        self._library.standin_live(found)
        return Live(*found)

    def _lines(self, text: int) -> list[str]:
        lines = ctypes.string_at(text).decode().splitlines()
        self._library.standin_free(ctypes.c_void_p(text))
        return lines

    # ---- what an application does with the driver itself --------------------------------------
    def do(self, function: str, *arguments: Any) -> None:
        assert getattr(self._library, function)(*arguments) == 0, function

    def make(self, function: str, *arguments: Any) -> int:
        """The handle that `function` makes."""
        made = ctypes.c_void_p()
        self.do(function, ctypes.byref(made), *arguments)
        return int(made.value or 0)

    def allocate(self, size: int) -> DeviceBuffer:
        return DeviceBuffer(self.make("cuMemAlloc_v2", ctypes.c_size_t(size)), size)

    def free(self, buffer: DeviceBuffer) -> None:
        self.do("cuMemFree_v2", ctypes.c_uint64(buffer.address))

    @contextmanager
    def context(self, device: int = 0) -> Iterator[int]:
        """A context of the caller's, current in this thread."""
        made = self.make("cuCtxCreate_v2", 0, device)
        try:
            yield made
        finally:
            self.do("cuCtxDestroy_v2", ctypes.c_void_p(made))

    @contextmanager
    def primary(self, device: int = 0) -> Iterator[int]:
        """A device's primary context, current in this thread."""
        made = self.make("cuDevicePrimaryCtxRetain", device)
        self.do("cuCtxPushCurrent_v2", ctypes.c_void_p(made))
        try:
            yield made
        finally:
            self.make("cuCtxPopCurrent_v2")
            self.do("cuDevicePrimaryCtxRelease_v2", device)

    def synchronize(self, stream: int = 0) -> None:
        self.do("cuStreamSynchronize", ctypes.c_void_p(stream))

    def capture(self, stream: int) -> None:
        self._library.standin_begin_capture(ctypes.c_void_p(stream))

    def end_capture(self, stream: int) -> int:
        return int(self._library.standin_end_capture(ctypes.c_void_p(stream)))

    def launch_graph(self, graph: int, stream: int) -> None:
        self._library.standin_launch_graph(ctypes.c_void_p(graph), ctypes.c_void_p(stream))

    def end_graph(self, graph: int) -> None:
        self._library.standin_end_graph(ctypes.c_void_p(graph))


def open_library(standin: Standin) -> CudaLibrary:
    return CudaLibrary(build.build_launch(), standin.path)
