"""A CUDA kernel's entry: what it reads of its parameter, its phases, which blocks begin where.

The parameter is 8-byte words passed by value (cuda_words.py; docs/contracts.md 2 and 12), or their
address where they are too many. Addresses are multiples of 16. The barrier's word is zero before
its first launch and may be used by launch after launch on one stream. `checks[2e]` and
`checks[2e + 1]`, before it the largest and the smallest int64, become the range of what check e
reports; it failed where the first is at most the second. A kernel of several phases needs a
cooperative launch of at most one wave.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stitchcore.emit.cuda_words import PARAMETER_WORDS, WordKind, words
from stitchcore.emit.render import argument, index_text, outside_buffers, size_of
from stitchcore.hlo.shape import DTYPES
from stitchcore.kernel import index
from stitchcore.kernel.nodes import Allocate, Buffer, Kernel, Phase, Scope, Section
from stitchcore.kernel.walk import statements
from stitchcore.kernel.width import fits_int
from stitchcore.schedule.barrier import needs_barrier_before

THREADS = 256
"""Threads of a block, where nothing else is asked for: a multiple of 32, at most 1024."""

_ALIGNMENT = 16
_KEPT: Mapping[WordKind, tuple[str, str]] = {
    WordKind.SCRATCH: ("char", "scratch"),
    WordKind.BARRIER: ("unsigned", "st_arrived"),
    WordKind.CHECKS: ("long long", "st_checks"),
}
"""What words that are the kernel's own point to, and their names."""


def shared_bytes(kernel: Kernel, threads: int = THREADS) -> int:
    """Dynamic shared memory that a block of `kernel` needs: its largest section's."""
    sections = (section for phase in kernel.phases for section in phase.sections)
    return max((local_bytes(one) * _groups(one, threads) for one in sections), default=0)


def local_bytes(section: Section) -> int:
    """Shared memory of one task."""
    found = (s.buffer for s in statements(section.body) if isinstance(s, Allocate))
    return sum(bytes_of(buffer) for buffer in found if buffer.scope is not Scope.LANE)


def bytes_of(buffer: Buffer) -> int:
    """Of a LOCAL buffer, with what aligns the next."""
    count = size_of(buffer)
    assert isinstance(count, int), f"LOCAL buffer {buffer.name} must be static"
    return -(-count * DTYPES[buffer.dtype].bytes // _ALIGNMENT) * _ALIGNMENT


def _groups(section: Section, threads: int) -> int:
    """Tasks that a block runs side by side."""
    return threads // 32 if section.scope is Scope.WARP else 1


def entry(kernel: Kernel, threads: int, blocks: int) -> list[str]:
    """The `__global__` function, which calls one function per section: NAME_phase_section. It
    leaves room for `blocks` blocks of `threads` threads on a multiprocessor."""
    given = words(kernel)
    by_value = len(given) <= PARAMETER_WORDS
    kind = f"const __grid_constant__ st_words<{len(given)}> st_given"
    parameter = kind if by_value else "const uint64_t *st_words_at"
    bounds = f"__launch_bounds__({threads}, {blocks})"
    head = f'extern "C" __global__ void {bounds} {kernel.name}({parameter}) {{'
    lines = ["const uint64_t *const st_words_at = st_given.at;"] if by_value else []
    lines.append("extern __shared__ __align__(16) char st_shared[];")
    lines.append("void *const *const buffers = (void *const *)st_words_at;")
    for position, word in enumerate(given):
        if word.kind is WordKind.SYMBOL:
            lines.append(f"const long {word.name} = (long)st_words_at[{position}];")
        elif word.kind in _KEPT:
            pointed, name = _KEPT[word.kind]
            lines.append(f"{pointed} *const {name} = ({pointed} *)st_words_at[{position}];")
    for number, phase in enumerate(kernel.phases):
        if number > 0:
            lines.append("st_grid_barrier(st_arrived);")
        lines += ["{", *(f"  {line}" for line in _phase(kernel, number, phase, threads)), "}"]
    return [head, *(f"  {line}" for line in lines), "}"]


def _phase(kernel: Kernel, number: int, phase: Phase, threads: int) -> Iterator[str]:
    """Blocks take over where the section before left off, so that small sections spread."""
    integer = index_type(kernel)
    yield f"{integer} st_block = blockIdx.x;"
    shared = False
    for position, section in enumerate(phase.sections):
        if shared and needs_barrier_before(section):
            yield "__syncthreads();"  # a section before used the same shared memory
        shared |= local_bytes(section) > 0
        used, _ = outside_buffers(kernel, section)
        begin, tasks, groups = "st_block", index_text(section.tasks), _groups(section, threads)
        if section.scope is Scope.WARP:
            begin = f"st_block * {groups} + threadIdx.x / 32"
        given = [*(argument(kernel, buffer) for buffer in used), *kernel.symbols]
        given += [*["st_checks"] * bool(kernel.errors), "st_shared", begin, tasks]
        yield f"{kernel.name}_{number}_{position}({', '.join(given)});"
        if position + 1 < len(phase.sections):
            taken = index_text(index.ceil_divide(section.tasks, groups), 2)
            yield f"st_block = st_next_block(st_block, {taken});"


def index_type(kernel: Kernel) -> str:
    """C type of the kernel's indices."""
    return "int" if fits_int(kernel) else "long"
