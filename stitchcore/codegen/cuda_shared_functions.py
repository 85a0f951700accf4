"""Sections of a phase that are alike become one `__device__` function, found through a table.

A training step updates hundreds of variables by sections that differ in their buffers and extents
only; compiled one by one they were most of NVRTC's time. Here they are told by their text: equal
but for the names of what is theirs, and for integers that a parameter can stand for. The function
is the first one's text with parameters in the place of integers that differ, so what each section
computes is what its own text says. A section whose tasks or scratch depend on symbols stands alone:
a table is data of the compiler.

Integers that the compiler must know stay as they are, and have to be equal: divisors, how far loops
are unrolled, sizes and places of local memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stitchcore.codegen.source import outside_buffers, place
from stitchcore.loop_ir.nodes import (
    Accumulator,
    Allocate,
    Buffer,
    Kernel,
    Let,
    Loop,
    Scope,
    Section,
)
from stitchcore.loop_ir.visitor import statements

PARAMETER = "st_c"
_TOKEN = re.compile(r"0x[0-9a-fA-F.]+p[+-]?\d+f?|[A-Za-z_]\w*|\d+\w*|\s+|.")
_FIXED_LINE = re.compile(
    r"\s*(ST_UNROLL|for \(int st_|\w+ \w+\[\d+\];)|.*\b(st_shared|st_checks|st_step)\b"
)
"""Lines all of whose integers the compiler must know."""


@dataclass(frozen=True)
class Function:
    """A function's text and the sections that it serves; for each of these the kernel's buffers
    that it uses, and its `constants`, which are parameters where the sections are several."""

    name: str
    lines: tuple[str, ...]
    sections: tuple[Section, ...]
    used: tuple[tuple[Buffer, ...], ...]
    constants: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class _Text:
    """A section's function as tokens; `integers` are positions of those that may differ."""

    section: Section
    used: tuple[Buffer, ...]
    name: str
    tokens: tuple[str, ...]
    integers: tuple[int, ...]
    key: tuple[object, ...]


def functions(
    kernel: Kernel,
    sections: Sequence[Section],
    names: Sequence[str],
    texts: Sequence[list[str]],
    index_type: str,
) -> list[Function]:
    """Functions for the `sections` of a phase, whose own are called `names` and read `texts`, in
    the order of the first section of each."""
    groups: dict[object, list[_Text]] = {}
    for number, (section, name, lines) in enumerate(zip(sections, names, texts, strict=True)):
        used = tuple(outside_buffers(kernel, section)[0])
        text = _text(section, used, name, lines)
        fixed = (section.tasks, *(place(kernel, buffer) for buffer in used))
        key = text.key if all(isinstance(value, int) for value in fixed) else number
        groups.setdefault(key, []).append(text)
    return [_function(group, index_type) for group in groups.values()]


def _function(group: Sequence[_Text], index_type: str) -> Function:
    """One function of all: a parameter for each way in which integers differ."""
    first = group[0]
    tokens = list(first.tokens)
    columns: dict[tuple[int, ...], str] = {}
    for at in range(len(first.integers)):
        values = tuple(int(text.tokens[text.integers[at]]) for text in group)
        if len(set(values)) > 1:
            name = columns.setdefault(values, f"{PARAMETER}{len(columns)}")
            tokens[first.integers[at]] = name
    lines = "".join(tokens).split("\n")
    if columns:
        parameters = "".join(f"{index_type} {name}, " for name in columns.values())
        lines[0] = lines[0].replace("char *st_shared", f"{parameters}char *st_shared", 1)
    constants = tuple(zip(*columns, strict=True)) if columns else ((),) * len(group)
    sections, used = zip(*((text.section, text.used) for text in group), strict=True)
    return Function(first.name, tuple(lines), sections, used, constants)


def _text(section: Section, used: tuple[Buffer, ...], name: str, lines: Sequence[str]) -> _Text:
    own = {name, *(buffer.name for buffer in used), *_names(section)}
    shares = any(
        isinstance(statement, Allocate) and statement.buffer.scope is not Scope.LANE
        for statement in statements(section.body)
    )
    tokens: list[str] = []
    integers: list[int] = []
    plain: list[object] = [section.scope, *(buffer.role for buffer in used)]
    numbers: dict[str, int] = {}
    for number, line in enumerate(lines):
        line_tokens = ["\n"] * (number > 0) + _TOKEN.findall(line)
        fixed = shares or _FIXED_LINE.match(line) is not None
        for at, token in enumerate(line_tokens):
            if token in own:
                plain.append(numbers.setdefault(token, len(numbers)))
            elif token.isdigit() and not fixed and not _known(line_tokens, at):
                integers.append(len(tokens))
                plain.append(None)
            else:
                plain.append(token)
            tokens.append(token)
    return _Text(section, used, name, tuple(tokens), tuple(integers), tuple(plain))


def _known(tokens: Sequence[str], at: int) -> bool:
    """Whether the integer at `at` divides, or is an argument of a template."""
    before = next((token for token in reversed(tokens[:at]) if not token.isspace()), "")
    after = next((token for token in tokens[at + 1 :] if not token.isspace()), "")
    return before in ("/", "%") or after == ">"


def _names(section: Section) -> Iterator[str]:
    """What the section's text calls its local buffers, scalars and loop variables."""
    yield section.variable
    for statement in statements(section.body):
        match statement:
            case Let(scalar) | Accumulator(scalar):
                yield scalar.name
            case Allocate(buffer):
                yield buffer.name
            case Loop(variable):
                yield variable
