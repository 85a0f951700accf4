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
buffers of WARP or LANE scope print as `local warp` and `local lane`. A kernel of other blocks than
the usual says so after its buffers: `threads 128`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import assert_never

from stitchcore.loop_ir import nodes as ir
from stitchcore.loop_ir.index import Index, Variable
from stitchcore.loop_ir.parser import Reader, TextError

__all__ = ["TextError", "parse_kernel", "print_kernel"]

_PRECEDENCE = {"+": 1, "*": 2, "//": 2, "%": 2}


def parse_kernel(text: str) -> ir.Kernel:
    """The kernel that `text` says. Raises TextError naming line and column."""
    return Reader(text).kernel()


def print_kernel(kernel: ir.Kernel) -> str:
    """Text of `kernel`, ending in a newline."""
    lines = [f"kernel {kernel.name}({', '.join(kernel.symbols)}) {{"]
    lines += [f"  origin {json.dumps(origin)}" for origin in kernel.provenance]
    offsets = iter(kernel.scratch_offsets)
    for buffer in kernel.buffers:
        place = f" at {index_text(next(offsets))}" if buffer.role is ir.Role.SCRATCH else ""
        lines.append(f"  {buffer.role.value} {_buffer(buffer)}{place}")
    if kernel.scratch_bytes != 0:
        lines.append(f"  scratch_bytes {index_text(kernel.scratch_bytes)}")
    lines += [f"  forward {source} -> {target}" for source, target in kernel.aliases]
    lines += [f"  error {json.dumps(message)}" for message in kernel.errors]
    if kernel.threads != ir.THREADS:
        lines.append(f"  threads {kernel.threads}")
    for phase in kernel.phases:
        lines.append("  phase {")
        for section in phase.sections:
            lines += _section(section)
        lines.append("  }")
    return "\n".join([*lines, "}"]) + "\n"


def _section(section: ir.Section) -> list[str]:
    each = "warp " * (section.scope is ir.Scope.WARP)
    runs = f" by {section.elements_per_lane}" if section.elements_per_lane != 1 else ""
    pair = "".join(f" {buffer.name}" for buffer in section.copy_unless_aliased or ())
    pair = f" apart{pair}" if pair else ""
    head = f"    section {each}{section.variable} < {index_text(section.tasks)}{runs}{pair} {{"
    return [head, *_body(section.body, 3), "    }"]


def _buffer(buffer: ir.Buffer) -> str:
    extents = ", ".join(map(index_text, buffer.dims))
    return f"{buffer.name}: {buffer.dtype}[{extents}]"


def _body(body: Sequence[ir.Statement], depth: int) -> list[str]:
    lines: list[str] = []
    for statement in body:
        head = "  " * depth + _head(statement)
        if isinstance(statement, ir.Loop | ir.If):
            lines += [head + " {", *_body(statement.body, depth + 1), "  " * depth + "}"]
        else:
            lines.append(head)
    return lines


def _head(statement: ir.Statement) -> str:
    match statement:
        case ir.Let(scalar, value):
            return f"let {scalar.name}: {scalar.dtype} = {expression_text(value)}"
        case ir.GatherIndex(variable, value, last):
            return f"position {variable} = {value.name} upto {index_text(last)}"
        case ir.Store(buffer, indices, value, streams):
            hint = f" streams {expression_text(streams)}" if streams is not None else ""
            return f"{_element(buffer, indices)} = {expression_text(value)}{hint}"
        case ir.Prefetch(buffer, indices):
            return f"prefetch {_element(buffer, indices)}"
        case ir.Accumulator(scalar, reducer):
            return f"accumulator {scalar.name}: {scalar.dtype} = {reducer}"
        case ir.Accumulate(scalar, reducer, value):
            return f"accumulate {scalar.name} = {reducer}({expression_text(value)})"
        case ir.LaneReduce(scalar, reducer, scope):
            return f"combine {scalar.name} = {reducer} over {scope.value}"
        case ir.Loop(variable, begin, end, kind, _):
            return f"{kind.value} {variable} in {index_text(begin)} .. {index_text(end)}"
        case ir.Allocate(buffer):
            whose = "" if buffer.scope is ir.Scope.GROUP else f"{buffer.scope.value} "
            return f"local {whose}{_buffer(buffer)}"
        case ir.Barrier(scope):
            return f"barrier {scope.value}"
        case ir.If(condition, _):
            return f"if {expression_text(condition)}"
        case ir.Check(condition, error, reported):
            failed = f"{error} of {expression_text(reported)}"
            return f"check {expression_text(condition)} else {failed}"
        case _:
            assert_never(statement)


def _element(buffer: ir.Buffer, indices: Sequence[Index]) -> str:
    return f"{buffer.name}[{', '.join(map(index_text, indices))}]"


def expression_text(node: ir.Expression) -> str:
    """Text of an expression, as in the kernel's text."""
    match node:
        case ir.Scalar(name, _):
            return name
        case ir.Literal(value, dtype):
            return f"{_number(value)}:{dtype}"
        case ir.Load(buffer, indices):
            return _element(buffer, indices)
        case ir.FromIndex(position, dtype):
            return f"index:{dtype}({index_text(position)})"
        case ir.InRange(position, low, high):
            return f"in_range({', '.join(map(index_text, (position, low, high)))})"
        case ir.Apply(opcode, operands, dtype, attributes):
            extra = ", ".join(f"{key}={value!r}" for key, value in attributes)
            extra = f"{{{extra}}}" if extra else ""
            return f"{opcode}:{dtype}{extra}({', '.join(map(expression_text, operands))})"
        case _:
            assert_never(node)


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
