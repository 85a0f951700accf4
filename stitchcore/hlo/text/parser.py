"""HLO text (as TensorFlow 2.15-2.21 and jaxlib print it) to a Module.

The text is read line by line with regular expressions; attribute text and shapes repeat so often
that both are parsed once per distinct spelling. Calls are inlined; other called computations stay
attributes. Layouts are a physical hint in unoptimised HLO and are dropped, except where the module
meets its caller: entry parameters and results must be row-major.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from dataclasses import dataclass, field

from stitchcore.errors import Reason, Refused
from stitchcore.hlo.ir import attributes as codecs
from stitchcore.hlo.ir import dim as dims
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.dim import Dim
from stitchcore.hlo.ir.instruction import (
    Computation,
    Instruction,
    computation,
    instruction,
    topological,
)
from stitchcore.hlo.ir.literal import parse_literal
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.ir.shape import DTYPES, Shape
from stitchcore.hlo.text.tokenizer import Layout, ScanError, Scanner, closing, split

_COMMENT = re.compile(r"/\*[^\"\n]*?\*/")
_HEADER = re.compile(r"HloModule\s+([^\s,]+)")
_COMPUTATION = re.compile(r"(ENTRY\s+)?%?([\w.\-]+)\s*(\(.*)?\{\s*$")
_HEAD = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = ")
_OPCODE = re.compile(r" ([a-z][\w\-]*)\(")
_PERCENT = re.compile(r"%([\w.\-]+)")
_METADATA = re.compile(r", metadata=\{(?:[^\"{}]|\"(?:[^\"\\]|\\.)*\"|\{[^}]*\})*\}")
_OP_NAME = re.compile(r"op_name=\"((?:[^\"\\]|\\.)*)\"")
_UNIQUE = re.compile(r"frontend_attributes=\{[^}]*unique=\"(\d+)\"")
_ALIAS = re.compile(r"\{(\d*)\}:\s*\((\d+),\s*\{(\d*)\}")
_SYMBOLS = re.compile(r", symbols=\{([^}]*)\}")
_LITERAL_DTYPES = frozenset(DTYPES)


@dataclass
class _State:
    """What one parse has seen: computations by name, caches by spelling, a counter for `unique`."""

    subject: str
    scanner: Scanner = field(default_factory=Scanner)
    computations: dict[str, Computation] = field(default_factory=dict)
    attributes: dict[tuple[str, str], dict[str, Hashable]] = field(default_factory=dict)
    provenance: dict[Instruction, tuple[str, ...]] = field(default_factory=dict)
    origins: dict[str, dict[Instruction, tuple[str, ...]]] = field(default_factory=dict)
    counter: int = 0


def parse(text: str) -> Module:
    """The module written as `text`.

    Raises Refused: PARSE_ERROR (line and column in the detail), ELIDED_CONSTANT, UNKNOWN_OPCODE,
    UNSUPPORTED_TYPE, UNSUPPORTED_LAYOUT.
    """
    if "/*" in text:
        text = _COMMENT.sub(lambda comment: " " * len(comment.group()), text)
    lines = text.split("\n")
    first = next((i for i, line in enumerate(lines) if line.strip()), 0)
    header = _HEADER.match(lines[first])
    if header is None:
        raise _error("module", first, 0, "expected 'HloModule NAME'")
    state = _State(header.group(1))
    entry: Computation | None = None
    number = first + 1
    while number < len(lines):
        line = lines[number]
        if not line or line.isspace():
            number += 1
            continue
        head = _COMPUTATION.match(line)
        if head is None or line[0] in " }":
            raise _error(state.subject, number, 0, "expected a computation")
        parsed, number = _computation(state, lines, number, head.group(2), bool(head.group(1)))
        if head.group(1):
            entry = parsed
    if entry is None:
        raise _error(state.subject, len(lines) - 1, 0, "no ENTRY computation")
    symbols = _SYMBOLS.search(lines[first])
    return Module(
        state.subject,
        entry,
        tuple(s.strip() for s in symbols.group(1).split(",")) if symbols else (),
        _aliases(state, lines[first], first),
        {
            node: state.provenance[node]
            for node in topological((entry.root,))
            if node in state.provenance
        },
    )


def _error(subject: str, line: int, column: int, message: str) -> Refused:
    detail = f"line {line + 1}, column {column + 1}: {message}"
    return Refused(subject, Reason.PARSE_ERROR, detail)


def _aliases(state: _State, line: str, number: int) -> tuple[tuple[int, int], ...]:
    at = line.find("input_output_alias={")
    if at < 0:
        return ()
    end = closing(line, at + len("input_output_alias={"))
    body = line[at + len("input_output_alias={") : end]
    pairs = _ALIAS.findall(body)
    if len(pairs) != body.count(":") or any(inner for _, _, inner in pairs):
        raise _error(state.subject, number, at, "alias into a nested tuple")
    return tuple((int(output or 0), int(parameter)) for output, parameter, _ in pairs)


def _computation(
    state: _State, lines: list[str], number: int, name: str, is_entry: bool
) -> tuple[Computation, int]:
    """The computation whose header is line `number`, and the number of the line after it."""
    start, number = number, number + 1
    values: dict[str, Instruction] = {}
    parameters: dict[int, Instruction] = {}
    root: Instruction | None = None
    outer, state.provenance = state.provenance, {}
    while True:
        if number >= len(lines):
            raise _error(state.subject, number - 1, 0, f"computation {name} is not closed")
        line = lines[number]
        if line.startswith("}"):
            break
        if not line or line.isspace():
            number += 1
            continue
        node, is_root, number, label = _line(state, lines, number, values, is_entry)
        values[label] = node
        if node.opcode == op.PARAMETER:
            parameters[node["number"]] = node
        if is_root:
            root = node
    if root is None:
        raise _error(state.subject, number, 0, f"computation {name} has no ROOT")
    if sorted(parameters) != list(range(len(parameters))):
        raise _error(state.subject, start, 0, f"computation {name} lacks a parameter")
    parsed = computation((parameters[i] for i in range(len(parameters))), root)
    state.computations[name] = parsed
    state.origins[name] = state.provenance
    state.provenance = state.provenance if is_entry else outer
    return parsed, number + 1


def _line(
    state: _State, lines: list[str], number: int, values: dict[str, Instruction], is_entry: bool
) -> tuple[Instruction, bool, int, str]:
    """One instruction, which may run over several lines when it holds a large constant."""
    start, line = number, lines[number]
    while True:
        number += 1
        try:
            node, is_root, label = _instruction(state, line, values, is_entry)
            return node, is_root, number, label
        except ScanError as error:
            more = lines[number] if number < len(lines) else "}"
            if error.open and not more.startswith("}") and _HEAD.match(more) is None:
                line = f"{line}\n{more}"
                continue
            raise _error(state.subject, start, error.column, error.message) from None
        except (ValueError, KeyError) as error:
            detail = f"{type(error).__name__}: {error}"
            raise _error(state.subject, start, len(line) - len(line.lstrip()), detail) from None


def _instruction(
    state: _State, line: str, values: dict[str, Instruction], is_entry: bool
) -> tuple[Instruction, bool, str]:
    head = _HEAD.match(line)
    if head is None:
        raise ScanError(0, "expected 'NAME = SHAPE OPCODE(...)'")
    label = head.group(2)
    shape, layout, position = state.scanner.shape(line, head.end())
    spelling = _OPCODE.match(line, position)
    if spelling is None:
        raise ScanError(position, "expected an opcode and '('", position >= len(line))
    opcode, begin = spelling.group(1), spelling.end()
    if opcode not in op.OPCODES:
        raise Refused(label, Reason.UNKNOWN_OPCODE, opcode)
    at_boundary = is_entry and (opcode == op.PARAMETER or head.group(1) is not None)
    if layout is Layout.OTHER and (at_boundary or opcode == op.BITCAST):
        raise Refused(label, Reason.UNSUPPORTED_LAYOUT, line[head.end() : position])
    end = line.find(")", begin)
    if end < 0 or "(" in line[begin:end] or '"' in line[begin:end]:
        end = closing(line, begin)
    inner, rest = line[begin:end], line[end + 1 :]
    names: tuple[str, ...] = ()
    metadata = _METADATA.search(rest) if "metadata={" in rest else None
    if metadata is not None:
        names = _origins(metadata.group())
        rest = rest[: metadata.start()] + rest[metadata.end() :]
    attributes = state.attributes.get((opcode, rest))
    if attributes is None:
        attributes = _attributes(state, opcode, rest, end + 1)
        state.attributes[opcode, rest] = attributes
    if attributes.get("custom_call_target") == _CHECK_TARGET:
        opcode, attributes = op.CHECK, _check_message(attributes, end + 1)
    node = _build(state, opcode, shape, inner, attributes, values, rest, (label, begin))
    if names and opcode != op.PARAMETER:
        before = state.provenance.get(node, ())
        state.provenance[node] = before + tuple(n for n in names if n not in before)
    return node, head.group(1) is not None, label


_CHECK_TARGET = f'"{codecs.CHECK_TARGET}"'


def _check_message(attributes: dict[str, Hashable], column: int) -> dict[str, Hashable]:
    """A check is written as a custom call whose configuration is its message."""
    try:
        return {"message": json.loads(str(attributes["backend_config"]))}
    except (KeyError, ValueError):
        raise ScanError(column, "a check without its message") from None


def _origins(metadata: str) -> tuple[str, ...]:
    name = _OP_NAME.search(metadata)
    return tuple(name.group(1).split(";")) if name and name.group(1) else ()


def _build(
    state: _State,
    opcode: str,
    shape: Shape,
    inner: str,
    attributes: dict[str, Hashable],
    values: dict[str, Instruction],
    rest: str,
    where: tuple[str, int],
) -> Instruction:
    label, column = where
    if opcode == op.PARAMETER:
        return instruction(opcode, shape, number=int(inner))
    if opcode == op.CONSTANT:
        return _constant(shape, inner, label)
    operands = _operands(inner, values, column)
    record = op.OPCODES[opcode]
    if record.arity is not None and len(operands) != record.arity:
        message = f"{opcode} takes {record.arity} operands, not {len(operands)}"
        raise ScanError(column, message)
    if opcode == op.CALL:
        return _inline(state, attributes["to_apply"], operands)
    if "unique" in record.attributes:
        number = _UNIQUE.search(rest)
        unique = int(number.group(1)) if number else state.counter
        state.counter = max(state.counter, unique) + 1
        return instruction(opcode, shape, operands, **attributes, unique=unique)
    return instruction(opcode, shape, operands, **attributes)


def _constant(shape: Shape, inner: str, label: str) -> Instruction:
    if "..." in inner:
        raise Refused(label, Reason.ELIDED_CONSTANT, f"constant({inner.strip()[:40]})")
    if shape.elements is not None or shape.dtype not in _LITERAL_DTYPES:
        raise Refused(label, Reason.UNSUPPORTED_TYPE, f"constant of {shape}")
    if inner.startswith("ratio "):
        parts = inner[len("ratio ") :].split("/")
        ratio: tuple[Dim, Dim] = (dims.parse(parts[0]), dims.parse(parts[1]))
        return instruction(op.CONSTANT, shape, ratio=ratio)
    return instruction(op.CONSTANT, shape, value=parse_literal(inner, shape))


def _operands(inner: str, values: dict[str, Instruction], column: int) -> list[Instruction]:
    if not inner or inner.isspace():
        return []
    if "%" in inner:
        names = _PERCENT.findall(inner)
    elif "[" not in inner:
        names = [part.strip() for part in inner.split(",")]
    else:
        names = [part.strip().rsplit(" ", 1)[-1] for part in split(inner)]
    try:
        return [values[name] for name in names]
    except KeyError as error:
        raise ScanError(column, f"operand {error.args[0]!r} is not defined") from None


def _inline(state: _State, callee: Hashable, operands: list[Instruction]) -> Instruction:
    assert isinstance(callee, Computation)
    inlined: dict[Instruction, Instruction] = dict(zip(callee.parameters, operands, strict=True))
    origins = next((state.origins[n] for n, c in state.computations.items() if c is callee), {})
    for node in topological((callee.root,)):
        if node in inlined:
            continue
        attributes = dict(node.attributes)
        if "unique" in attributes:
            attributes["unique"] = state.counter
            state.counter += 1
        copy = instruction(
            node.opcode, node.shape, (inlined[o] for o in node.operands), **attributes
        )
        inlined[node] = copy
        if node in origins:
            before = state.provenance.get(copy, ())
            added = tuple(name for name in origins[node] if name not in before)
            state.provenance[copy] = before + added
    return inlined[callee.root]


def _attributes(state: _State, opcode: str, rest: str, column: int) -> dict[str, Hashable]:
    attributes: dict[str, Hashable] = {}
    known = op.OPCODES[opcode].attributes
    if rest.strip() == "":
        return attributes
    if not rest.startswith(","):
        raise ScanError(column, f"expected ', NAME=VALUE', found {rest[:20]!r}")
    for part in split(rest[1:]):
        name, equals, text = part.strip().partition("=")
        if not equals:
            raise ScanError(column, f"attribute {part.strip()!r} has no value")
        if name in codecs.IGNORED or (name == "backend_config" and name not in known):
            continue
        value = _attribute(state, name, text, column)
        if name in ("true_computation", "false_computation"):
            # HLO prints the true branch first.
            name = "branch_computations"
            value = (*_branches(attributes.get(name)), *_branches(value))
        if name == "type" and value != "TOTALORDER":
            continue
        if "text" in known:
            attributes["text"] = rest.strip(", ")
        elif name not in known:
            raise ScanError(column, f"{opcode} has no attribute {name!r}")
        elif codecs.DEFAULTS.get(name) != value:
            attributes[name] = value
    return attributes


def _branches(value: Hashable) -> tuple[Hashable, ...]:
    if value is None:
        return ()
    return value if isinstance(value, tuple) else (value,)


def _attribute(state: _State, name: str, text: str, column: int) -> Hashable:
    if name in codecs.COMPUTATIONS or name in ("true_computation", "false_computation"):
        return _called(state, text, column)
    if name == "branch_computations":
        return tuple(_called(state, part, column) for part in text.strip("{} ").split(","))
    codec = codecs.CODECS.get(name)
    return codec[0](text.strip()) if codec else text.strip()


def _called(state: _State, text: str, column: int) -> Computation:
    name = text.strip().removeprefix("%")
    try:
        return state.computations[name]
    except KeyError:
        raise ScanError(column, f"computation {name!r} is not defined before its use") from None
