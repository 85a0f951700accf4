"""What rendering to C and to CUDA share: expressions, indices, literals, plain statements, layout.

A dialect (c.py, cuda.py) subclasses Renderer and says how tasks, lane loops, combines, barriers and
functions look. The text of an opcode comes from its record (hlo/ir/opcodes.py); the helper
functions that text calls are in include/*.h.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, assert_never

import numpy as np

from stitchcore.codegen.c_lane_tiles import unrolled
from stitchcore.hlo.ir import opcodes
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.loop_ir import index
from stitchcore.loop_ir import nodes as ir
from stitchcore.loop_ir.index import Index
from stitchcore.loop_ir.layout import flat_index
from stitchcore.loop_ir.visitor import buffers_of

MEMORY_TYPES: Mapping[str, str] = {
    "pred": "uint8_t",
    **{f"{k}{b}": f"{'u' * (k == 'u')}int{b}_t" for k in "su" for b in (8, 16, 32, 64)},
    "f8e4m3fn": "uint8_t",
    "f8e5m2": "uint8_t",
    "f16": "uint16_t",
    "bf16": "uint16_t",
    "f32": "float",
    "f64": "double",
}
"""By element type. Of a narrow float a register holds the rounded float, memory the pattern; pred
is bool in registers and a byte in memory (gcc does not vectorise loads of _Bool)."""

_PRECEDENCE = {"+": 1, "*": 2, "//": 2, "%": 2}


def working(dtype: str) -> str:
    """The type that values of `dtype` are computed in."""
    return "f32" if DTYPES[dtype].narrow else dtype


def register_type(dtype: str) -> str:
    """C type of a scalar of `dtype`."""
    return "bool" if dtype == "pred" else MEMORY_TYPES[working(dtype)]


def literal(value: bool | int | float, dtype: str) -> str:
    """`value`, rounded to `dtype`, as a C expression of its register type; exact (hex floats)."""
    kind = DTYPES[dtype].kind
    if kind == "pred":
        return "true" if value else "false"
    if kind != "float":
        return _integer_literal(int(value), dtype)
    with np.errstate(over="ignore"):
        rounded = float(np.asarray(value, np.float64).astype(DTYPES[dtype].numpy))
    name = working(dtype).upper()
    if math.isnan(rounded):
        return f"ST_NAN_{name}"
    if math.isinf(rounded):
        return f"(-ST_INF_{name})" if rounded < 0 else f"ST_INF_{name}"
    digits, exponent = rounded.hex().split("p")
    head, _, tail = digits.partition(".")
    text = head + ("." + tail.rstrip("0") if tail.rstrip("0") else "") + "p" + exponent
    text += "f" if name == "F32" else ""
    return f"({text})" if text.startswith("-") else text


def _integer_literal(value: int, dtype: str) -> str:
    bits = DTYPES[dtype].bytes * 8
    if DTYPES[dtype].kind == "unsigned":
        return f"({MEMORY_TYPES[dtype]}){value % 2**bits}u" + ("ll" if bits == 64 else "")
    if value == -(2 ** (bits - 1)):
        return f"INT{bits}_MIN"
    return f"({MEMORY_TYPES[dtype]}){value}" + ("ll" if bits == 64 else "")


def index_text(node: Index, level: int = 0) -> str:
    """An index expression in C. Operands of // and % are never negative, so C's / and % serve."""
    if isinstance(node, int):
        return str(node) if node >= 0 else f"({node})"
    if isinstance(node, index.Variable):
        return node.name
    if node.operator in ("min", "max"):
        return f"st_{node.operator}({index_text(node.left)}, {index_text(node.right)})"
    own = _PRECEDENCE[node.operator]
    left, right = index_text(node.left, own), index_text(node.right, own + 1)
    text = f"{left} {'/' if node.operator == '//' else node.operator} {right}"
    return f"({text})" if own < level else text


