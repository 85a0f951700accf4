"""A CUDA kernel's entry: what it reads of its parameter, its phases, which blocks begin where.

The parameter is 8-byte words passed by value (launch/cuda_parameters.py; docs/contracts.md 2 and
12), or their address where they are too many. Addresses are multiples of 16. The barrier's word is
zero before its first launch and may be used by launch after launch on one stream. `checks[2e]` and
`checks[2e + 1]`, before it the largest and the smallest int64, become the range of what check e
reports; it failed where the first is at most the second. A kernel of several phases needs a
cooperative launch of at most one wave.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from stitchcore.codegen.cuda_shared_functions import Function
from stitchcore.codegen.source import argument, index_text, place, pointer
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.launch.cuda_parameters import PARAMETER_WORDS, WordKind, words
from stitchcore.loop_ir import index
from stitchcore.loop_ir.index_width import LARGEST, fits_int
from stitchcore.loop_ir.layout import size_of
from stitchcore.loop_ir.nodes import Allocate, Buffer, Kernel, Scope, Section
from stitchcore.loop_ir.visitor import statements
from stitchcore.schedule.barriers import needs_barrier_before

_ALIGNMENT = 16
_CONSTANT_WORDS = 4096
"""Words of a kernel's tables that lie in constant memory, of which a program has 64 KiB."""

_KEPT: Mapping[WordKind, tuple[str, str]] = {
    WordKind.SCRATCH: ("char", "scratch"),
    WordKind.BARRIER: ("unsigned", "st_arrived"),
    WordKind.CHECKS: ("long long", "st_checks"),
}
"""What words that are the kernel's own point to, and their names."""


def shared_bytes(kernel: Kernel) -> int:
    """Dynamic shared memory that a block of `kernel` needs: its largest section's."""
    sections = (section for phase in kernel.phases for section in phase.sections)
    each = (local_bytes(one) * one.side_by_side(kernel.threads) for one in sections)
    return max(each, default=0)


def local_bytes(section: Section) -> int:
    """Shared memory of one task."""
    buffers = (s.buffer for s in statements(section.body) if isinstance(s, Allocate))
    return sum(bytes_of(buffer) for buffer in buffers if buffer.scope is not Scope.LANE)


