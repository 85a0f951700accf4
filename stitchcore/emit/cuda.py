"""Kernels as CUDA C++: a task is a block's or a warp's, a lane loop is dealt to its threads.

One `__global__` per kernel (cuda_entry.py), phases separated by a grid barrier (AStitch's global
scheme), one inlined function per section. Decisions are the kernel's: whose lanes run a task
(`Section.scope`), how long the runs are that a lane takes (`Section.run`), where barriers stand.
Tasks are dealt by grid stride.
"""

from __future__ import annotations

from collections.abc import Sequence

from stitchcore.emit import runs
from stitchcore.emit.cuda_entry import THREADS, bytes_of, entry, local_bytes, shared_bytes
from stitchcore.emit.render import (
    MEMORY_TYPES,
    Renderer,
    index_text,
    outside_buffers,
    provenance_comment,
    register_type,
)
from stitchcore.kernel import index
from stitchcore.kernel.nodes import (
    Apply,
    Barrier,
    Buffer,
    Check,
    Combine,
    Kernel,
    Load,
    Loop,
    Scalar,
    Scope,
    Section,
    Store,
)
from stitchcore.kernel.walk import statements

__all__ = ["THREADS", "render", "shared_bytes"]


def render(kernels: Sequence[Kernel], threads: int = THREADS) -> str:
    """One translation unit for NVRTC. Kernel names must differ."""
    renderer = _Cuda(threads)
    for kernel in kernels:
        renderer.kernel(kernel)
    found = {
        (statement.reducer, statement.scalar.dtype)
        for kernel in kernels
        for phase in kernel.phases
        for section in phase.sections
        for statement in statements(section.body)
        if isinstance(statement, Combine)
    }
    head = ['#include "stitch_cuda.h"', "", *(_reducer(*pair) for pair in sorted(found))]
    return "\n".join(head + renderer.lines) + "\n"


def _reducer_name(reducer: str, dtype: str) -> str:
    return f"st_{reducer.replace('-', '_')}_of_{dtype}"


def _reducer(reducer: str, dtype: str) -> str:
    """What st_combine_* take to join two lanes' parts."""
    kind, pair = register_type(dtype), (Scalar("value", dtype), Scalar("other", dtype))
    joined = _Cuda().apply(Apply(reducer, pair, dtype))
    return f"ST_REDUCER({_reducer_name(reducer, dtype)}, {kind}, {joined})"


