"""Scanning HLO text: shapes, brackets, and where an error was seen."""

from __future__ import annotations

import re
from enum import Enum

from stitchcore.errors import Reason, Refused
from stitchcore.hlo.ir import dim as dims
from stitchcore.hlo.ir.shape import DTYPES, Shape

ARRAY = re.compile(r"([a-z]\w*)\[([^\]]*)\](?:\{([^}]*)\})?")
_BRACKET = re.compile(r"[\"(){}\[\],]")
_OTHER_TYPES = frozenset(["token", "opaque", "c64", "c128", "s1", "s2", "s4", "u1", "u2", "u4"])


class ScanError(Exception):
    """Text that does not parse: column in the line; `open` when more lines might mend it."""

    def __init__(self, column: int, message: str, open: bool = False) -> None:
        super().__init__(message)
        self.column, self.message, self.open = column, message, open


class Layout(Enum):
    """Whether an array lies in memory as its dimensions are written."""

    ROW_MAJOR = "row_major"
    OTHER = "other"


class Scanner:
    """Reads shapes; each distinct spelling of an array shape is parsed once."""

    def __init__(self) -> None:
        self._arrays: dict[str, tuple[Shape, Layout]] = {}

    def shape(self, text: str, position: int) -> tuple[Shape, Layout, int]:
        """The shape at `position`, its layout (of every member, for a tuple), and its end."""
        if text.startswith("(", position):
            return self._tuple(text, position)
        match = ARRAY.match(text, position)
        if match is None:
            raise ScanError(position, "expected a shape", position >= len(text))
        spelling = match.group()
        known = self._arrays.get(spelling)
        if known is None:
            known = self._arrays[spelling] = _array(match, position)
        return known[0], known[1], match.end()

    def _tuple(self, text: str, position: int) -> tuple[Shape, Layout, int]:
        members: list[list[Shape]] = [[]]
        layout = Layout.ROW_MAJOR
        position += 1
        while True:
            while text.startswith((" ", ","), position):
                position += 1
            if text.startswith("(", position):
                members.append([])
                position += 1
            elif text.startswith(")", position):
                closed = Shape("tuple", elements=tuple(members.pop()))
                position += 1
                if not members:
                    return closed, layout, position
                members[-1].append(closed)
            else:
                match = ARRAY.match(text, position)
                if match is None:
                    raise ScanError(position, "expected a shape", position >= len(text))
                shape, inner, position = self.shape(text, position)
                layout = inner if inner is Layout.OTHER else layout
                members[-1].append(shape)


def _array(match: re.Match[str], position: int) -> tuple[Shape, Layout]:
    dtype, inner, layout = match.groups()
    if dtype not in DTYPES and dtype not in _OTHER_TYPES:
        raise Refused(match.group(), Reason.UNSUPPORTED_TYPE, dtype)
    parts = [part.strip() for part in inner.split(",")] if inner.strip() else []
    bounded = tuple(i for i, part in enumerate(parts) if part.startswith("<="))
    try:
        extents = tuple(dims.parse(part.removeprefix("<=")) for part in parts)
    except ValueError as error:
        raise ScanError(position, str(error)) from None
    shape = Shape(dtype, extents, bounded=bounded)
    return shape, _layout(shape, layout)


def _layout(shape: Shape, text: str | None) -> Layout:
    """Dimensions of extent 1 lie anywhere without a difference."""
    if not text:
        return Layout.ROW_MAJOR
    if not re.fullmatch(r"[\d,]*", text):
        return Layout.OTHER
    order = [int(part) for part in text.split(",")]
    moving = [axis for axis in order if shape.dims[axis] != 1]
    return Layout.ROW_MAJOR if moving == sorted(moving, reverse=True) else Layout.OTHER


def closing(text: str, position: int) -> int:
    """Index of the bracket that closes the one just before `position`; quotes are skipped."""
    depth = 0
    while True:
        match = _BRACKET.search(text, position)
        if match is None:
            raise ScanError(len(text), "bracket is not closed", True)
        character, position = match.group(), match.end()
        if character == '"':
            position = _quote_end(text, position)
        elif character in "({[":
            depth += 1
        elif character in ")}]":
            if depth == 0:
                return match.start()
            depth -= 1


def split(text: str) -> list[str]:
    """`text` cut at the commas outside brackets and quotes."""
    parts: list[str] = []
    depth = start = position = 0
    while True:
        match = _BRACKET.search(text, position)
        if match is None:
            if depth:
                raise ScanError(len(text), "bracket is not closed", True)
            return [part for part in (*parts, text[start:]) if part.strip()]
        character, position = match.group(), match.end()
        if character == '"':
            position = _quote_end(text, position)
        elif character in "({[":
            depth += 1
        elif character in ")}]":
            depth -= 1
        elif depth == 0:
            parts.append(text[start : match.start()])
            start = position


def _quote_end(text: str, position: int) -> int:
    while True:
        end = text.find('"', position)
        if end < 0:
            raise ScanError(len(text), "quote is not closed", True)
        backslashes = end - len(text[position:end].rstrip("\\")) - position
        position = end + 1
        if backslashes % 2 == 0:
            return position