class Renderer(ABC):
    """Collects lines. Dialects override the hooks marked so; `names` renames scalars in scope."""

    cuda = False
    index_type = "long"

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 0
        self.in_lanes = False
        self.names: dict[ir.Scalar, str] = {}
        self.ranges: dict[str, index.Range] = {}
        self.quotients: dict[index.Binary, str] = {}

    def emit(self, text: str) -> None:
        self.lines.append("  " * self.depth + text if text and text[0] != "#" else text)

    def open(self, text: str) -> None:
        self.emit(text + " {")
        self.depth += 1

    def close(self, text: str = "}") -> None:
        self.depth -= 1
        self.emit(text)

    # ---- expressions ---------------------------------------------------------------------------
    def scalar(self, scalar: ir.Scalar) -> str:
        return self.names.get(scalar, scalar.name)

    def expression(self, node: ir.Expression) -> str:
        match node:
            case ir.Scalar():
                return self.scalar(node)
            case ir.Literal():
                return literal(node.value, node.dtype)
            case ir.Load():
                return self.load(node)
            case ir.FromIndex():
                return f"st_convert_s64_{node.dtype}({self.index(node.index)})"
            case ir.InRange():
                return self.in_range(node)
            case ir.Apply():
                return self.apply(node)
            case _:
                assert_never(node)

    def load(self, node: ir.Load) -> str:
        return self.value(self.element(node.buffer, node.indices), node.dtype)

    def value(self, element: str, dtype: str) -> str:
        """What an element of memory is in a register."""
        if dtype == "pred":
            return f"({element} != 0)"
        return f"st_load_{dtype}({element})" if DTYPES[dtype].narrow else element

    def element(self, buffer: ir.Buffer, indices: Sequence[Index]) -> str:
        place = index.renamed_parts(self.place(buffer, indices), self.quotients)
        return f"{buffer.name}[{index_text(place)}]"

    def place(self, buffer: ir.Buffer, indices: Sequence[Index]) -> Index:
        """Where an element lies, simplified by the ranges of the loops around it."""
        return flat_index(buffer, [index.simplify(i, self.ranges) for i in indices])

    def index(self, node: Index, level: int = 0) -> str:
        """An index as text, simplified by the ranges of the loops around it."""
        return index_text(index.simplify(node, self.ranges), level)

    def bound(self, variable: str, begin: Index, end: Index) -> None:
        """Remember the range of a loop's variable where it is known."""
        first, last = index.bounds(begin, self.ranges), index.bounds(end, self.ranges)
        self.ranges.pop(variable, None)
        if first is not None and last is not None and first[0] < last[1]:
            self.ranges[variable] = (first[0], last[1] - 1)

    def in_range(self, node: ir.InRange) -> str:
        position, low, high = (
            index.bounds(i, self.ranges) for i in (node.index, node.low, node.high)
        )
        above = position is not None and low is not None and position[0] >= low[1]
        below = position is not None and high is not None and position[1] < high[0]
        under = position is not None and low is not None and position[1] < low[0]
        over = position is not None and high is not None and position[0] >= high[1]
        if under or over:
            return "false"
        tests = [] if above else [f"({self.index(node.index, 2)} >= {self.index(node.low, 2)})"]
        if not below:
            tests.append(f"({self.index(node.index, 2)} < {self.index(node.high, 2)})")
        return f"({' & '.join(tests)})" if tests else "true"

    def apply(self, node: ir.Apply) -> str:
        operands = [self.expression(operand) for operand in node.operands]
        source = node.operands[-1].dtype
        attributes: dict[str, Any] = dict(node.attributes)
        record = opcodes.record(node.opcode)
        text = opcodes.c_template(node.opcode, source, self.cuda).format(
            *operands,
            t=working(node.dtype),
            s=working(source),
            to=node.dtype,
            op=opcodes.COMPARE_OPERATORS.get(attributes.get("direction", ""), ""),
            **{"from": source},
            **{key: attributes[key] for key in record.attributes if key in attributes},
        )
        if DTYPES[node.dtype].narrow and record.ulp > 0:
            text = f"st_round_{node.dtype}({text})"
        return text

    # ---- statements ----------------------------------------------------------------------------
    def body(self, body: Sequence[ir.Statement]) -> None:
        for statement in body:
            self.statement(statement)

    def statement(self, statement: ir.Statement) -> None:
        match statement:
            case ir.Let(scalar, value):
                self.emit(f"{self.define(scalar, const=True)} = {self.expression(value)};")
            case ir.GatherIndex():
                self.gather_index(statement)
            case ir.Store():
                self.store(statement)
            case ir.Accumulator(scalar, reducer):
                self.emit(f"{self.define(scalar)} = {self.identity(reducer, scalar.dtype)};")
            case ir.Accumulate():
                self.emit(f"{self.scalar(statement.scalar)} = {self.accumulated(statement)};")
            case ir.LaneReduce():
                self.lane_reduce(statement)
            case ir.Loop():
                if statement.kind is ir.LoopKind.LANES:
                    self.lane_loop(statement)
                else:
                    self.serial_loop(statement)
            case ir.Allocate(buffer):
                self.allocate(buffer)
            case ir.Barrier():
                self.barrier(statement)
            case ir.Prefetch():
                pass  # a hint, for dialects that render lane loops by vectors
            case ir.If(condition, inner):
                self.open(f"if ({self.expression(condition)})")
                self.body(inner)
                self.close()
            case ir.Check():
                self.check(statement)
            case _:
                assert_never(statement)

    def gather_index(self, statement: ir.GatherIndex) -> None:
        """In 64 bits until it is clamped: a narrow index type cannot hold what data may say."""
        name, dtype = statement.variable, statement.value.dtype
        wide = f"st_convert_{dtype}_s64({self.scalar(statement.value)})"
        if dtype == "u64":
            most = literal(2**63 - 1, "u64")
            wide = f"st_convert_u64_s64(st_minimum_u64({self.scalar(statement.value)}, {most}))"
        clamped = f"st_clamp_s64(0, {wide}, {self.index(statement.last)})"
        self.emit(f"const {self.index_type} {name} = ({self.index_type}){clamped};")
        last = index.bounds(statement.last, self.ranges)
        self.ranges.pop(name, None)
        if last is not None:
            self.ranges[name] = (0, last[1])

    def accumulated(self, statement: ir.Accumulate) -> str:
        """What an accumulator becomes."""
        scalar, reducer = statement.scalar, statement.reducer
        return self.apply(ir.Apply(reducer, (scalar, statement.value), scalar.dtype))

    def define(self, scalar: ir.Scalar, const: bool = False) -> str:
        """Left side of a definition; a scalar with a place of its own is only assigned."""
        if scalar in self.names:
            return self.names[scalar]
        return f"{'const ' * const}{register_type(scalar.dtype)} {scalar.name}"

    def identity(self, reducer: str, dtype: str) -> str:
        neutral = opcodes.record(reducer).identity
        assert neutral is not None, f"{reducer} does not reduce"
        return literal(neutral(dtype), dtype)

    def store(self, statement: ir.Store) -> None:
        target = self.element(statement.buffer, statement.indices)
        self.emit(f"{target} = {self.stored(statement)};")

    def stored(self, statement: ir.Store) -> str:
        """The value of a store as it lies in memory."""
        value = self.expression(statement.value)
        return (
            f"st_store_{statement.buffer.dtype}({value})"
            if DTYPES[statement.buffer.dtype].narrow
            else value
        )

    def serial_loop(self, loop: ir.Loop) -> None:
        begin, end = loop.begin, loop.end
        count = index.add(end, index.multiply(begin, -1))
        if self.in_lanes and isinstance(count, int) and unrolled(loop):
            self.emit(f"ST_UNROLL({max(count, 1)})")
        self.open(self.loop_head(loop.variable, self.index(begin), self.index(end)))
        self.bound(loop.variable, begin, end)
        self.body(loop.body)
        self.close()

    def loop_head(self, variable: str, begin: str, end: str, step: str = "1") -> str:
        increment = f"{variable}++" if step == "1" else f"{variable} += {step}"
        return f"for ({self.index_type} {variable} = {begin}; {variable} < {end}; {increment})"

    # ---- hooks of the dialects -----------------------------------------------------------------
    @abstractmethod
    def lane_loop(self, loop: ir.Loop) -> None: ...

    @abstractmethod
    def lane_reduce(self, statement: ir.LaneReduce) -> None: ...

    @abstractmethod
    def allocate(self, buffer: ir.Buffer) -> None: ...

    @abstractmethod
    def barrier(self, statement: ir.Barrier) -> None: ...

    @abstractmethod
    def check(self, statement: ir.Check) -> None: ...

    @abstractmethod
    def kernel(self, kernel: ir.Kernel) -> None: ...


