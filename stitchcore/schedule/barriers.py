"""Barriers from lane maps: where one lane reads or rewrites what another lane left in GROUP memory.

Lane loops deal iterations to lanes alike, counted from where they begin, so a buffer of which two
of them index one dimension by that count needs nothing between them, whatever its other dimensions
are: an element that both touch is one lane's. Else (read after write, write after read) a barrier
stands before the later loop; inside a serial loop the last iteration's accesses come before the
first's, so a loop that ends with pending accesses of other lanes begins with a barrier. Tasks of a
section are such a loop: a group runs one after another, in the same LOCAL memory. On a machine with
one lane barriers render to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from stitchcore.loop_ir import index
from stitchcore.loop_ir.index import Binary, Index, Variable
from stitchcore.loop_ir.nodes import (
    Barrier,
    Buffer,
    LaneReduce,
    Loop,
    LoopKind,
    Role,
    Scope,
    Section,
    Statement,
    Store,
)
from stitchcore.loop_ir.visitor import accesses, statements


@dataclass(frozen=True)
class LaneMap:
    """Which lane touches which element: the indices over the number of a lane loop's iteration
    (`in_lanes`: there is one); None for an index of which serial loops decide."""

    in_lanes: bool
    indices: tuple[Index | None, ...]

    def same_lane(self, other: LaneMap) -> bool:
        """Whether every element that both touch is touched by one lane."""
        if not (self.in_lanes and other.in_lanes):
            return False
        pairs = zip(self.indices, other.indices, strict=True)
        return any(left is not None and left == right and _injective(left) for left, right in pairs)


@dataclass(frozen=True)
class _Task:
    """What a section's statements stand in: variables of serial loops, the task's range, and whose
    lanes run a task. Buffers of these roles are looked at; in those of the kernel every element is
    written once, before it is read."""

    serial: frozenset[str]
    ranges: Mapping[str, index.Range]
    scope: Scope
    roles: frozenset[Role]


Pending = dict[Buffer, set[tuple[bool, LaneMap]]]
"""Accesses since the last barrier: (writes, lane map) by buffer."""


def insert(section: Section) -> Section:
    """`section` with the barriers its LOCAL buffers need, and those that its own part of the
    kernel's buffers needs: of these no task touches what another one writes."""
    serial = frozenset(
        loop.variable
        for loop in statements(section.body)
        if isinstance(loop, Loop) and loop.kind is LoopKind.SERIAL
    )
    ranges = {section.variable: (0, section.tasks - 1)} if isinstance(section.tasks, int) else {}
    outside = _Task(serial, ranges, section.scope, frozenset((Role.SCRATCH, Role.OUTPUT)))
    body, _ = _body(section.body, {}, outside)
    task = replace(outside, roles=frozenset((Role.LOCAL,)))
    if section.tasks == 1:
        body, _ = _body(body, {}, task)
    else:
        tasks = Loop(section.variable, 0, section.tasks, LoopKind.SERIAL, body)
        body, _ = _serial(tasks, {}, task)
    return replace(section, body=body)


def needs_barrier_before(section: Section) -> bool:
    """Whether the section's LOCAL memory is accessed before a barrier of its own: what lay there
    before it, of another section, has to be done with."""
    return _first(section.body) is False


def _first(body: Sequence[Statement]) -> bool | None:
    """Whether a barrier comes before the first access of LOCAL memory; None without either. Serial
    loops of a task run at least once, here as above."""
    for statement in body:
        waits: bool | None = None
        if isinstance(statement, Loop) and statement.kind is LoopKind.SERIAL:
            waits = _first(statement.body)
        elif isinstance(statement, Barrier | LaneReduce):
            waits = statement.scope is Scope.GROUP or None
        elif any(access.buffer.role is Role.LOCAL for access in accesses((statement,))):
            waits = False
        if waits is not None:
            return waits
    return None


def _body(
    body: Sequence[Statement], pending: Pending, task: _Task
) -> tuple[tuple[Statement, ...], Pending]:
    rewritten: list[Statement] = []
    for statement in body:
        if isinstance(statement, Loop) and statement.kind is LoopKind.SERIAL:
            inner, pending = _serial(statement, pending, task)
            rewritten.append(replace(statement, body=inner))
            continue
        if isinstance(statement, Barrier):
            pending = {}
        touched = _accesses(statement, task)
        if _conflict(pending, touched, task):
            rewritten.append(Barrier(task.scope))
            pending = {}
        if isinstance(statement, LaneReduce) and statement.scope is Scope.GROUP:
            pending = {}
        for buffer, of_buffer in touched.items():
            pending.setdefault(buffer, set()).update(of_buffer)
        rewritten.append(statement)
    return tuple(rewritten), pending


