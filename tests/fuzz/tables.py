"""The readers of launch tables, which are C++, in a process under sanitizers."""

from __future__ import annotations

import functools
import os
import struct
import subprocess
import zlib
from pathlib import Path

from stitchcore.inject import build
from stitchcore.launch.cuda_table import write
from stitchcore.loop_ir import index
from tests.launch.standin_cuda import compile_shared
from tests.launch.tables import one_kernel, whole

SOURCES = ("expression.cc", "launch.cc", "cuda/cubin.cc", "cuda/table.cc")
MOST_MIB = 256
HEADER = struct.Struct("<8sIIQQ")
"""Of a GPU's table: what it is, version, checksum of what follows, bytes, words."""


class Ended(Exception):
    """The process that reads tables ended, with what the sanitizer said."""


@functools.lru_cache
def reader(kind: str) -> subprocess.Popen[bytes]:
    """A process that reads tables of a kind: "cpu", "cuda"."""
    sources = [Path(__file__).parent / "table_driver.cc", *(build.NATIVE / one for one in SOURCES)]
    checks = ("-fsanitize=address,undefined", "-fno-sanitize-recover", f"-I{build.NATIVE}")
    program = compile_shared(sources, "table_driver", *checks, f"-I{build.NATIVE / 'cuda'}")
    bound = f"hard_rss_limit_mb={MOST_MIB}:quarantine_size_mb=16:allocator_may_return_null=0"
    pipe, environment = subprocess.PIPE, {**os.environ, "ASAN_OPTIONS": bound}
    return subprocess.Popen([program, kind], env=environment, stdin=pipe, stdout=pipe, stderr=pipe)


def read(kind: str, data: bytes) -> bool:
    """Whether a table is taken. Raises Ended, and the next one has a process of its own."""
    process = reader(kind)
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    try:
        process.stdin.write(struct.pack("<Q", len(data)) + data)
        process.stdin.flush()
        said = process.stdout.read(1)
    except BrokenPipeError:
        said = b""
    if said:
        return said == b"+"
    reader.cache_clear()
    told = process.stderr.read().decode("utf-8", "replace")
    raise Ended(f"code {process.wait()}: {told[-2000:]}")


def cpu(data: bytes) -> bool:
    return read("cpu", data)


def cuda(data: bytes) -> bool:
    """With the checksum and length that fit, or nothing would be read any further."""
    if len(data) >= HEADER.size:
        checked = struct.pack("<Q", len(data)) + data[24:]
        data = data[:12] + struct.pack("<I", zlib.crc32(checked)) + checked
    return read("cuda", data)


def cpu_seeds() -> tuple[bytes, ...]:
    """Tables of an operation with three inputs and two outputs: symbols, guards, aliases, loops."""
    b, s = index.Variable("b"), index.Variable("s")
    half = index.floor_divide(index.add(index.multiply(b, 3), 7), 2)
    shapes = [[index.postfix(one, ("b", "s")) for one in shape] for shape in ((b, s), (half,))]
    words = [1, 2, 0, 0, 1, 0, 1, 1, 4, 2, 3, 0, 0, 0, 1, 1, 2, 2]
    for position, shape in enumerate(shapes):
        words += [0, position, len(shape), *(word for one in shape for word in one)]
    words += [1, 0, 1, 1, 2, 2]
    words += [word for one in shapes[0] for word in one]
    words += index.postfix(index.maximum(half, index.modulo(s, 5)), ("b", "s"))
    words += [2, *index.postfix(4, ("b", "s")), *index.postfix(half, ("b", "s"))]
    return (bytes([3, 2]) + struct.pack(f"<{len(words)}q", *words),)


def cuda_seeds() -> tuple[bytes, ...]:
    return write(whole()), write(one_kernel())
