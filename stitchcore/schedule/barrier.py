"""Barriers from lane maps: where one lane reads or rewrites what another lane left in GROUP memory.

Two lane loops over the same range deal iterations to lanes alike, so a buffer that both index by
their own variable in the same way needs nothing between them. Where the maps differ (read after
write, write after read), a barrier stands before the later loop; inside a serial loop the last
iteration's accesses come before the first's, so a loop that ends with pending accesses whose maps
differ begins with a barrier. On a machine with one lane barriers render to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from stitchcore.kernel.index import Binary, Index, Variable
from stitchcore.kernel.nodes import (
    Accumulate,
    Apply,
    Barrier,
    Buffer,
    Combine,
    Expression,
    If,
    Let,
    Load,
    Loop,
    LoopKind,
    Role,
    Scope,
    Section,
    Statement,
    Store,
)

LaneMap = tuple[object, ...]
"""Which lane touches which element: the lane loop's range and the indices over its variable."""

Pending = dict[Buffer, set[tuple[bool, LaneMap]]]
"""Accesses since the last barrier: (writes, lane map) by LOCAL buffer."""


def insert(section: Section) -> Section:
    """`section` with the barriers its LOCAL buffers need."""
    body, _ = _body(section.body, {})
    return replace(section, body=body)


def _body(body: Sequence[Statement], pending: Pending) -> tuple[tuple[Statement, ...], Pending]:
    made: list[Statement] = []
    for statement in body:
        if isinstance(statement, Loop) and statement.kind is LoopKind.SERIAL:
            inner, pending = _serial(statement, pending)
            made.append(replace(statement, body=inner))
            continue
        if isinstance(statement, Barrier):
            pending = {}
        accesses = _accesses(statement)
        if _conflict(pending, accesses):
            made.append(Barrier(Scope.GROUP))
            pending = {}
        if isinstance(statement, Combine) and statement.scope is Scope.GROUP:
            pending = {}
        for buffer, found in accesses.items():
            pending.setdefault(buffer, set()).update(found)
        made.append(statement)
    return tuple(made), pending


def _serial(loop: Loop, pending: Pending) -> tuple[tuple[Statement, ...], Pending]:
    """A serial loop's body runs after what precedes it and after itself."""
    first, after = _body(loop.body, _copy(pending))
    again, last = _body(first, _merged(_copy(pending), after))
    return again, last


def _copy(pending: Pending) -> Pending:
    return {buffer: set(found) for buffer, found in pending.items()}


def _merged(left: Pending, right: Pending) -> Pending:
    for buffer, found in right.items():
        left.setdefault(buffer, set()).update(found)
    return left


def _conflict(pending: Pending, accesses: Pending) -> bool:
    return any(
        (writes or wrote) and lanes != before
        for buffer, found in accesses.items()
        for writes, lanes in found
        for wrote, before in pending.get(buffer, ())
    )


def _accesses(statement: Statement) -> Pending:
    """LOCAL accesses of a statement (a whole lane loop, or one at row level)."""
    found: Pending = {}
    names: Mapping[str, Index] = {}
    head: tuple[object, ...] = ("uniform",)
    body: Sequence[Statement] = (statement,)
    if isinstance(statement, Loop):
        names = {statement.variable: Variable("lane")}
        head = ("lanes", statement.begin, statement.end)
        body = statement.body
    for buffer, indices, writes in _touched(body):
        if buffer.role is Role.LOCAL:
            lanes = (*head, *(_renamed(i, names) for i in indices))
            found.setdefault(buffer, set()).add((writes, lanes))
    return found


def _touched(body: Sequence[Statement]) -> Iterator[tuple[Buffer, tuple[Index, ...], bool]]:
    for statement in body:
        match statement:
            case Loop() | If():
                yield from _touched(statement.body)
            case Store(buffer, indices, value):
                yield from ((e.buffer, e.indices, False) for e in _loads(value))
                yield buffer, indices, True
            case Let(_, value) | Accumulate(_, _, value):
                yield from ((e.buffer, e.indices, False) for e in _loads(value))


def _loads(value: Expression) -> Iterator[Load]:
    stack = [value]
    while stack:
        node = stack.pop()
        if isinstance(node, Load):
            yield node
        elif isinstance(node, Apply):
            stack.extend(node.operands)


def _renamed(node: Index, names: Mapping[str, Index]) -> Index:
    if isinstance(node, Variable):
        return names.get(node.name, node)
    if isinstance(node, Binary):
        return Binary(node.operator, _renamed(node.left, names), _renamed(node.right, names))
    return node