def _serial(loop: Loop, pending: Pending, task: _Task) -> tuple[tuple[Statement, ...], Pending]:
    """A serial loop's body runs after what precedes it and after itself. Barriers that only the
    second of these needs may do the work of earlier ones, which are then taken out."""
    first, after = _body(loop.body, _copy(pending), task)
    earlier = _of_earlier(after, loop.variable)
    repeated, last = _body(first, _merged(_copy(pending), earlier), task)
    if repeated == first:
        return repeated, last
    for count in reversed(range(_barriers(repeated))):
        fewer = replace(loop, body=_without(repeated, count))
        pending_after = _pending_after(fewer, pending, task)
        if pending_after is not None:
            repeated, last = fewer.body, pending_after
    return repeated, last


def _pending_after(loop: Loop, pending: Pending, task: _Task) -> Pending | None:
    """What is pending after a serial loop; None where its body lacks a barrier."""
    first, after = _body(loop.body, _copy(pending), task)
    earlier = _of_earlier(after, loop.variable)
    repeated, last = _body(first, _merged(_copy(pending), earlier), task)
    return last if repeated == loop.body else None


def _of_earlier(pending: Pending, variable: str) -> Pending:
    """What an iteration leaves pending, as a later one sees it: `variable` had another value."""
    names = {variable: Variable(f"earlier {variable}")}

    def earlier(lanes: LaneMap) -> LaneMap:
        renamed = (None if i is None else index.rename(i, names) for i in lanes.indices)
        return replace(lanes, indices=tuple(renamed))

    return {
        buffer: {(writes, earlier(lanes)) for writes, lanes in of_buffer}
        for buffer, of_buffer in pending.items()
    }


def _barriers(body: Sequence[Statement]) -> int:
    return sum(isinstance(statement, Barrier) for statement in statements(body))


def _without(body: Sequence[Statement], number: int) -> tuple[Statement, ...]:
    """`body` less the barrier before which there are `number` others, in the order of the text."""
    remaining: list[Statement] = []
    for statement in body:
        count = _barriers((statement,))
        if 0 <= number < count:
            if isinstance(statement, Loop):
                remaining.append(replace(statement, body=_without(statement.body, number)))
        else:
            remaining.append(statement)
        number -= count
    return tuple(remaining)


def _copy(pending: Pending) -> Pending:
    return {buffer: set(of_buffer) for buffer, of_buffer in pending.items()}


def _merged(left: Pending, right: Pending) -> Pending:
    for buffer, of_buffer in right.items():
        left.setdefault(buffer, set()).update(of_buffer)
    return left


def _conflict(pending: Pending, touched: Pending, task: _Task) -> bool:
    local = Role.LOCAL in task.roles
    return any(
        (wrote or writes if local else wrote and not writes) and not lanes.same_lane(before)
        for buffer, of_buffer in touched.items()
        for writes, lanes in of_buffer
        for wrote, before in pending.get(buffer, ())
    )


def _accesses(statement: Statement, task: _Task) -> Pending:
    """Accesses of a statement (a whole lane loop, or one at row level)."""
    by_buffer: Pending = {}
    names: Mapping[str, Index] = {}
    body: Sequence[Statement] = (statement,)
    in_lanes = isinstance(statement, Loop)
    if isinstance(statement, Loop):
        names = {statement.variable: index.add(statement.begin, _LANE)}
        body = statement.body
    for access in accesses(body):
        if access.buffer.role in task.roles:
            plain = (index.simplify(index.rename(i, names), task.ranges) for i in access.indices)
            sums = map(index.gather, plain)
            fixed = (None if task.serial & index.names(node) else node for node in sums)
            lanes = LaneMap(in_lanes, tuple(fixed))
            by_buffer.setdefault(access.buffer, set()).add((isinstance(access, Store), lanes))
    return by_buffer


_LANE = Variable("lane")
"""Stands for the number of an iteration of whatever lane loop."""


def _injective(node: Index) -> bool:
    """Whether the lane variable can be told from the index: a multiple of it, and something fixed
    added."""
    if isinstance(node, Binary) and node.operator in "+*":
        by_lane = [part for part in (node.left, node.right) if _LANE.name in index.names(part)]
        scaled = node.operator == "*" and not any(
            isinstance(part, int) and part for part in (node.left, node.right)
        )
        return len(by_lane) == 1 and not scaled and _injective(by_lane[0])
    return node == _LANE
