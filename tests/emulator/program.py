"""Kernel text compiled for the emulator by g++, cached by content outside the checkout.

The text is compiled as it is, after a header that says what CUDA's words mean here, and with g++'s
thread and alignment sanitisers, whose calls the emulator's runtime answers itself. Optimisations
that would let a load run where the text has none are off: they would look like races.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from stitchcore.toolchain.nvrtc import INCLUDE

HERE = Path(__file__).resolve().parent
NATIVE = HERE / "native"
HEADER = HERE / "include" / "emulated_cuda.h"
CACHE = Path.home() / ".cache" / "stitch-testbed" / "emulator"
KEPT_SECONDS = 14 * 24 * 3600
"""A compiled file that was not used for so long is removed."""

DYNAMIC_BYTES = 232448
"""Room for dynamic shared memory in a compiled kernel: the largest block's, sm_90's."""

RUNTIME_FLAGS = ("-std=c++17", "-O2", "-g1", "-Wall", "-Wextra", "-fPIC", "-shared")
FLAGS = (
    "-std=gnu++17", "-O1", "-g1", "-w", "-fPIC", "-x", "c++", "-c",
    "-fno-strict-aliasing", "-ffp-contract=off", "-fno-exceptions", "-fno-rtti",
    "-fno-tree-loop-im", "-fno-ssa-phiopt", "-fno-tree-phiprop",
    "-fsanitize=thread", "--param=tsan-distinguish-volatile=1",
    "--param=tsan-instrument-func-entry-exit=0",
    "-fsanitize=alignment,bounds",
)  # fmt: skip

UNCHECKED_FLAGS = (
    *(flag for flag in FLAGS if "sanitize" not in flag and "tsan" not in flag),
    "-fno-thread-jumps",
)
"""A barrier is known by where it is called: one call must not become two."""


class Look(Enum):
    """What is done at each access of memory: a folder of native/ has it where it is not judged."""

    CHECKED = ""
    UNCHECKED = "unchecked"
    TRACED = "traced"

    @property
    def flags(self) -> tuple[str, ...]:
        if self is Look.UNCHECKED:
            return UNCHECKED_FLAGS
        return FLAGS if self is Look.CHECKED else FLAGS[:-1]


_ENTRY = re.compile(
    r'extern\s+"C"\s+__global__\s+void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\('
)
_DYNAMIC = re.compile(
    r"extern\s+__shared__\s+(?:__align__\s*\(\d+\)\s+)?([\w ]+?)\s+(\w+)\s*\[\s*\]"
)


class CompileError(Exception):
    """g++ refused a kernel's text; its first errors."""


@dataclass(frozen=True)
class Program:
    """A compiled translation unit and the kernels in it."""

    library: Path
    names: tuple[str, ...]


def kernel_names(text: str) -> tuple[str, ...]:
    """The kernels of one translation unit."""
    return tuple(_ENTRY.findall(text))


def compile_text(text: str, include: Path = INCLUDE, look: Look = Look.CHECKED) -> Program:
    """The kernels of one translation unit, as emit.cuda renders it; headers are in `include`.

    UNCHECKED runs a hundred times as fast. Raises CompileError, and FileNotFoundError where there
    is no g++.
    """
    flags = look.flags
    names = kernel_names(text)
    whole = f'#line 1 "kernels.cu"\n{text}\n#line 1 "entries"\n{_entries(text, names)}'
    headers = "".join(path.read_text() for path in (HEADER, *sorted(include.glob("stitch_c*.h"))))
    library = _cached("kernels", (whole, headers, *flags, _runtime(look).name))
    if not library.exists():
        with tempfile.TemporaryDirectory(prefix="emulator-", dir=CACHE) as folder:
            source, compiled = Path(folder) / "kernels.cu", Path(folder) / "kernels.o"
            source.write_text(whole)
            _run(*flags, f"-I{include}", "-include", HEADER, source, "-o", compiled)
            made = Path(folder) / "kernels.so"
            runtime = ("-L", CACHE, f"-l:{_runtime(look).name}", f"-Wl,-rpath,{CACHE}")
            _run("-shared", compiled, "-o", made, *runtime)
            made.replace(library)
    os.utime(library)
    return Program(library, names)


def _entries(text: str, names: tuple[str, ...]) -> str:
    """What the runtime calls: each kernel by the addresses of its arguments, and where dynamic
    shared memory lies. Those that declare it do so alike, as in CUDA."""
    declared = sorted(set(_DYNAMIC.findall(text)))
    lines = [
        f"alignas(16) thread_local {kind} {name}[{DYNAMIC_BYTES} / sizeof({kind})];"
        for kind, name in declared[:1]
    ]
    assert len({name for _, name in declared}) <= 1, "kernels name dynamic shared memory alike"
    address = f"(char *){declared[0][1]}" if declared else "nullptr"
    unseen = '__attribute__((no_sanitize("thread", "alignment", "bounds")))'
    lines += [
        "static thread_local volatile char emulated_touched;",  # makes thread-local memory be there
        f'extern "C" {unseen} char *emulated_dynamic()'
        f" {{ emulated_touched = 1; return {address}; }}",
    ]
    lines += [
        f'extern "C" {unseen} void emulated_entry_{name}(void *const *given)'
        f" {{ emulated_call(&{name}, given); }}"
        for name in names
    ]
    return "\n".join(lines) + "\n"


@functools.cache
def _runtime(look: Look) -> Path:
    """The emulator's own library, which compiled kernels are linked with."""
    CACHE.mkdir(parents=True, exist_ok=True)
    _forget_old()
    sources = sorted((*NATIVE.glob("*.cc"), *NATIVE.glob("*.h")))
    if look is not Look.CHECKED:
        memory = NATIVE / "memory.cc"
        other = NATIVE / look.value / "memory.cc"
        sources = [other if path == memory else path for path in sources]
    library = _cached("runtime", (*RUNTIME_FLAGS, *(path.read_text() for path in sources)))
    if not library.exists():
        with tempfile.TemporaryDirectory(prefix="emulator-", dir=CACHE) as folder:
            made = Path(folder) / "runtime.so"
            units = [path for path in sources if path.suffix == ".cc"]
            _run(*RUNTIME_FLAGS, f"-Wl,-soname,{library.name}", *units, "-o", made)
            made.replace(library)
    os.utime(library)
    return library


def _cached(stem: str, parts: tuple[str, ...]) -> Path:
    key = hashlib.sha256("\0".join((_compiler()[1], *parts)).encode()).hexdigest()[:32]
    return CACHE / f"{stem}-{key}.so"


@functools.cache
def _compiler() -> tuple[str, str]:
    """g++ and the version it prints."""
    found = shutil.which("g++")
    if found is None:
        raise FileNotFoundError("no C++ compiler: apt-get install g++")
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=True)
    return found, said.stdout.splitlines()[0]


def _run(*arguments: str | Path) -> None:
    done = subprocess.run([_compiler()[0], *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "error" in line][:5]
        raise CompileError("; ".join(errors) or done.stderr[-500:])


def _forget_old() -> None:
    for path in CACHE.glob("*.so"):
        if time.time() - path.stat().st_mtime > KEPT_SECONDS:
            path.unlink(missing_ok=True)
