"""Walks over statements and expressions that checks and renderers share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from stitchcore.kernel import index
from stitchcore.kernel.index import Index
from stitchcore.kernel.nodes import (
    Accumulate,
    Accumulator,
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
            case Let() | Store() | Accumulate():
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
    return tuple(_statement(statement, values) for statement in body)


def _statement(statement: Statement, values: Mapping[str, Index]) -> Statement:
    match statement:
        case Let(scalar, value):
            return Let(scalar, _expression(value, values))
        case Accumulate(scalar, reducer, value):
            return Accumulate(scalar, reducer, _expression(value, values))
        case Store(_, indices, value):
            at = _indices(indices, values)
            return replace(statement, indices=at, value=_expression(value, values))
        case Prefetch(buffer, indices):
            return Prefetch(buffer, _indices(indices, values))
        case Loop(_, begin, end):
            begin, end = _indices((begin, end), values)
            return replace(
                statement, begin=begin, end=end, body=substituted(statement.body, values)
            )
        case If(condition, body):
            return If(_expression(condition, values), substituted(body, values))
        case Check(condition, error, reported):
            return Check(_expression(condition, values), error, _expression(reported, values))
    return statement


def _expression(node: Expression, values: Mapping[str, Index]) -> Expression:
    match node:
        case Load(buffer, indices):
            return Load(buffer, _indices(indices, values))
        case Apply(_, operands):
            return replace(node, operands=tuple(_expression(o, values) for o in operands))
        case FromIndex(at, dtype):
            return FromIndex(index.substitute(at, values), dtype)
        case InRange(at, low, high):
            return InRange(*_indices((at, low, high), values))
    return node


def _indices(indices: Sequence[Index], values: Mapping[str, Index]) -> tuple[Index, ...]:
    return tuple(index.substitute(one, values) for one in indices)