def provenance_comment(kernel: ir.Kernel) -> str:
    """The first line of a kernel's text: its name and where it came from."""
    origin = ", ".join(kernel.provenance).replace("*/", "* /") or "no provenance given"
    return f"/* {kernel.name}: {origin} */"


def outside_buffers(
    kernel: ir.Kernel, section: ir.Section
) -> tuple[list[ir.Buffer], frozenset[ir.Buffer]]:
    """Buffers of the kernel that `section` touches, in the kernel's order, and those it writes."""
    read, stored = buffers_of(section)
    return [b for b in kernel.buffers if b in read or b in stored], stored


def unaliased(kernel: ir.Kernel, section: ir.Section) -> frozenset[ir.Buffer]:
    """Buffers whose memory, as far as `section` goes, nobody reaches by another name: none of the
    pairs that may be one. Only those that it reads or writes, not both: what lanes leave for each
    other goes through memory, and no compiler may keep it in a register."""
    read, stored = buffers_of(section)
    return (read ^ stored) - shared(kernel)


def shared(kernel: ir.Kernel) -> frozenset[ir.Buffer]:
    """Inputs and outputs that may lie where another does."""
    inputs, outputs = kernel.with_role(ir.Role.INPUT), kernel.with_role(ir.Role.OUTPUT)
    return frozenset(
        buffer for source, target in kernel.aliases for buffer in (inputs[source], outputs[target])
    )


