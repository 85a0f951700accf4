"""CUDA C++ to a cubin by NVRTC, with no GPU and no driver: resources come from the compiler's log.

NVRTC is the `nvidia-cuda-nvrtc-cu12` wheel, called through ctypes. About 20 kernels a program are
quickest; calls are not made in parallel because NVRTC serialises them.
"""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from stitchcore.errors import Reason, Refused
from stitchcore.toolchain import cuda_wheels

INCLUDE = Path(__file__).resolve().parent.parent / "codegen" / "include"
BATCH = 20
HEADERS = ("stitch_cuda.h", "stitch_common.h")
"""Of INCLUDE: what a program may include."""

INSTALL = "NVRTC is not installed: pip install nvidia-cuda-nvrtc-cu12"


@dataclass(frozen=True)
class Resources:
    """What ptxas reports of a kernel: registers a thread, bytes of spills, stack, shared memory.

    Shared memory is the static part; emit.cuda.shared_bytes gives the dynamic part of a launch.
    """

    name: str
    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int


@dataclass(frozen=True)
class CompiledProgram:
    """A cubin for `target` (PTX where `is_ptx`), the resources of its kernels, NVRTC's version, and
    the seconds of processor time it took."""

    data: bytes
    target: str
    version: str
    resources: tuple[Resources, ...]
    seconds: float = field(default=0.0, compare=False)


def compile_cuda(source: str, target: str = "sm_90") -> CompiledProgram:
    """Compile one translation unit as emit.cuda renders it, FMA contraction off.

    Raises Refused(NO_COMPILER) without NVRTC, Refused(COMPILE_FAILED) with its first errors.
    """
    began = time.thread_time()
    library = _library()
    program = ctypes.c_void_p()
    names = (ctypes.c_char_p * len(HEADERS))(*(name.encode() for name in HEADERS))
    texts = (ctypes.c_char_p * len(HEADERS))(*((INCLUDE / name).read_bytes() for name in HEADERS))
    created = library.nvrtcCreateProgram(
        ctypes.byref(program), source.encode(), b"kernels.cu", len(HEADERS), texts, names
    )
    _require(created == 0, "nvrtcCreateProgram", created)
    try:
        chosen = options(target)
        arguments = (ctypes.c_char_p * len(chosen))(*(option.encode() for option in chosen))
        status = library.nvrtcCompileProgram(program, len(chosen), arguments)
        log = _text(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program).decode()
        if status != 0:
            errors = [line for line in log.splitlines() if "error" in line][:5]
            detail = "; ".join(errors) or log[-500:]
            raise Refused("nvrtc", Reason.COMPILE_FAILED, detail)
        if is_ptx(target):
            data = _text(library.nvrtcGetPTXSize, library.nvrtcGetPTX, program)
        else:
            data = _text(library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN, program)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))
    seconds = time.thread_time() - began
    return CompiledProgram(data, target, nvrtc_version(), read_resources(log), seconds)


def nvrtc_version() -> str:
    """ "major.minor" of NVRTC. Raises Refused(NO_COMPILER) when it is not installed."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def read_resources(log: str) -> tuple[Resources, ...]:
    """The kernels of a ptxas -v log, in its order."""
    resources: list[Resources] = []
    name, stack, spills = "", 0, 0
    for line in log.splitlines():
        if (entry := re.search(r"Compiling entry function '(\w+)'", line)) is not None:
            name, stack, spills = entry[1], 0, 0
        elif frame := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores", line):
            stack, spills = int(frame[1]), int(frame[2])
        elif name and (used := re.search(r"Used (\d+) registers", line)) is not None:
            shared = re.search(r"(\d+)(?:\+\d+)? bytes smem", line)
            resources.append(
                Resources(name, int(used[1]), spills, stack, int(shared[1]) if shared else 0)
            )
            name = ""
    return tuple(resources)


def options(target: str) -> tuple[str, ...]:
    """What NVRTC is told for `target`: no fast-math, no contraction (docs/decisions.md 12)."""
    chosen = [f"--gpu-architecture={compiled_for(target)}", "--fmad=false", "--ptxas-options=-v"]
    chosen += ["--std=c++17", "--prec-div=true", "--prec-sqrt=true", "--ftz=true"]
    return tuple(chosen)


def architectures() -> tuple[str, ...]:
    """What this NVRTC compiles for, as sm_NN. Raises Refused(NO_COMPILER) without it."""
    library, count = _library(), ctypes.c_int()
    _require(library.nvrtcGetNumSupportedArchs(ctypes.byref(count)) == 0, "architectures", 0)
    numbers = (ctypes.c_int * count.value)()
    _require(library.nvrtcGetSupportedArchs(numbers) == 0, "architectures", 0)
    return tuple(f"sm_{number}" for number in numbers)


def compiled_for(target: str) -> str:
    """What NVRTC compiles for where code for `target` is wanted: that, or the newest architecture
    that is older. Raises Refused: WRONG_TARGET where there is none."""
    number = target.removeprefix("sm_")
    most = int(number) if number != target and number.isdecimal() else 0
    known = {int(name[3:]): name for name in architectures()}
    if not (older := [one for one in known if one <= most]):
        detail = f"NVRTC {nvrtc_version()} here compiles for {', '.join(known.values())}"
        raise Refused(target, Reason.WRONG_TARGET, detail)
    return known[max(older)]


def is_ptx(target: str) -> bool:
    """Whether code for `target` is PTX, which its driver compiles: this NVRTC knows no architecture
    of its major number."""
    return compiled_for(target)[:-1] != target[:-1]


def _text(size: Callable[..., int], read: Callable[..., int], program: ctypes.c_void_p) -> bytes:
    length = ctypes.c_size_t()
    _require(size(program, ctypes.byref(length)) == 0, "size of a result", 0)
    buffer = ctypes.create_string_buffer(length.value)
    _require(read(program, buffer) == 0, "a result", 0)
    return buffer.raw


def _require(holds: bool, what: str, status: int) -> None:
    if not holds:
        raise Refused("nvrtc", Reason.COMPILE_FAILED, f"{what} failed ({status})")


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    for folder in cuda_wheels.folders("cuda_nvrtc"):
        for path in sorted(folder.glob("libnvrtc-builtins.so*")):
            ctypes.CDLL(str(path))  # NVRTC 13 opens it by its bare name, and looks nowhere near
        for path in sorted(folder.glob("libnvrtc.so*")):
            library = ctypes.CDLL(str(path))
            library.nvrtcCreateProgram.argtypes = _CREATE
            for function in ("CompileProgram", "GetProgramLog", "GetCUBIN"):
                getattr(library, f"nvrtc{function}").restype = ctypes.c_int
            return library
    raise Refused("nvrtc", Reason.NO_COMPILER, INSTALL)


_CREATE: Sequence[type] = (
    ctypes.c_void_p,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_void_p,
)
