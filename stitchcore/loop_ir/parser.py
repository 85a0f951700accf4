"""Reads the loop IR's text (printer.py has the grammar): tokens, then recursive descent."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from stitchcore.loop_ir import nodes as ir
from stitchcore.loop_ir.index import Binary, Index, Variable

_TOKEN = re.compile(
    r"(?P<space>\s+|\#[^\n]*)"
    r"|(?P<string>\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*')"
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_]*(?:-[A-Za-z][A-Za-z0-9_]*)*)"
    r"|(?P<number>-?\d+(?:\.\d+(?:e[+-]?\d+)?|e[+-]?\d+)?|-inf\b)"
    r"|(?P<mark>\.\.|//|->|[][(){}:,=<+*%])"
)

T = TypeVar("T")


class TextError(Exception):
    """The text is not a kernel; the message says where and what was expected."""


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    offset: int


class Reader:
    """One pass over one kernel's text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[_Token] = []
        self.position = 0
        self.buffers: dict[str, ir.Buffer] = {}
        self.scalars: dict[str, ir.Scalar] = {}
        offset = 0
        while offset < len(text):
            token = _TOKEN.match(text, offset)
            if token is None:
                raise self._error(offset, "a token")
            if token.lastgroup != "space":
                self.tokens.append(_Token(str(token.lastgroup), token.group(), offset))
            offset = token.end()
        self.tokens.append(_Token("end", "end of text", len(text)))

    def _error(self, offset: int, expected: str) -> TextError:
        line = self.text.count("\n", 0, offset) + 1
        column = offset - self.text.rfind("\n", 0, offset)
        return TextError(f"line {line}, column {column}: expected {expected}")

    # ---- tokens --------------------------------------------------------------------------------
    @property
    def here(self) -> _Token:
        return self.tokens[self.position]

    def take(self, text: str) -> None:
        if self.here.text != text or self.here.kind == "string":
            raise self._error(self.here.offset, repr(text))
        self.position += 1

    def accept(self, text: str) -> bool:
        if self.here.text == text and self.here.kind != "string":
            self.position += 1
            return True
        return False

    def kind(self, kind: str) -> str:
        if self.here.kind != kind:
            raise self._error(self.here.offset, f"a {kind}")
        self.position += 1
        return self.tokens[self.position - 1].text

    def word(self) -> str:
        return self.kind("word")

    def string(self) -> str:
        return str(json.loads(self.kind("string")))

    def whole(self) -> int:
        token = self.here
        text = self.kind("number")
        if not re.fullmatch(r"-?\d+", text):
            raise self._error(token.offset, "an integer")
        return int(text)

    def listed(self, item: Callable[[], T], close: str) -> tuple[T, ...]:
        """Comma-separated items up to and including `close`."""
        items: list[T] = []
        while not self.accept(close):
            if items:
                self.take(",")
            items.append(item())
        return tuple(items)

    # ---- structure -----------------------------------------------------------------------------
    def kernel(self) -> ir.Kernel:
        self.take("kernel")
        name = self.word()
        self.take("(")
        symbols = self.listed(self.word, ")")
        self.take("{")
        origins: list[str] = []
        errors: list[str] = []
        aliases: list[tuple[int, int]] = []
        offsets: list[Index] = []
        scratch_bytes: Index = 0
        threads = ir.THREADS
        while self.here.text != "phase":
            head = self.word()
            if head == "origin":
                origins.append(self.string())
            elif head == "error":
                errors.append(self.string())
            elif head == "scratch_bytes":
                scratch_bytes = self.index()
            elif head == "threads":
                threads = self.whole()
            elif head == "forward":
                source = self.whole()
                self.take("->")
                aliases.append((source, self.whole()))
            else:
                self.outer_buffer(head, offsets)
        buffers = tuple(self.buffers.values())
        phases: list[ir.Phase] = []
        while not self.accept("}"):
            phases.append(self.phase())
        self.kind("end")
        return ir.Kernel(
            name,
            symbols,
            buffers,
            tuple(phases),
            tuple(offsets),
            scratch_bytes,
            tuple(aliases),
            tuple(errors),
            tuple(origins),
            threads,
        )

    def outer_buffer(self, head: str, offsets: list[Index]) -> None:
        if head not in (ir.Role.INPUT.value, ir.Role.OUTPUT.value, ir.Role.SCRATCH.value):
            raise self._error(self.tokens[self.position - 1].offset, "a declaration or phase")
        role = ir.Role(head)
        self.buffer(ir.Scope.DEVICE, role)
        if role is ir.Role.SCRATCH:
            self.take("at")
            offsets.append(self.index())

    def buffer(self, scope: ir.Scope, role: ir.Role) -> ir.Buffer:
        name = self.word()
        self.take(":")
        dtype = self.word()
        self.take("[")
        buffer = ir.Buffer(name, dtype, self.listed(self.index, "]"), scope, role)
        self.buffers[name] = buffer
        return buffer

    def phase(self) -> ir.Phase:
        self.take("phase")
        self.take("{")
        sections: list[ir.Section] = []
        while not self.accept("}"):
            self.take("section")
            scope = self.scope("<")
            variable = self.word()
            self.take("<")
            tasks = self.index()
            elements_per_lane = self.index() if self.accept("by") else 1
            if not isinstance(elements_per_lane, int):
                raise self._error(self.here.offset, "a number of iterations")
            alias_pair = (self.declared(), self.declared()) if self.accept("apart") else None
            sections.append(
                ir.Section(variable, tasks, self.body(), scope, elements_per_lane, alias_pair)
            )
        return ir.Phase(tuple(sections))

    def scope(self, after: str) -> ir.Scope:
        """GROUP, or what stands before a name, which `after` follows: `warp` or `lane`."""
        word = self.here.text
        if word not in ("warp", "lane") or self.tokens[self.position + 1].text == after:
            return ir.Scope.GROUP
        self.take(word)
        return ir.Scope(word)

    def body(self) -> tuple[ir.Statement, ...]:
        self.take("{")
        statements: list[ir.Statement] = []
        while not self.accept("}"):
            statements.append(self.statement())
        return tuple(statements)

    # ---- statements ----------------------------------------------------------------------------
    def statement(self) -> ir.Statement:
        following = self.tokens[self.position + 1].text
        head = self.word()
        if following == "[":
            buffer, indices = self.element(head)
            self.take("=")
            return ir.Store(buffer, indices, self.expression(), self.streams())
        match head:
            case "let":
                scalar = self.scalar()
                return ir.Let(scalar, self.expression())
            case "position":
                return self.gather_index()
            case "accumulator":
                scalar = self.scalar()
                return ir.Accumulator(scalar, self.word())
            case "accumulate" | "combine":
                return self.reduction(head)
            case "serial" | "lanes":
                return self.loop(ir.LoopKind(head))
            case "local":
                return ir.Allocate(self.buffer(self.scope(":"), ir.Role.LOCAL))
            case "barrier":
                return ir.Barrier(ir.Scope(self.word()))
            case "if":
                condition = self.expression()
                return ir.If(condition, self.body())
            case "prefetch":
                return ir.Prefetch(*self.element(self.word()))
            case "check":
                condition = self.expression()
                self.take("else")
                error = self.whole()
                self.take("of")
                return ir.Check(condition, error, self.expression())
        raise self._error(self.tokens[self.position - 1].offset, "a statement")

    def gather_index(self) -> ir.GatherIndex:
        variable = self.word()
        self.take("=")
        value = self.named(self.word())
        self.take("upto")
        return ir.GatherIndex(variable, value, self.index())

    def streams(self) -> ir.InRange | None:
        if not self.accept("streams"):
            return None
        self.take("in_range")
        self.take("(")
        return ir.InRange(*self.listed(self.index, ")"))

    def reduction(self, head: str) -> ir.Statement:
        scalar = self.named(self.word())
        self.take("=")
        reducer = self.word()
        if head == "combine":
            self.take("over")
            return ir.LaneReduce(scalar, reducer, ir.Scope(self.word()))
        self.take("(")
        value = self.expression()
        self.take(")")
        return ir.Accumulate(scalar, reducer, value)

    def loop(self, kind: ir.LoopKind) -> ir.Loop:
        variable = self.word()
        self.take("in")
        begin = self.index()
        self.take("..")
        end = self.index()
        return ir.Loop(variable, begin, end, kind, self.body())

    def scalar(self) -> ir.Scalar:
        name = self.word()
        self.take(":")
        scalar = ir.Scalar(name, self.word())
        self.take("=")
        self.scalars[name] = scalar
        return scalar

    def named(self, name: str) -> ir.Scalar:
        if name not in self.scalars:
            raise self._error(self.tokens[self.position - 1].offset, "the name of a scalar")
        return self.scalars[name]

    def element(self, name: str) -> tuple[ir.Buffer, tuple[Index, ...]]:
        buffer = self.declared(name)
        self.take("[")
        return buffer, self.listed(self.index, "]")

    def declared(self, name: str | None = None) -> ir.Buffer:
        """The buffer of that name, or of the next word."""
        buffer = self.buffers.get(self.word() if name is None else name)
        if buffer is None:
            raise self._error(self.tokens[self.position - 1].offset, "the name of a buffer")
        return buffer

    # ---- expressions ---------------------------------------------------------------------------
    def expression(self) -> ir.Expression:
        token = self.here
        if token.kind == "number" or token.text in ("nan", "inf", "true", "false"):
            self.position += 1
            self.take(":")
            return ir.Literal(_number(token.text), self.word())
        name = self.word()
        if self.here.text == "[":
            return ir.Load(*self.element(name))
        if name == "in_range" and self.accept("("):
            position, low, high = self.listed(self.index, ")")
            return ir.InRange(position, low, high)
        if not self.accept(":"):
            return self.named(name)
        dtype = self.word()
        if name == "index":
            self.take("(")
            position = self.index()
            self.take(")")
            return ir.FromIndex(position, dtype)
        attributes = self.attributes()
        self.take("(")
        return ir.Apply(name, self.listed(self.expression, ")"), dtype, attributes)

    def attributes(self) -> tuple[tuple[str, object], ...]:
        """{name=value, ...}; values are Python literals."""
        if not self.accept("{"):
            return ()
        attributes: list[tuple[str, object]] = []
        while not self.accept("}"):
            if attributes:
                self.take(",")
            key = self.word()
            self.take("=")
            begin, depth = self.here.offset, 0
            while depth > 0 or self.here.text not in (",", "}"):
                depth += (self.here.text in ("(", "[")) - (self.here.text in (")", "]"))
                self.kind(self.here.kind) if self.here.kind != "end" else self.take("}")
            attributes.append((key, ast.literal_eval(self.text[begin : self.here.offset].strip())))
        return tuple(attributes)

    # ---- indices: trees are kept as written, nothing is simplified -----------------------------
    def index(self) -> Index:
        left = self.term()
        while self.accept("+"):
            left = Binary("+", left, self.term())
        return left

    def term(self) -> Index:
        left = self.factor()
        while self.here.text in ("*", "//", "%"):
            operator = self.kind("mark")
            left = Binary(operator, left, self.factor())
        return left

    def factor(self) -> Index:
        if self.accept("("):
            inner = self.index()
            self.take(")")
            return inner
        if self.here.kind == "number":
            return self.whole()
        name = self.word()
        if name in ("min", "max") and self.accept("("):
            left, right = self.listed(self.index, ")")
            return Binary(name, left, right)
        return Variable(name)


def _number(text: str) -> bool | int | float:
    if text in ("true", "false"):
        return text == "true"
    return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