def bytes_of(buffer: Buffer) -> int:
    """Of a LOCAL buffer, with what aligns the next."""
    count = size_of(buffer)
    assert isinstance(count, int), f"LOCAL buffer {buffer.name} must be static"
    return -(-count * DTYPES[buffer.dtype].bytes // _ALIGNMENT) * _ALIGNMENT


def entry(
    kernel: Kernel, phases: Sequence[Sequence[Function]], integer: str, blocks: int
) -> list[str]:
    """The `__global__` function, which calls the functions of each phase, and before it tables of
    sections that share one. Indices are of type `integer` (index_type). It leaves room for `blocks`
    blocks on a multiprocessor."""
    threads = kernel.threads
    parameter_words = words(kernel)
    by_value = len(parameter_words) <= PARAMETER_WORDS
    kind = f"const __grid_constant__ st_words<{len(parameter_words)}> st_given"
    parameter = kind if by_value else "const uint64_t *st_words_at"
    bounds = f"__launch_bounds__({threads}, {blocks})"
    head = f'extern "C" __global__ void {bounds} {kernel.name}({parameter}) {{'
    lines = ["const uint64_t *const st_words_at = st_given.at;"] if by_value else []
    lines.append("extern __shared__ __align__(16) char st_shared[];")
    lines.append("void *const *const buffers = (void *const *)st_words_at;")
    for position, word in enumerate(parameter_words):
        if word.kind is WordKind.SYMBOL:
            lines.append(f"const long {word.name} = (long)st_words_at[{position}];")
        elif word.kind in _KEPT:
            pointed, name = _KEPT[word.kind]
            lines.append(f"{pointed} *const {name} = ({pointed} *)st_words_at[{position}];")
    for number, phase in enumerate(phases):
        if number > 0:
            lines.append("st_grid_barrier(st_arrived);")
        lines += ["{", *(f"  {line}" for line in _phase(kernel, phase, integer, threads)), "}"]
    return [*_tables(kernel, phases, integer, threads), head, *(f"  {line}" for line in lines), "}"]


def _phase(kernel: Kernel, phase: Sequence[Function], integer: str, threads: int) -> Iterator[str]:
    """Blocks take over where the sections before left off, so that small ones spread."""
    yield f"{integer} st_block = blockIdx.x;"
    shared = False
    for position, function in enumerate(phase):
        section = function.sections[0]
        if shared and needs_barrier_before(section) and not _meet_each(function):
            yield "__syncthreads();"  # a section before used the same shared memory
        shared |= local_bytes(section) > 0
        if len(function.sections) == 1:
            taken = index.ceil_divide(section.tasks, section.side_by_side(threads))
            yield from _call(kernel, function, threads)
        else:
            taken = sum(_blocks(member, threads) for member in function.sections)
            yield from _calls(kernel, function, taken, integer, threads)
        if position + 1 < len(phase):
            yield f"st_block = st_next_block(st_block, {index_text(taken, 2)});"


def _call(kernel: Kernel, function: Function, threads: int) -> Iterator[str]:
    """All tasks of the one section of a function."""
    [section] = function.sections
    buffers = [argument(kernel, buffer) for buffer in function.used[0]]
    yield _called(kernel, function, buffers, _first(section, threads), index_text(section.tasks))


def _calls(
    kernel: Kernel, function: Function, blocks: int, integer: str, threads: int
) -> Iterator[str]:
    """Tasks of all sections of a function, a row of its table each, one after the other.

    Row: number of the first task, of tasks; places of buffers; constants.
    """
    section = function.sections[0]
    groups = section.side_by_side(threads)
    used = function.used[0]
    columns = 2 + len(used) + len(function.constants[0])
    row = [f"st_row[{number}]" for number in range(columns)]
    arguments = [pointer(buffer, row[2 + number]) for number, buffer in enumerate(used)]
    arguments += row[2 + len(used) :]
    step = "gridDim.x" + (f" * {groups}" if groups > 1 else "")
    head = f"{integer} st_task = {_first(section, threads)}; st_task < {blocks * groups}"
    yield f"for ({head}; st_task += {step}) {{"
    find = f"st_find<{len(function.sections)}, {columns}>({_table_name(function)}, st_task)"
    yield f"  const {_table_type(kernel, integer)} *const st_row = {find};"
    yield f"  const {integer} st_at = st_task - {row[0]};"
    if _meet_each(function):
        yield "  __syncthreads();"  # a task before, of another section, used the same memory
    yield "  " + _called(kernel, function, arguments, "st_at", f"st_min(st_at + 1, {row[1]})")
    yield "}"


def _meet_each(function: Function) -> bool:
    """Whether a block meets before every task of a table. Tasks of one section keep apart by
    themselves, but a section of one task has no barrier for that."""
    several = len(function.sections) > 1 and any(
        section.tasks == 1 for section in function.sections
    )
    return several and needs_barrier_before(function.sections[0])


def _called(kernel: Kernel, function: Function, own: Sequence[str], begin: str, end: str) -> str:
    checks = ["st_checks"] * bool(kernel.errors)
    arguments = [*own, *kernel.symbols, *checks, "st_shared", begin, end]
    return f"{function.name}({', '.join(arguments)});"


def _first(section: Section, threads: int) -> str:
    """The first task of a block, or of a warp of it."""
    if section.scope is Scope.WARP:
        return f"st_block * {section.side_by_side(threads)} + threadIdx.x / 32"
    return "st_block"


def _blocks(section: Section, threads: int) -> int:
    """Blocks that a section's tasks are for."""
    assert isinstance(section.tasks, int), "sections of a table have a fixed number of tasks"
    return -(-section.tasks // section.side_by_side(threads))


def _tables(
    kernel: Kernel, phases: Sequence[Sequence[Function]], integer: str, threads: int
) -> Iterator[str]:
    """A table for each function of several sections."""
    shared = [function for phase in phases for function in phase if len(function.sections) > 1]
    rows = {function.name: list(_rows(kernel, function, threads)) for function in shared}
    words = sum(len(row) for table in rows.values() for row in table)
    space = "__constant__" if words <= _CONSTANT_WORDS else "__device__"
    for function in shared:
        values = [str(value) for row in rows[function.name] for value in row]
        name = f"{_table_name(function)}[{len(values)}]"
        head = f"static {space} const {_table_type(kernel, integer)} {name}"
        yield f"{head} = {{{', '.join(values)}}};"


def _rows(kernel: Kernel, function: Function, threads: int) -> Iterator[list[int]]:
    first = 0
    members = zip(function.sections, function.used, function.constants, strict=True)
    for section, used, constants in members:
        places = [place(kernel, buffer) for buffer in used]
        row = [first, section.tasks, *places, *constants]
        yield [value for value in row if isinstance(value, int)]
        first += _blocks(section, threads) * section.side_by_side(threads)


def _table_name(function: Function) -> str:
    return f"{function.name}_table"


def _table_type(kernel: Kernel, integer: str) -> str:
    """C type of a table's words: offsets in scratch may need more than indices do."""
    scratch = kernel.scratch_bytes
    small = isinstance(scratch, int) and scratch <= LARGEST
    return integer if small else "long"


def index_type(kernel: Kernel) -> str:
    """C type of the kernel's indices."""
    return "int" if fits_int(kernel) else "long"
