"""Kernels as CUDA C++: a task is a block's or a warp's, a lane loop is dealt to its threads.

One `__global__` per kernel, phases separated by a grid barrier (AStitch's global scheme), so a
kernel of several phases needs a cooperative launch of at most one wave. Its one parameter is passed
by value: 8-byte words in constant memory,

    extern "C" __global__ void NAME(const __grid_constant__ st_words<N> w)

addresses of inputs and outputs, symbols, and the addresses of scratch, of the barrier's word and of
failed checks (docs/contracts.md 2). Where there are more than MOST_WORDS the parameter is their
address. The barrier's word is zero before its first launch and may be used by launch after launch.
`failed[2e]` and `failed[2e + 1]`, before it the largest and the smallest int64, become the range of
what check e reports; it failed where the first is at most the second. Blocks have `threads` threads
and `shared_bytes(kernel)` bytes of dynamic shared memory; tasks are dealt by grid stride.
"""

from __future__ import annotations

from collections.abc import Sequence

from stitchcore.emit import runs
from stitchcore.emit.render import (
    MEMORY_TYPES,
    Renderer,
    argument,
    index_text,
    outside_buffers,
    provenance_comment,
    register_type,
    size_of,
)
from stitchcore.hlo.shape import DTYPES
from stitchcore.kernel import index
from stitchcore.kernel.nodes import (
    Allocate,
    Apply,
    Barrier,
    Buffer,
    Check,
    Combine,
    Kernel,
    Load,
    Loop,
    Role,
    Scalar,
    Scope,
    Section,
    Store,
)
from stitchcore.kernel.walk import statements

THREADS = 256
"""Threads of a block, where nothing else is asked for: a multiple of 32, at most 1024."""

MOST_WORDS = 512
"""What a parameter has room for: 4096 bytes."""

_ALIGNMENT = 16


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


def words(kernel: Kernel) -> int:
    """How many words the kernel is given."""
    outside = len(kernel.with_role(Role.INPUT)) + len(kernel.with_role(Role.OUTPUT))
    return outside + len(kernel.symbols) + len(_ADDRESSES)


_POINTERS = {"scratch": "char", "arrived": "unsigned", "failed": "long long"}
_ADDRESSES = tuple(_POINTERS)


def shared_bytes(kernel: Kernel, threads: int = THREADS) -> int:
    """Dynamic shared memory that a block of `kernel` needs: its largest section's."""
    sections = (section for phase in kernel.phases for section in phase.sections)
    return max((_section_bytes(one) * _groups(one, threads) for one in sections), default=0)


def _groups(section: Section, threads: int) -> int:
    """Tasks that a block runs side by side."""
    return threads // 32 if section.scope is Scope.WARP else 1


def _section_bytes(section: Section) -> int:
    return sum(map(_bytes, _locals(section)))


def _locals(section: Section) -> list[Buffer]:
    return [s.buffer for s in statements(section.body) if isinstance(s, Allocate)]


