"""Walks over the loop IR, and the one way to rebuild it: by the children that nodes declare.

What defines what nodes mean (text, reader, check, interpreter, renderers) is a match over their
kinds instead, and what carries an environment or an order of loops goes through bodies itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from stitchcore.loop_ir.index import Index, substitute
from stitchcore.loop_ir.nodes import (
    Accumulate,
    Accumulator,
    Buffer,
    Expression,
    GatherIndex,
    LaneReduce,
    Load,
    Loop,
    Node,
    Scalar,
    Section,
    Statement,
    Store,
)


def statements(body: Iterable[Statement]) -> Iterator[Statement]:
    """Every statement of `body`, nested ones too, in text order."""
    for statement in body:
        yield statement
        if statement.body_fields:
            yield from statements(_children(statement, statement.body_fields))


def expressions(body: Sequence[Statement]) -> Iterator[Expression]:
    """Every expression of `body`, operands after users; shared ones once a use."""
    return _with_operands([e for s in statements(body) for e in _children(s, s.expression_fields)])


def own_expressions(statement: Statement) -> Iterator[Expression]:
    """Every expression of a statement, less those of statements in it; operands after users."""
    return _with_operands([*_children(statement, statement.expression_fields)])


def _with_operands(stack: list[Expression]) -> Iterator[Expression]:
    while stack:
        node = stack.pop()
        yield node
        stack.extend(_children(node, node.expression_fields))


def _children(node: Node, fields: tuple[str, ...]) -> Iterator[Any]:
    for field in fields:
        value = getattr(node, field)
        if isinstance(value, tuple):
            yield from value
        else:
            yield value


def own_indices(node: Node) -> Iterator[Index]:
    """Indices of an expression or statement, less those of what is in it."""
    return _children(node, node.index_fields)


# ---- what statements touch -----------------------------------------------------------------------
def loads(body: Sequence[Statement]) -> Iterator[Load]:
    """Every load of `body`, in the order of `expressions`."""
    return (node for node in expressions(body) if isinstance(node, Load))


def stores(body: Sequence[Statement]) -> Iterator[Store]:
    """Every store of `body`, in text order."""
    return (statement for statement in statements(body) if isinstance(statement, Store))


def accesses(body: Sequence[Statement]) -> Iterator[Load | Store]:
    """Every load of `body`, then every store."""
    yield from loads(body)
    yield from stores(body)


def own_accesses(statement: Statement) -> Iterator[Load | Store]:
    """What a statement, less those in it, loads, and then stores."""
    yield from (node for node in own_expressions(statement) if isinstance(node, Load))
    if isinstance(statement, Store):
        yield statement


def buffers_of(section: Section) -> tuple[frozenset[Buffer], frozenset[Buffer]]:
    """Buffers that a section reads, and those it writes (LOCAL ones included)."""
    read = frozenset(load.buffer for load in loads(section.body))
    return read, frozenset(store.buffer for store in stores(section.body))


def own_scalars(statement: Statement) -> Iterator[Scalar]:
    """Scalars that a statement, less those in it, reads or updates."""
    if isinstance(statement, Accumulate | LaneReduce):
        yield statement.scalar
    yield from (node for node in own_expressions(statement) if isinstance(node, Scalar))


def gather_indices(body: Sequence[Statement]) -> frozenset[str]:
    """Index variables that data decides somewhere in `body`: they differ between the iterations of
    a loop with that body in a way that nothing tells beforehand."""
    return frozenset(s.variable for s in statements(body) if isinstance(s, GatherIndex))


def outer_accumulators(
    loop: Loop, private: frozenset[Scalar] = frozenset()
) -> tuple[Accumulate, ...]:
    """One Accumulate for each scalar defined outside `loop` that its body accumulates into.

    `private` scalars are the lanes' own, wherever they are defined.
    """
    inside = {s.scalar for s in statements(loop.body) if isinstance(s, Accumulator)} | private
    updates: dict[Scalar, Accumulate] = {}
    for statement in statements(loop.body):
        if isinstance(statement, Accumulate) and statement.scalar not in inside:
            updates.setdefault(statement.scalar, statement)
    return tuple(updates.values())


# ---- rebuilding ----------------------------------------------------------------------------------
def substituted(body: Sequence[Statement], values: Mapping[str, Index]) -> tuple[Statement, ...]:
    """`body` with index variables replaced by their `values`, where these have one."""
    return mapped(body, index=lambda node: substitute(node, values))


def mapped(
    body: Sequence[Statement],
    buffer: Callable[[Buffer], Buffer] = lambda same: same,
    index: Callable[[Index], Index] = lambda same: same,
    expression: Callable[[Expression], Expression] = lambda same: same,
) -> tuple[Statement, ...]:
    """`body` with every buffer, index and expression mapped, expressions after their parts."""
    mapping = _Mapping(buffer, index, expression)
    return tuple(map(mapping.rebuilt, body))


_Kind = TypeVar("_Kind", bound=Node)


@dataclass(frozen=True)
class _Mapping:
    buffer: Callable[[Buffer], Buffer]
    index: Callable[[Index], Index]
    expression: Callable[[Expression], Expression]

    def rebuilt(self, node: _Kind) -> _Kind:
        """`node` with its children mapped, itself not."""
        changes: dict[str, Any] = {}
        for fields, change in (
            (node.expression_fields, lambda part: self.expression(self.rebuilt(part))),
            (node.index_fields, self.index),
            (node.buffer_fields, self.buffer),
            (node.body_fields, self.rebuilt),
        ):
            for field in fields:
                value = getattr(node, field)
                several = isinstance(value, tuple)
                changes[field] = tuple(map(change, value)) if several else change(value)
        return replace(node, **changes) if changes else node  # type: ignore[type-var]
