"""Kernels as CUDA C++, plainly mapped: a task is a block's, a lane loop is dealt to its threads.

One `__global__` per kernel, phases separated by a grid barrier (AStitch's global scheme), so a
kernel of several phases needs a cooperative launch of at most one wave:

    extern "C" __global__ void NAME(void *const *buffers, const int64_t *symbols, char *scratch,
                                    unsigned *arrived, long long *failed)

`buffers` and `symbols` as on the CPU (docs/contracts.md 2), in device memory. `arrived` points to a
zero before each launch. `failed[2e]` and `failed[2e + 1]`, before it the largest and the smallest
int64, become the range of what check e reports; it failed where the first is at most the second.
Blocks have THREADS threads and `shared_bytes(kernel)` bytes of dynamic shared memory; tasks are
dealt to blocks by grid stride.
"""

from __future__ import annotations

from collections.abc import Sequence

from stitchcore.emit.render import (
    MEMORY_TYPES,
    Renderer,
    argument,
    index_text,
    outside_buffers,
    provenance_comment,
    register_type,
    size_of,
    working,
)
from stitchcore.hlo.shape import DTYPES
from stitchcore.kernel.nodes import (
    Allocate,
    Apply,
    Barrier,
    Buffer,
    Check,
    Combine,
    Kernel,
    Loop,
    Scalar,
    Section,
    Store,
)
from stitchcore.kernel.walk import statements
from stitchcore.schedule.barrier import needs_barrier_before

THREADS = 256
"""Threads of a block; a multiple of 32, at most 1024."""

_ALIGNMENT = 16


def render(kernels: Sequence[Kernel]) -> str:
    """One translation unit for NVRTC. Kernel names must differ."""
    renderer = _Cuda()
    for kernel in kernels:
        renderer.kernel(kernel)
    pairs = sorted(
        {
            (statement.reducer, statement.scalar.dtype)
            for kernel in kernels
            for phase in kernel.phases
            for section in phase.sections
            for statement in statements(section.body)
            if isinstance(statement, Combine)
        }
    )
    head = ['#include "stitch_cuda.h"', ""]
    for reducer, dtype in pairs:
        head += _combine(reducer, dtype)
    return "\n".join(head + renderer.lines) + "\n"


def shared_bytes(kernel: Kernel) -> int:
    """Dynamic shared memory that a block of `kernel` needs: its largest section's."""
    totals = [0]
    for phase in kernel.phases:
        for section in phase.sections:
            totals.append(sum(_bytes(buffer) for buffer in _locals(section)))
    return max(totals)


def _locals(section: Section) -> list[Buffer]:
    return [s.buffer for s in statements(section.body) if isinstance(s, Allocate)]