class _Cuda(Renderer):
    cuda = True

    def __init__(self, threads: int = THREADS) -> None:
        super().__init__()
        self.threads = threads
        self.shared_offset = 0
        self.scope, self.run = Scope.GROUP, 1
        self.loaded: dict[runs.Place, str] = {}
        self.left: dict[runs.Place, str] = {}

    # ---- functions -----------------------------------------------------------------------------
    def kernel(self, kernel: Kernel) -> None:
        self.emit("")
        self.emit(provenance_comment(kernel))
        for p, phase in enumerate(kernel.phases):
            for s, section in enumerate(phase.sections):
                self.section(kernel, section, f"{kernel.name}_{p}_{s}")
        self.lines += entry(kernel, self.threads)

    def section(self, kernel: Kernel, section: Section, name: str) -> None:
        used, stored = outside_buffers(kernel, section)
        arguments = [
            f"{'' if b in stored else 'const '}{MEMORY_TYPES[b.dtype]} *{b.name}" for b in used
        ]
        arguments += [f"long {symbol}" for symbol in kernel.symbols]
        arguments += ["long long *st_checks"] * bool(kernel.errors)
        arguments += ["char *st_shared", "long st_begin", "long st_end"]
        self.open(f"ST_INLINE void {name}({', '.join(arguments)})")
        self.shared_offset, self.scope, self.run = 0, section.scope, section.run
        if section.scope is Scope.WARP and local_bytes(section):
            self.emit(f"st_shared += threadIdx.x / 32 * {local_bytes(section)};")
        within = " % 32" if section.scope is Scope.WARP else ""
        self.emit(f"const unsigned st_lane = threadIdx.x{within};")
        self.ranges = {}
        self.bound(section.variable, 0, section.tasks)
        step = "gridDim.x" if section.scope is Scope.GROUP else f"gridDim.x * {self.threads // 32}"
        self.open(self.loop_head(section.variable, "st_begin", "st_end", step))
        self.body(section.body)
        self.close()
        self.close()

    # ---- statements ----------------------------------------------------------------------------
    def lane_loop(self, loop: Loop) -> None:
        begin, end = index_text(loop.begin, 1), index_text(loop.end)
        lanes = 32 if self.scope is Scope.WARP else self.threads
        each = f" * {self.run}" if self.run > 1 else ""
        head = (loop.variable, f"{begin} + st_lane{each}", end, str(lanes * self.run))
        self.open(self.loop_head(*head))
        self.bound(loop.variable, loop.begin, loop.end)
        self.in_lanes = True
        if self.run == 1:
            self.body(loop.body)
        else:
            self.run_by_run(loop, end)
        self.in_lanes = False
        self.close()

    def run_by_run(self, loop: Loop, end: str) -> None:
        """A run's iterations between the loads and stores of all of it; the last may be shorter."""
        self.emit(f"const long st_first = {loop.variable};")
        extent = index.add(loop.end, index.multiply(loop.begin, -1))
        even = index.is_multiple(extent, self.run)
        if not even:
            self.open(f"if (st_first + {self.run} <= {end})")
        self.whole_run(loop)
        if not even:
            self.depth -= 1
            self.open("} else")
            self.open(self.loop_head(loop.variable, "st_first", end))
            self.body(loop.body)
            self.close()
            self.close()

    def whole_run(self, loop: Loop) -> None:
        found = runs.of(loop, self.run)
        named: dict[runs.Place, str] = {}
        for number, (buffer, indices) in enumerate(found.loads):
            name, kind = f"st_in{number}", f"st_run<{MEMORY_TYPES[buffer.dtype]}, {self.run}>"
            self.emit(f"const {kind} {name} = *(const {kind} *)&{self.element(buffer, indices)};")
            named[buffer, indices] = name
        for number, (buffer, _) in enumerate(found.stores):
            self.emit(f"st_run<{MEMORY_TYPES[buffer.dtype]}, {self.run}> st_out{number};")
        self.emit(f"ST_UNROLL({self.run})")
        self.open(f"for (int st_at = 0; st_at < {self.run}; st_at++)")
        self.emit(f"const long {loop.variable} = st_first + st_at;")
        self.loaded = named
        self.left = {place: f"st_out{number}" for number, place in enumerate(found.stores)}
        self.body(loop.body)
        self.loaded, self.left = {}, {}
        self.close()
        for number, (buffer, indices) in enumerate(found.stores):
            kind = f"st_run<{MEMORY_TYPES[buffer.dtype]}, {self.run}>"
            self.emit(f"*({kind} *)&{self.element(buffer, indices)} = st_out{number};")

    def load(self, node: Load) -> str:
        """One that the run has loaded already is taken from there."""
        name = self.loaded.get((node.buffer, node.indices))
        return super().load(node) if name is None else self.value(f"{name}.at[st_at]", node.dtype)

    def store(self, statement: Store) -> None:
        name = self.left.get((statement.buffer, statement.indices))
        if name is not None:
            self.emit(f"{name}.at[st_at] = {self.stored(statement)};")
            return
        if self.in_lanes:
            super().store(statement)
            return
        self.open("if (st_lane == 0)")
        super().store(statement)
        self.close()

    def combine(self, statement: Combine) -> None:
        scalar = statement.scalar
        name, reducer = self.scalar(scalar), _reducer_name(statement.reducer, scalar.dtype)
        self.emit(f"{name} = st_combine_{statement.scope.value}({name}, {reducer}());")

    def barrier(self, statement: Barrier) -> None:
        self.emit("__syncwarp();" if statement.scope is Scope.WARP else "__syncthreads();")

    def allocate(self, buffer: Buffer) -> None:
        kind = MEMORY_TYPES[buffer.dtype]
        self.emit(f"{kind} *const {buffer.name} = ({kind} *)(st_shared + {self.shared_offset});")
        self.shared_offset += bytes_of(buffer)

    def check(self, statement: Check) -> None:
        condition, reported = map(self.expression, (statement.condition, statement.reported))
        self.open(f"if (!({condition}))")
        self.emit(f"atomicMin(st_checks + {2 * statement.error}, (long long)({reported}));")
        self.emit(f"atomicMax(st_checks + {2 * statement.error + 1}, (long long)({reported}));")
        self.close()