def _bytes(buffer: Buffer) -> int:
    count = size_of(buffer)
    assert isinstance(count, int), f"LOCAL buffer {buffer.name} must be static"
    return -(-count * DTYPES[buffer.dtype].bytes // _ALIGNMENT) * _ALIGNMENT


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
        self.entry(kernel)

    def section(self, kernel: Kernel, section: Section, name: str) -> None:
        used, stored = outside_buffers(kernel, section)
        arguments = [
            f"{'' if b in stored else 'const '}{MEMORY_TYPES[b.dtype]} *{b.name}" for b in used
        ]
        arguments += [f"long {symbol}" for symbol in kernel.symbols]
        arguments += ["char *shared", "long long *failed", "long first_task", "long tasks"]
        self.open(f"ST_INLINE void {name}({', '.join(arguments)})")
        self.shared_offset, self.scope, self.run = 0, section.scope, section.run
        if section.scope is Scope.WARP and _locals(section):
            self.emit(f"shared += threadIdx.x / 32 * {_section_bytes(section)};")
        self.emit(f"const unsigned lane = threadIdx.x{self.within};")
        self.ranges = {}
        self.bound(section.variable, 0, section.tasks)
        step = "gridDim.x" if section.scope is Scope.GROUP else f"gridDim.x * {self.threads // 32}"
        self.open(self.loop_head(section.variable, "first_task", "tasks", step))
        self.body(section.body)
        self.close()
        self.close()

    @property
    def within(self) -> str:
        return " % 32" if self.scope is Scope.WARP else ""

    def meet(self) -> None:
        """All lanes of a task have come here, and see what each has left in shared memory."""
        self.emit("__syncwarp();" if self.scope is Scope.WARP else "__syncthreads();")

    def entry(self, kernel: Kernel) -> None:
        count = words(kernel)
        given = f"const __grid_constant__ st_words<{count}> w"
        if count > MOST_WORDS:
            given = "const uint64_t *const words"
        head = (
            f'extern "C" __global__ void __launch_bounds__({self.threads}) {kernel.name}({given})'
        )
        self.open(head)
        if count <= MOST_WORDS:
            self.emit("const uint64_t *const words = w.at;")
        self.emit("extern __shared__ __align__(16) char shared[];")
        first = count - len(_ADDRESSES) - len(kernel.symbols)
        self.emit("void *const *const buffers = (void *const *)words;")
        for position, symbol in enumerate(kernel.symbols, first):
            self.emit(f"const long {symbol} = (long)words[{position}];")
        for position, name in enumerate(_ADDRESSES, count - len(_ADDRESSES)):
            self.emit(f"{_POINTERS[name]} *const {name} = ({_POINTERS[name]} *)words[{position}];")
        for p, phase in enumerate(kernel.phases):
            if p > 0:
                self.emit("st_grid_barrier(arrived);")
            self.open("")
            self.emit("long first = 0;")
            shared = False
            for s, section in enumerate(phase.sections):
                if shared and _locals(section):
                    self.emit("__syncthreads();")  # the section before used the same shared memory
                shared |= bool(_locals(section))
                self.call(kernel, section, f"{kernel.name}_{p}_{s}")
            self.close()
        self.close()

    def call(self, kernel: Kernel, section: Section, name: str) -> None:
        """Blocks take over where the section before left off, so that small sections spread."""
        used, _ = outside_buffers(kernel, section)
        arguments = [argument(kernel, buffer) for buffer in used] + list(kernel.symbols)
        begin, blocks = "block", "tasks"
        if section.scope is Scope.WARP:
            warps = self.threads // 32
            begin = f"block * {warps} + threadIdx.x / 32"
            blocks = f"(tasks + {warps - 1}) / {warps}"
        self.open("")
        self.emit(f"const long tasks = {index_text(section.tasks)};")
        self.emit("const long block = (blockIdx.x + gridDim.x - first % gridDim.x) % gridDim.x;")
        self.emit(f"{name}({', '.join([*arguments, 'shared', 'failed', begin, 'tasks'])});")
        self.emit(f"first += {blocks};")
        self.close()

    # ---- statements ----------------------------------------------------------------------------
    def lane_loop(self, loop: Loop) -> None:
        begin, end = index_text(loop.begin, 1), index_text(loop.end)
        lanes = 32 if self.scope is Scope.WARP else self.threads
        each = f" * {self.run}" if self.run > 1 else ""
        head = (loop.variable, f"{begin} + lane{each}", end, str(lanes * self.run))
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
        self.open("if (lane == 0)")
        super().store(statement)
        self.close()

    def combine(self, statement: Combine) -> None:
        scalar = statement.scalar
        name, reducer = self.scalar(scalar), _reducer_name(statement.reducer, scalar.dtype)
        self.emit(f"{name} = st_combine_{statement.scope.value}({name}, {reducer}());")

    def barrier(self, statement: Barrier) -> None:
        self.meet()

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
