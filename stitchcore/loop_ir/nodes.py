"""The loop IR. One Kernel object renders to C, to CUDA, and runs in a numpy interpreter.

A kernel is a sequence of phases (a device-wide boundary between them). A phase is a set of
sections (independent of each other). A section is a parallel loop over tasks; its body is serial
code with lane loops. There are no thread indices: a lane loop's iterations are distributed to the
lanes of a group (a CPU core has one lane and vectorises the loop; a CUDA block has one lane a
thread) or of a warp, and `LaneReduce` makes a per-lane partial known to every lane.
Barriers are derived (schedule/barrier).

Statements outside a lane loop are uniform: every lane computes the same scalars, and a Store there
is done by one lane. Everything is frozen; buffers and scalars are compared by value.

Each kind of node says where it is defined which of its fields hold its children; visitor.py goes
through nodes and rebuilds them by that alone.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from stitchcore.loop_ir import index
from stitchcore.loop_ir.index import Index


class Node:
    """An expression or a statement. Its class names the fields that hold an expression, an index, a
    buffer or statements, each one of them or a tuple."""

    expression_fields: ClassVar[tuple[str, ...]]
    index_fields: ClassVar[tuple[str, ...]]
    buffer_fields: ClassVar[tuple[str, ...]]
    body_fields: ClassVar[tuple[str, ...]]

    def __init_subclass__(
        cls,
        expressions: tuple[str, ...] = (),
        indices: tuple[str, ...] = (),
        buffers: tuple[str, ...] = (),
        bodies: tuple[str, ...] = (),
    ) -> None:
        cls.expression_fields = expressions
        cls.index_fields = indices
        cls.buffer_fields = buffers
        cls.body_fields = bodies


class Scope(Enum):
    """Where a value lives: AStitch's local, regional (warp, block) and global schemes."""

    LANE = "lane"  # register of one lane
    WARP = "warp"  # registers of a warp, read by shuffles
    GROUP = "group"  # shared memory of a block; a task-private buffer on a CPU
    DEVICE = "device"  # global memory, visible after a phase boundary


class Role(Enum):
    """What a buffer is to the kernel's caller."""

    INPUT = "input"
    OUTPUT = "output"
    SCRATCH = "scratch"  # DEVICE scope, carved from the kernel's scratch block
    LOCAL = "local"  # GROUP, WARP or LANE scope, lives for one task


@dataclass(frozen=True)
class Buffer:
    """A dense row-major array. `dims` may hold symbols (DEVICE) but a LOCAL buffer is static."""

    name: str
    dtype: str
    dims: tuple[Index, ...]
    scope: Scope
    role: Role


@dataclass(frozen=True)
class Scalar(Node):
    """A named LANE value: assigned once by Let, or updated by Accumulate."""

    name: str
    dtype: str


# ---- expressions -------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Literal(Node):
    """A constant of `dtype`; `value` is a Python bool, int or float (inf and nan allowed).

    Equal when written alike: NaN equals NaN, and 0.0 differs from -0.0 and from 0.
    """

    value: bool | int | float
    dtype: str

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Literal):
            return NotImplemented
        return (repr(self.value), self.dtype) == (repr(other.value), other.dtype)

    def __hash__(self) -> int:
        return hash((repr(self.value), self.dtype))


@dataclass(frozen=True)
class Load(Node, buffers=("buffer",), indices=("indices",)):
    """`buffer[indices]`, one index per dimension."""

    buffer: Buffer
    indices: tuple[Index, ...]

    @property
    def dtype(self) -> str:
        return self.buffer.dtype


@dataclass(frozen=True)
class Apply(Node, expressions=("operands",)):
    """An elementwise opcode of hlo/ir/opcodes.py; the result is rounded to `dtype` (bf16, f16 too).

    `attributes` are the instruction's (compare's direction, ...). `select` evaluates both sides.
    """

    opcode: str
    operands: tuple[Expression, ...]
    dtype: str
    attributes: tuple[tuple[str, Hashable], ...] = ()


@dataclass(frozen=True)
class FromIndex(Node, indices=("index",)):
    """An integer index as a value of `dtype` (iota, a symbol's value)."""

    index: Index
    dtype: str


@dataclass(frozen=True)
class InRange(Node, indices=("index", "low", "high")):
    """pred: low <= index < high. Guards pads and concatenations inlined into their users."""

    index: Index
    low: Index
    high: Index

    @property
    def dtype(self) -> str:
        return "pred"


Expression = Scalar | Literal | Load | Apply | FromIndex | InRange


# ---- statements --------------------------------------------------------------------------------
class LoopKind(Enum):
    SERIAL = "serial"  # every lane runs every iteration, in order
    LANES = "lanes"  # iterations are distributed to lanes; independent but for Accumulate


@dataclass(frozen=True)
class Let(Node, expressions=("value",)):
    """Define a scalar for the rest of the enclosing body."""

    scalar: Scalar
    value: Expression


@dataclass(frozen=True)
class GatherIndex(Node, expressions=("value",), indices=("last",)):
    """Define an index variable for the rest of the enclosing body: the integer `value`, or what is
    nearest to it in [0, last]. The one way in which data decides an address: it cannot lie outside
    a dimension of more than `last` elements. `last` is not negative."""

    variable: str
    value: Scalar
    last: Index


