"""Kernels as CUDA C++: a task is a block's or a warp's, a lane loop is distributed to its threads.

One `__global__` per kernel (cuda_entry.py), phases separated by a grid barrier (AStitch's global
scheme), one inlined function for each section and those like it (cuda_shared_functions.py).
Decisions are the kernel's: whose lanes run a task (`Section.scope`), how many elements a lane takes
at once (`Section.elements_per_lane`), where barriers stand. Tasks are distributed by grid stride.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stitchcore.codegen.cuda_entry import (
    bytes_of,
    entry,
    index_type,
    local_bytes,
    shared_bytes,
)
from stitchcore.codegen.cuda_lanes import LaneLoops
from stitchcore.codegen.cuda_shared_functions import functions
from stitchcore.codegen.source import (
    MEMORY_TYPES,
    outside_buffers,
    provenance_comment,
    register_type,
    same_memory,
    shared,
    unaliased,
)
from stitchcore.loop_ir.nodes import (
    WARP_THREADS,
    Apply,
    Barrier,
    Buffer,
    Check,
    Kernel,
    LaneReduce,
    Role,
    Scalar,
    Scope,
    Section,
)
from stitchcore.loop_ir.visitor import statements

__all__ = ["render", "shared_bytes"]


def render(kernels: Sequence[Kernel], bounds: Mapping[str, int] | None = None) -> str:
    """One translation unit for NVRTC. Kernel names must differ; `bounds` gives, by name, how many
    blocks a multiprocessor must be able to hold (1 where nothing is said)."""
    renderer = _Cuda(bounds or {})
    for kernel in kernels:
        renderer.kernel(kernel)
    reductions = {
        (statement.reducer, statement.scalar.dtype)
        for kernel in kernels
        for phase in kernel.phases
        for section in phase.sections
        for statement in statements(section.body)
        if isinstance(statement, LaneReduce)
    }
    head = ['#include "stitch_cuda.h"', "", *(_reducer(*pair) for pair in sorted(reductions))]
    return "\n".join(head + renderer.lines) + "\n"


def _reducer_name(reducer: str, dtype: str) -> str:
    return f"st_{reducer.replace('-', '_')}_of_{dtype}"


def _reducer(reducer: str, dtype: str) -> str:
    """What st_combine_* take to join two lanes' parts."""
    kind, pair = register_type(dtype), (Scalar("value", dtype), Scalar("other", dtype))
    joined = _Cuda().apply(Apply(reducer, pair, dtype))
    return f"ST_REDUCER({_reducer_name(reducer, dtype)}, {kind}, {joined})"


class _Cuda(LaneLoops):
    cuda = True

    def __init__(self, bounds: Mapping[str, int] | None = None) -> None:
        super().__init__()
        self.bounds = bounds or {}
        self.shared_offset = 0

    # ---- functions -----------------------------------------------------------------------------
    def kernel(self, kernel: Kernel) -> None:
        self.emit("")
        self.emit(provenance_comment(kernel))
        self.index_type, self.threads = index_type(kernel), kernel.threads
        self.constant = frozenset(kernel.with_role(Role.INPUT)) - shared(kernel)
        phases = []
        for number, phase in enumerate(kernel.phases):
            names = [f"{kernel.name}_{number}_{at}" for at in range(len(phase.sections))]
            texts = [
                self.section(kernel, section, name)
                for section, name in zip(phase.sections, names, strict=True)
            ]
            phases.append(functions(kernel, phase.sections, names, texts, self.index_type))
            self.lines += (line for function in phases[-1] for line in function.lines)
        blocks = self.bounds.get(kernel.name, 1)
        self.lines += entry(kernel, phases, self.index_type, blocks)

    def section(self, kernel: Kernel, section: Section, name: str) -> list[str]:
        """The lines of a section's function."""
        before, self.lines = self.lines, []
        used, stored = outside_buffers(kernel, section)
        apart = unaliased(kernel, section)
        arguments = [
            f"{'' if b in stored else 'const '}{MEMORY_TYPES[b.dtype]} *"
            f"{'__restrict__ ' * (b in apart)}{b.name}"
            for b in used
        ]
        arguments += [f"{self.index_type} {symbol}" for symbol in kernel.symbols]
        arguments += ["long long *st_checks"] * bool(kernel.errors)
        arguments += [
            "char *st_shared",
            *(f"{self.index_type} {name}" for name in ("st_begin", "st_end")),
        ]
        self.open(f"ST_INLINE void {name}({', '.join(arguments)})")
        self.shared_offset = 0
        self.scope, self.elements_per_lane = section.scope, section.elements_per_lane
        if section.copy_unless_aliased is not None:
            self.emit(f"if ({same_memory(section)}) return;")
        if section.scope is Scope.WARP and local_bytes(section):
            self.emit(f"st_shared += threadIdx.x / 32 * {local_bytes(section)};")
        warp = section.scope is Scope.WARP
        self.emit(f"const int st_lane = threadIdx.x{' % 32' * warp};")
        self.emit(f"ST_LANES({WARP_THREADS if warp else self.threads});")
        self.ranges = {}
        self.bound(section.variable, 0, section.tasks)
        each = "" if section.scope is Scope.GROUP else f" * {self.threads // 32}"
        self.open(self.loop_head(section.variable, "st_begin", "st_end", f"gridDim.x{each}"))
        self.body(section.body)
        self.close()
        self.close()
        lines, self.lines = self.lines, before
        return lines

    # ---- statements ----------------------------------------------------------------------------
    def lane_reduce(self, statement: LaneReduce) -> None:
        scalar = statement.scalar
        name, reducer = self.scalar(scalar), _reducer_name(statement.reducer, scalar.dtype)
        self.emit(f"{name} = st_combine_{statement.scope.value}({name}, {reducer}());")

    def barrier(self, statement: Barrier) -> None:
        self.emit("__syncwarp();" if statement.scope is Scope.WARP else "__syncthreads();")

    def allocate(self, buffer: Buffer) -> None:
        kind = MEMORY_TYPES[buffer.dtype]
        if buffer.scope is Scope.LANE:
            self.emit(f"{kind} {buffer.name}[{self.own_elements(buffer)}];")
            return
        self.emit(f"{kind} *const {buffer.name} = ({kind} *)(st_shared + {self.shared_offset});")
        self.shared_offset += bytes_of(buffer)

    def check(self, statement: Check) -> None:
        condition, reported = map(self.expression, (statement.condition, statement.reported))
        self.open(f"if (!({condition}))")
        self.emit(f"atomicMin(st_checks + {2 * statement.error}, (long long)({reported}));")
        self.emit(f"atomicMax(st_checks + {2 * statement.error + 1}, (long long)({reported}));")
        self.close()
