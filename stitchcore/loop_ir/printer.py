"""The loop IR as text one can read and edit; `parse_kernel(print_kernel(k)) == k`.

    kernel k03_softmax(B) {
      origin "model/softmax"
      input x: f32[B, 768]
      output y: f32[B, 768]
      scratch partial: f32[16, 768] at 0
      scratch_bytes 49152
      forward 0 -> 0
      error "index out of range"
      phase {
        section t < (B + 15) // 16 {
          local row: f32[768]
          serial r in t * 16 .. min(t * 16 + 16, B) {
            accumulator s: f32 = add
            lanes j in 0 .. 768 {
              let e: f32 = exponential:f32(x[r, j])
              row[j] = e
              accumulate s = add(e)
            }
            combine s = add over group
    ...

Statements further: `barrier group`, `if EXPR { }`, `check EXPR else 0`, and `position i = e upto 9`
(index i is scalar e clamped to [0, 9]). Expressions: scalars by name, `1.5:f32`, `buffer[i, j]`,
`opcode:dtype{attribute=value}(operands)`, `index:s32(i * 4)`, `in_range(i, low, high)`. LOCAL
buffers of WARP or LANE scope print as `local warp` and `local lane`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from stitchcore.loop_ir.index import Index, Variable
from stitchcore.loop_ir.nodes import (
    Accumulate,
    Accumulator,
    Allocate,
    Apply,
    Barrier,
    Buffer,
    Check,
    Combine,
    Expression,
    FromIndex,
    If,
    InRange,
    Kernel,
    Let,
    Literal,
    Load,
    Loop,
    Position,
    Prefetch,
    Role,
    Scalar,
    Scope,
    Section,
    Statement,
    Store,
)
from stitchcore.loop_ir.parser import Reader, TextError

__all__ = ["TextError", "parse_kernel", "print_kernel"]

_PRECEDENCE = {"+": 1, "*": 2, "//": 2, "%": 2}


def parse_kernel(text: str) -> Kernel:
    """The kernel that `text` says. Raises TextError naming line and column."""
    return Reader(text).kernel()


def print_kernel(kernel: Kernel) -> str:
    """Text of `kernel`, ending in a newline."""
    lines = [f"kernel {kernel.name}({', '.join(kernel.symbols)}) {{"]
    lines += [f"  origin {json.dumps(origin)}" for origin in kernel.provenance]
    offsets = iter(kernel.scratch_offsets)
    for buffer in kernel.buffers:
        place = f" at {index_text(next(offsets))}" if buffer.role is Role.SCRATCH else ""
        lines.append(f"  {buffer.role.value} {_buffer(buffer)}{place}")
    if kernel.scratch_bytes != 0:
        lines.append(f"  scratch_bytes {index_text(kernel.scratch_bytes)}")
    lines += [f"  forward {source} -> {target}" for source, target in kernel.forwards]
    lines += [f"  error {json.dumps(message)}" for message in kernel.errors]
    for phase in kernel.phases:
        lines.append("  phase {")
        for section in phase.sections:
            lines += _section(section)
        lines.append("  }")
    return "\n".join([*lines, "}"]) + "\n"


def _section(section: Section) -> list[str]:
    each = "warp " * (section.scope is Scope.WARP)
    runs = f" by {section.run}" if section.run != 1 else ""
    pair = f" apart {section.apart[0].name} {section.apart[1].name}" if section.apart else ""
    head = f"    section {each}{section.variable} < {index_text(section.tasks)}{runs}{pair} {{"
    return [head, *_body(section.body, 3), "    }"]


def _buffer(buffer: Buffer) -> str:
    extents = ", ".join(map(index_text, buffer.dims))
    return f"{buffer.name}: {buffer.dtype}[{extents}]"


def _body(body: Sequence[Statement], depth: int) -> list[str]:
    lines: list[str] = []
    for statement in body:
        head = "  " * depth + _head(statement)
        if isinstance(statement, Loop | If):
            lines += [head + " {", *_body(statement.body, depth + 1), "  " * depth + "}"]
        else:
            lines.append(head)
    return lines


def _head(statement: Statement) -> str:
    match statement:
        case Let(scalar, value):
            return f"let {scalar.name}: {scalar.dtype} = {expression_text(value)}"
        case Position(variable, value, last):
            return f"position {variable} = {value.name} upto {index_text(last)}"
        case Store(buffer, indices, value, streams):
            hint = f" streams {expression_text(streams)}" if streams is not None else ""
            return f"{_element(buffer, indices)} = {expression_text(value)}{hint}"
        case Prefetch(buffer, indices):
            return f"prefetch {_element(buffer, indices)}"
        case Accumulator(scalar, reducer):
            return f"accumulator {scalar.name}: {scalar.dtype} = {reducer}"
        case Accumulate(scalar, reducer, value):
            return f"accumulate {scalar.name} = {reducer}({expression_text(value)})"
        case Combine(scalar, reducer, scope):
            return f"combine {scalar.name} = {reducer} over {scope.value}"
        case Loop(variable, begin, end, kind, _):
            return f"{kind.value} {variable} in {index_text(begin)} .. {index_text(end)}"
        case Allocate(buffer):
            whose = "" if buffer.scope is Scope.GROUP else f"{buffer.scope.value} "
            return f"local {whose}{_buffer(buffer)}"
        case Barrier(scope):
            return f"barrier {scope.value}"
        case If(condition, _):
            return f"if {expression_text(condition)}"
        case Check(condition, error, reported):
            failed = f"{error} of {expression_text(reported)}"
            return f"check {expression_text(condition)} else {failed}"


def _element(buffer: Buffer, indices: Sequence[Index]) -> str:
    return f"{buffer.name}[{', '.join(map(index_text, indices))}]"


def expression_text(node: Expression) -> str:
    """Text of an expression, as in the kernel's text."""
    match node:
        case Scalar(name, _):
            return name
        case Literal(value, dtype):
            return f"{_number(value)}:{dtype}"
        case Load(buffer, indices):
            return _element(buffer, indices)
        case FromIndex(position, dtype):
            return f"index:{dtype}({index_text(position)})"
        case InRange(position, low, high):
            return f"in_range({', '.join(map(index_text, (position, low, high)))})"
        case Apply(opcode, operands, dtype, attributes):
            extra = ", ".join(f"{key}={value!r}" for key, value in attributes)
            extra = f"{{{extra}}}" if extra else ""
            return f"{opcode}:{dtype}{extra}({', '.join(map(expression_text, operands))})"


def _number(value: bool | int | float) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return repr(value).lower() if isinstance(value, bool) else repr(value)


def index_text(node: Index, level: int = 0) -> str:
    """Text of an index; parentheses keep the tree's shape."""
    if isinstance(node, int):
        return str(node)
    if isinstance(node, Variable):
        return node.name
    if node.operator in ("min", "max"):
        return f"{node.operator}({index_text(node.left)}, {index_text(node.right)})"
    own = _PRECEDENCE[node.operator]
    text = f"{index_text(node.left, own)} {node.operator} {index_text(node.right, own + 1)}"
    return f"({text})" if own < level else text
