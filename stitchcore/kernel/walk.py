"""Walks over statements and expressions that checks and renderers share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stitchcore.kernel.nodes import (
    Accumulate,
    Accumulator,
    Apply,
    Buffer,
    Check,
    Expression,
    If,
    Let,
    Load,
    Loop,
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