def same_memory(section: ir.Section) -> str:
    """The condition in which a section with `copy_unless_aliased` has nothing to do."""
    assert section.copy_unless_aliased is not None
    left, right = (f"(const void *){buffer.name}" for buffer in section.copy_unless_aliased)
    return f"{left} == {right}"


def argument(kernel: ir.Kernel, buffer: ir.Buffer) -> str:
    """The pointer to a buffer of the kernel, from the ABI's `buffers` and `scratch`."""
    return pointer(buffer, index_text(place(kernel, buffer), 2))


def pointer(buffer: ir.Buffer, place: str) -> str:
    """The pointer to a buffer that is at `place`, as an expression."""
    kind = MEMORY_TYPES[buffer.dtype]
    if buffer.role is ir.Role.SCRATCH:
        return f"({kind} *)(scratch + {place})"
    return f"({kind} *)buffers[{place}]"


def place(kernel: ir.Kernel, buffer: ir.Buffer) -> Index:
    """Bytes from where scratch begins, or the number among the ABI's `buffers`."""
    if buffer.role is ir.Role.SCRATCH:
        return kernel.scratch_offsets[kernel.with_role(ir.Role.SCRATCH).index(buffer)]
    outside = kernel.with_role(ir.Role.INPUT) + kernel.with_role(ir.Role.OUTPUT)
    return outside.index(buffer)