def _bytes(buffer: Buffer) -> int:
    count = size_of(buffer)
    assert isinstance(count, int), f"LOCAL buffer {buffer.name} must be static"
    return -(-count * DTYPES[buffer.dtype].bytes // _ALIGNMENT) * _ALIGNMENT


def _combine_name(reducer: str, dtype: str) -> str:
    return f"st_combine_{reducer.replace('-', '_')}_{dtype}"


def _combine(reducer: str, dtype: str) -> list[str]:
    """A block's reduction: shuffles in each warp, then the warps' parts in order."""
    renderer, kind = _Cuda(), register_type(dtype)
    value, other = Scalar("value", dtype), Scalar("other", dtype)
    update = f"value = {renderer.apply(Apply(reducer, (value, other), dtype))};"
    return [
        f"ST_INLINE {kind} {_combine_name(reducer, dtype)}({kind} value) {{",
        f"  __shared__ {kind} part[32];",
        "  for (int mask = 16; mask > 0; mask >>= 1) {",
        f"    const {kind} other = st_shuffle_{working(dtype)}(value, mask);",
        f"    {update}",
        "  }",
        "  __syncthreads();",
        "  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = value;",
        "  __syncthreads();",
        "  value = part[0];",
        "  for (int warp = 1; warp < (int)blockDim.x / 32; warp++) {",
        f"    const {kind} other = part[warp];",
        f"    {update}",
        "  }",
        "  return value;",
        "}",
        "",
    ]


class _Cuda(Renderer):
    cuda = True

    def __init__(self) -> None:
        super().__init__()
        self.shared_offset = 0

    # ---- functions -----------------------------------------------------------------------------
    def kernel(self, kernel: Kernel) -> None:
        self.emit("")
        self.emit(provenance_comment(kernel))
        for p, phase in enumerate(kernel.phases):
            for s, section in enumerate(phase.sections):
                self.section(kernel, section, f"{kernel.name}_{p}_{s}")
        self.entry(kernel)

    def section(self, kernel: Kernel, section: Section, name: str) -> None:
        used, stored = outside_buffers(kernel, section)
        arguments = [
            f"{'' if b in stored else 'const '}{MEMORY_TYPES[b.dtype]} *{b.name}" for b in used
        ]
        arguments += [f"long {symbol}" for symbol in kernel.symbols]
        arguments += ["char *shared", "long long *failed", "long first_task", "long tasks"]
        self.open(f"ST_INLINE void {name}({', '.join(arguments)})")
        self.shared_offset = 0
        variable = section.variable
        head = f"for (long {variable} = first_task; {variable} < tasks; {variable} += gridDim.x)"
        self.ranges = {}
        self.bound(section.variable, 0, section.tasks)
        self.open(head)
        self.body(section.body)
        self.close()
        self.close()

    def entry(self, kernel: Kernel) -> None:
        self.open(
            f'extern "C" __global__ void __launch_bounds__({THREADS}) {kernel.name}('
            "void *const *buffers, const int64_t *symbols, char *scratch, unsigned *arrived,"
            " long long *failed)"
        )
        self.emit("extern __shared__ __align__(16) char shared[];")
        for position, symbol in enumerate(kernel.symbols):
            self.emit(f"const long {symbol} = symbols[{position}];")
        for p, phase in enumerate(kernel.phases):
            if p > 0:
                self.emit("st_grid_barrier(arrived);")
            self.open("")
            self.emit("long first = 0;")
            shared = False
            for s, section in enumerate(phase.sections):
                if shared and needs_barrier_before(section):
                    self.emit("__syncthreads();")  # a section before used the same shared memory
                shared |= bool(_locals(section))
                self.call(kernel, section, f"{kernel.name}_{p}_{s}")
            self.close()
        self.close()

    def call(self, kernel: Kernel, section: Section, name: str) -> None:
        """Blocks take over where the section before left off, so that small sections spread."""
        used, _ = outside_buffers(kernel, section)
        arguments = [argument(kernel, buffer) for buffer in used] + list(kernel.symbols)
        self.open("")
        self.emit(f"const long tasks = {index_text(section.tasks)};")
        self.emit("const long begin = (blockIdx.x + gridDim.x - first % gridDim.x) % gridDim.x;")
        self.emit(f"{name}({', '.join([*arguments, 'shared', 'failed', 'begin', 'tasks'])});")
        self.emit("first += tasks;")
        self.close()

    # ---- statements ----------------------------------------------------------------------------
    def lane_loop(self, loop: Loop) -> None:
        begin, end = index_text(loop.begin, 1), index_text(loop.end)
        variable = loop.variable
        self.open(self.loop_head(variable, f"{begin} + threadIdx.x", end, "blockDim.x"))
        self.bound(variable, loop.begin, loop.end)
        self.in_lanes = True
        self.body(loop.body)
        self.in_lanes = False
        self.close()

    def store(self, statement: Store) -> None:
        if self.in_lanes:
            super().store(statement)
            return
        self.open("if (threadIdx.x == 0)")
        super().store(statement)
        self.close()

    def combine(self, statement: Combine) -> None:
        name = self.scalar(statement.scalar)
        function = _combine_name(statement.reducer, statement.scalar.dtype)
        self.emit(f"{name} = {function}({name});")

    def barrier(self, statement: Barrier) -> None:
        self.emit("__syncthreads();")

    def allocate(self, buffer: Buffer) -> None:
        kind = MEMORY_TYPES[buffer.dtype]
        self.emit(f"{kind} *const {buffer.name} = ({kind} *)(shared + {self.shared_offset});")
        self.shared_offset += _bytes(buffer)

    def check(self, statement: Check) -> None:
        condition, reported = map(self.expression, (statement.condition, statement.reported))
        self.open(f"if (!({condition}))")
        self.emit(f"atomicMin(failed + {2 * statement.error}, (long long)({reported}));")
        self.emit(f"atomicMax(failed + {2 * statement.error + 1}, (long long)({reported}));")
        self.close()
