"""Walks over statements and expressions that checks and renderers share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from stitchcore.loop_ir import index
from stitchcore.loop_ir.index import Index
from stitchcore.loop_ir.nodes import (
    Accumulate,
    Accumulator,
    Allocate,
    Apply,
    Buffer,
    Check,
    Expression,
    FromIndex,
    If,
    InRange,
    Let,
    Load,
    Loop,
    Position,
    Prefetch,
    Scalar,
    Section,
    Statement,
    Store,
)


def statements(body: Sequence[Statement]) -> Iterator[Statement]:
    """Every statement of `body`, nested ones too, in text order."""
    for statement in body:
        yield statement
        if isinstance(statement, Loop | If):
            yield from statements(statement.body)


def expressions(body: Sequence[Statement]) -> Iterator[Expression]:
    """Every expression of `body`, operands after users; shared ones once a use."""
    stack: list[Expression] = []
    for statement in statements(body):
        match statement:
            case Let() | Position() | Store() | Accumulate():
                stack.append(statement.value)
            case If():
                stack.append(statement.condition)
            case Check(condition, _, reported):
                stack += (condition, reported)
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node, Apply):
            stack.extend(node.operands)


def positions(body: Sequence[Statement]) -> frozenset[str]:
    """Index variables that data decides somewhere in `body`: they differ between the iterations of
    a loop with that body in a way that nothing tells beforehand."""
    return frozenset(s.variable for s in statements(body) if isinstance(s, Position))


def buffers_of(section: Section) -> tuple[frozenset[Buffer], frozenset[Buffer]]:
    """Buffers that a section reads, and those it writes (LOCAL ones included)."""
    read = {e.buffer for e in expressions(section.body) if isinstance(e, Load)}
    written = {s.buffer for s in statements(section.body) if isinstance(s, Store)}
    return frozenset(read), frozenset(written)


def outer_accumulators(
    loop: Loop, private: frozenset[Scalar] = frozenset()
) -> tuple[Accumulate, ...]:
    """One Accumulate for each scalar defined outside `loop` that its body accumulates into.

    `private` scalars are the lanes' own, wherever they are defined.
    """
    inside = {s.scalar for s in statements(loop.body) if isinstance(s, Accumulator)} | private
    found: dict[Scalar, Accumulate] = {}
    for statement in statements(loop.body):
        if isinstance(statement, Accumulate) and statement.scalar not in inside:
            found.setdefault(statement.scalar, statement)
    return tuple(found.values())


def substituted(body: Sequence[Statement], values: Mapping[str, Index]) -> tuple[Statement, ...]:
    """`body` with index variables replaced by their `values`, where these have one."""
    return mapped(body, place=lambda one: index.substitute(one, values))


def mapped(
    body: Sequence[Statement],
    buffer: Callable[[Buffer], Buffer] = lambda same: same,
    place: Callable[[Index], Index] = lambda same: same,
    expression: Callable[[Expression], Expression] = lambda same: same,
) -> tuple[Statement, ...]:
    """`body` with every buffer, index and expression mapped, expressions after their parts."""
    mapping = _Mapping(buffer, place, expression)
    return tuple(map(mapping.statement, body))


@dataclass(frozen=True)
class _Mapping:
    buffer: Callable[[Buffer], Buffer]
    place: Callable[[Index], Index]
    node: Callable[[Expression], Expression]

    def statement(self, statement: Statement) -> Statement:
        match statement:
            case Let(_, value) | Accumulate(_, _, value):
                return replace(statement, value=self.expression(value))
            case Position(_, value, last):
                given = self.expression(value)
                assert isinstance(given, Scalar), "a position's value is a scalar"
                return replace(statement, value=given, last=self.place(last))
            case Store(buffer, indices, value):
                at, value = self.places(indices), self.expression(value)
                return replace(statement, buffer=self.buffer(buffer), indices=at, value=value)
            case Prefetch(buffer, indices):
                return Prefetch(self.buffer(buffer), self.places(indices))
            case Loop(_, begin, end, _, body):
                begin, end = self.places((begin, end))
                inner = tuple(map(self.statement, body))
                return replace(statement, begin=begin, end=end, body=inner)
            case If(condition, body):
                return If(self.expression(condition), tuple(map(self.statement, body)))
            case Check(condition, error, reported):
                return Check(self.expression(condition), error, self.expression(reported))
            case Allocate(buffer):
                return Allocate(self.buffer(buffer))
        return statement

    def expression(self, node: Expression) -> Expression:
        match node:
            case Load(buffer, indices):
                node = Load(self.buffer(buffer), self.places(indices))
            case Apply(_, operands):
                node = replace(node, operands=tuple(map(self.expression, operands)))
            case FromIndex(at, dtype):
                node = FromIndex(self.place(at), dtype)
            case InRange(at, low, high):
                node = InRange(*self.places((at, low, high)))
        return self.node(node)

    def places(self, indices: Sequence[Index]) -> tuple[Index, ...]:
        return tuple(map(self.place, indices))
