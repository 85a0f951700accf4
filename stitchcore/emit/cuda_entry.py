"""A CUDA kernel's entry: its parameter, its phases, and which blocks begin where.

The one parameter is passed by value, 8-byte words in constant memory:

    extern "C" __global__ void NAME(const __grid_constant__ st_words<N> w)

addresses of inputs and outputs, symbols, and the addresses of scratch, of the barrier's word and of
failed checks (docs/contracts.md 2). Where there are more than MOST_WORDS the parameter is their
address. Addresses are multiples of 16. The barrier's word is zero before its first launch and may
be used by launch after launch on one stream. `failed[2e]` and `failed[2e + 1]`, before it the
largest and the smallest int64, become the range of what check e reports; it failed where the first
is at most the second. A kernel of several phases needs a cooperative launch of at most one wave.
"""

from __future__ import annotations

from collections.abc import Iterator

from stitchcore.emit.render import argument, index_text, outside_buffers, size_of
from stitchcore.hlo.shape import DTYPES
from stitchcore.kernel.nodes import Allocate, Buffer, Kernel, Phase, Role, Scope, Section
from stitchcore.kernel.walk import statements
from stitchcore.schedule.barrier import needs_barrier_before

THREADS = 256
"""Threads of a block, where nothing else is asked for: a multiple of 32, at most 1024."""

MOST_WORDS = 512
"""What a parameter has room for: 4096 bytes."""

_ALIGNMENT = 16
_POINTERS = {"scratch": "char", "arrived": "unsigned", "failed": "long long"}


def words(kernel: Kernel) -> int:
    """How many words the kernel is given."""
    outside = len(kernel.with_role(Role.INPUT)) + len(kernel.with_role(Role.OUTPUT))
    return outside + len(kernel.symbols) + len(_POINTERS)


def shared_bytes(kernel: Kernel, threads: int = THREADS) -> int:
    """Dynamic shared memory that a block of `kernel` needs: its largest section's."""
    sections = (section for phase in kernel.phases for section in phase.sections)
    return max((local_bytes(one) * _groups(one, threads) for one in sections), default=0)


def local_bytes(section: Section) -> int:
    """LOCAL buffers of one task."""
    found = (s.buffer for s in statements(section.body) if isinstance(s, Allocate))
    return sum(map(bytes_of, found))


def bytes_of(buffer: Buffer) -> int:
    """Of a LOCAL buffer, with what aligns the next."""
    count = size_of(buffer)
    assert isinstance(count, int), f"LOCAL buffer {buffer.name} must be static"
    return -(-count * DTYPES[buffer.dtype].bytes // _ALIGNMENT) * _ALIGNMENT


def _groups(section: Section, threads: int) -> int:
    """Tasks that a block runs side by side."""
    return threads // 32 if section.scope is Scope.WARP else 1


def entry(kernel: Kernel, threads: int) -> list[str]:
    """The `__global__` function, which calls one function per section: NAME_phase_section."""
    count = words(kernel)
    by_value = count <= MOST_WORDS
    given = f"const __grid_constant__ st_words<{count}> w" if by_value else "const uint64_t *words"
    head = f'extern "C" __global__ void __launch_bounds__({threads}) {kernel.name}({given}) {{'
    lines = ["const uint64_t *const words = w.at;"] if by_value else []
    lines.append("extern __shared__ __align__(16) char shared[];")
    lines.append("void *const *const buffers = (void *const *)words;")
    for position, symbol in enumerate(kernel.symbols, count - len(_POINTERS) - len(kernel.symbols)):
        lines.append(f"const long {symbol} = (long)words[{position}];")
    for position, (name, kind) in enumerate(_POINTERS.items(), count - len(_POINTERS)):
        lines.append(f"{kind} *const {name} = ({kind} *)words[{position}];")
    for number, phase in enumerate(kernel.phases):
        if number > 0:
            lines.append("st_grid_barrier(arrived);")
        lines += ["{", *(f"  {line}" for line in _phase(kernel, number, phase, threads)), "}"]
    return [head, *(f"  {line}" for line in lines), "}"]


def _phase(kernel: Kernel, number: int, phase: Phase, threads: int) -> Iterator[str]:
    """Blocks take over where the section before left off, so that small sections spread."""
    yield "long first = 0;"
    shared = False
    for position, section in enumerate(phase.sections):
        if shared and needs_barrier_before(section):
            yield "__syncthreads();"  # a section before used the same shared memory
        shared |= local_bytes(section) > 0
        used, _ = outside_buffers(kernel, section)
        begin, blocks, groups = "block", "tasks", _groups(section, threads)
        if section.scope is Scope.WARP:
            begin = f"block * {groups} + threadIdx.x / 32"
            blocks = f"(tasks + {groups - 1}) / {groups}"
        given = [*(argument(kernel, buffer) for buffer in used), *kernel.symbols]
        given += ["shared", "failed", begin, "tasks"]
        yield "{"
        yield f"  const long tasks = {index_text(section.tasks)};"
        yield "  const long block = (blockIdx.x + gridDim.x - first % gridDim.x) % gridDim.x;"
        yield f"  {kernel.name}_{number}_{position}({', '.join(given)});"
        yield f"  first += {blocks};"
        yield "}"