@dataclass(frozen=True)
class Store(Node, buffers=("buffer",), indices=("indices",), expressions=("value",)):
    """`buffer[indices] = value`. Where `streams` holds the element is best written past the caches:
    nothing reads it before it would have left them. A hint: `streams` depends on symbols only, and
    is no child, as walks through loops have nothing to do with it."""

    buffer: Buffer
    indices: tuple[Index, ...]
    value: Expression
    streams: InRange | None = None


@dataclass(frozen=True)
class Prefetch(Node, buffers=("buffer",), indices=("indices",)):
    """`buffer[indices]` will be read soon. A hint; indices may lie outside the buffer."""

    buffer: Buffer
    indices: tuple[Index, ...]


@dataclass(frozen=True)
class Accumulator(Node):
    """Define a scalar that starts at the identity of `reducer` (an opcode with an identity)."""

    scalar: Scalar
    reducer: str


@dataclass(frozen=True)
class Accumulate(Node, expressions=("value",)):
    """scalar = reducer(scalar, value), in the dtype of the scalar."""

    scalar: Scalar
    reducer: str
    value: Expression


@dataclass(frozen=True)
class LaneReduce(Node):
    """After lane loops that accumulated into it: every lane now holds the reduction over lanes."""

    scalar: Scalar
    reducer: str
    scope: Scope  # WARP or GROUP


@dataclass(frozen=True)
class Loop(Node, indices=("begin", "end"), bodies=("body",)):
    """for variable in [begin, end). Variables are unique within a kernel."""

    variable: str
    begin: Index
    end: Index
    kind: LoopKind
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Allocate(Node, buffers=("buffer",)):
    """A LOCAL buffer for the rest of the task. Of LANE scope: each lane has those elements whose
    numbers are those of its iterations, counted from where a lane loop begins, in registers."""

    buffer: Buffer


@dataclass(frozen=True)
class Barrier(Node):
    """Orders GROUP (or WARP) memory of one group. Empty on a one-lane machine."""

    scope: Scope


@dataclass(frozen=True)
class If(Node, expressions=("condition",), bodies=("body",)):
    """Uniform or per-lane condition over indices; no LaneReduce or Barrier may stand inside."""

    condition: Expression
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Check(Node, expressions=("condition", "reported")):
    """If `condition` (pred) is false anywhere, the caller raises `Kernel.errors[error]`.

    What the kernel has written is then worth nothing. `reported` (s64) is the value that the error
    names: of all that failed the least if negative, else the greatest (errors.worse).
    """

    condition: Expression
    error: int
    reported: Expression


Statement = (
    Let
    | GatherIndex
    | Store
    | Prefetch
    | Accumulator
    | Accumulate
    | LaneReduce
    | Loop
    | Allocate
    | Barrier
    | If
    | Check
)


# ---- structure ---------------------------------------------------------------------------------
THREADS = 256
"""Threads of a GPU's block, where nothing else is asked for."""
WARP_THREADS = 32


@dataclass(frozen=True)
class Section:
    """for variable in [0, tasks), in parallel and in any order: body. The lanes of a task are those
    of a group, or of one of its warps (`scope`); lane loops deal them runs of
    `elements_per_lane` iterations. A section with `copy_unless_aliased`, an aliased pair (input,
    output), runs only where these two are not the same memory: it brings to the output what is
    there already if they are."""

    variable: str
    tasks: Index
    body: tuple[Statement, ...]
    scope: Scope = Scope.GROUP
    elements_per_lane: int = 1
    copy_unless_aliased: tuple[Buffer, Buffer] | None = None

    def side_by_side(self, threads: int) -> int:
        """Tasks that a block of `threads` runs at once."""
        return threads // WARP_THREADS if self.scope is Scope.WARP else 1

    def blocks(self, threads: int) -> Index:
        """Blocks of `threads` that have all tasks at once."""
        return index.ceil_divide(index.maximum(self.tasks, 0), self.side_by_side(threads))


@dataclass(frozen=True)
class Phase:
    """Sections that do not depend on each other. All end before the next phase begins."""

    sections: tuple[Section, ...]


@dataclass(frozen=True)
class Kernel:
    """One kernel.

    `symbols` are int64 runtime arguments, named in index expressions. `buffers` are the inputs,
    then the outputs, then the scratch buffers (which may share memory: `scratch_offsets` gives the
    byte offset of each in the scratch block, `scratch_bytes` the block's size). `aliases` are
    (input position, output position) pairs whose memory may be the same: every element of that
    input is read, if at all, only by the lane that later writes the same element of the output
    (sections that run only where the two are apart do not count).
    `errors` are the messages that Check refers to. `provenance` names framework operations.
    `threads` are those of a GPU's block, whose lanes a group has: a multiple of 32, at most 1024.
    """

    name: str
    symbols: tuple[str, ...]
    buffers: tuple[Buffer, ...]
    phases: tuple[Phase, ...]
    scratch_offsets: tuple[Index, ...] = ()
    scratch_bytes: Index = 0
    aliases: tuple[tuple[int, int], ...] = ()
    errors: tuple[str, ...] = ()
    provenance: tuple[str, ...] = ()
    threads: int = THREADS

    def with_role(self, role: Role) -> tuple[Buffer, ...]:
        return tuple(b for b in self.buffers if b.role is role)
