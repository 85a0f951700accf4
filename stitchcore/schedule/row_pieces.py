"""Rows that lie in pieces, each beside its neighbours': [8, 64, 49] summed over 8 and 49.

One row at a time is a piece here and a piece there, a cache line or two of a page each, and nothing
is fetched ahead. So rows that are neighbours are summed together: the loop over the pieces goes
outside, and what it adds up for every lane of every row waits in a LOCAL buffer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from stitchcore.loop_ir import index
from stitchcore.loop_ir.index import Binary, Index, Variable
from stitchcore.loop_ir.layout import flat_index
from stitchcore.loop_ir.nodes import (
    Accumulate,
    Accumulator,
    Allocate,
    Apply,
    Buffer,
    Let,
    Load,
    Loop,
    LoopKind,
    Role,
    Scalar,
    Scope,
    Section,
    Statement,
    Store,
)
from stitchcore.loop_ir.visitor import loads, substituted
from stitchcore.schedule.limits import Limits

NewName = Callable[[str], str]


@dataclass(frozen=True)
class _Rows:
    """A loop over rows: what each adds up, over `outer` pieces of `lanes`, and what follows."""

    loop: Loop
    sums: tuple[Accumulator, ...]
    outer: Loop
    lanes: Loop
    rest: tuple[Statement, ...]


def together(section: Section, limits: Limits, new: NewName) -> Section:
    """`section` with its rows of short pieces added up together, if it has any."""
    allocated: list[Statement] = []
    body = [_rewritten(s, limits, new, allocated) for s in section.body]
    return replace(section, body=(*allocated, *body))


def _rewritten(
    statement: Statement, limits: Limits, new: NewName, allocated: list[Statement]
) -> Statement:
    if not isinstance(statement, Loop) or statement.kind is not LoopKind.SERIAL:
        return statement
    rows = _rows(statement, limits)
    if rows is not None:
        return _blocks(rows, limits, new, allocated)
    body = (_rewritten(inner, limits, new, allocated) for inner in statement.body)
    return replace(statement, body=tuple(body))


def _rows(loop: Loop, limits: Limits) -> _Rows | None:
    """The parts of a loop over rows whose pieces are short and lie side by side."""
    sums = tuple(s for s in loop.body if isinstance(s, Accumulator))
    outer, *rest = loop.body[len(sums) :] or (None,)
    lanes = outer.body[0] if isinstance(outer, Loop) and len(outer.body) == 1 else None
    if not sums or not isinstance(outer, Loop) or not isinstance(lanes, Loop):
        return None
    if (outer.kind, lanes.kind) != (LoopKind.SERIAL, LoopKind.LANES):
        return None
    if lanes.begin != 0 or not all(isinstance(s, Let | Accumulate) for s in lanes.body):
        return None
    pieces, length = (_extent(inner) for inner in (outer, lanes))
    if not 1 < pieces <= limits.max_part_rows or not 0 < length < limits.short_piece:
        return None
    beside = any(_beside(load, loop, outer, lanes, length) for load in loads(lanes.body))
    return _Rows(loop, sums, outer, lanes, tuple(rest)) if beside else None


def _extent(loop: Loop) -> int:
    """Iterations, 0 where that is no number."""
    extent = index.gather(index.add(loop.end, index.multiply(loop.begin, -1)))
    return extent if isinstance(extent, int) else 0


def _most(rows: Loop) -> int:
    """Rows of a task, but where the last has fewer, or of any; as many as there may be if that is
    no number."""
    end = rows.end.left if isinstance(rows.end, Binary) and rows.end.operator == "min" else rows.end
    return _extent(replace(rows, end=end)) or sys.maxsize


def _beside(load: Load, rows: Loop, outer: Loop, lanes: Loop, length: int) -> bool:
    """Whether a row's piece ends where its neighbour's begins, and the row's next is elsewhere."""
    place = flat_index(load.buffer, load.indices)
    origin = dict.fromkeys(index.names(place), 0)

    def step(loop: Loop) -> int:
        return index.evaluate(place, {**origin, loop.variable: 1}) - index.evaluate(place, origin)

    return step(lanes) == 1 and step(rows) == length and step(outer) > length


def _blocks(rows: _Rows, limits: Limits, new: NewName, allocated: list[Statement]) -> Loop:
    """Blocks of rows: neutral elements, then all pieces of all rows, then what follows by row."""
    loop, lanes = rows.loop, rows.lanes
    length = _extent(lanes)
    size = min(max(limits.lane_block // (length * len(rows.sums)), 1), _most(loop))
    block, count = Variable(new("block")), index.add(loop.end, index.multiply(loop.begin, -1))
    first = index.add(loop.begin, index.multiply(block, size))
    last = index.minimum(index.add(first, size), loop.end)
    places: dict[Scalar, Buffer] = {}
    for each in rows.sums:
        name, dims = new("local"), (size, length)
        places[each.scalar] = Buffer(name, each.scalar.dtype, dims, Scope.GROUP, Role.LOCAL)
    allocated += map(Allocate, places.values())

    def over(body: Callable[[Index, Index], Iterable[Statement]], row: str, lane: str) -> Loop:
        at = index.add(Variable(row), index.multiply(first, -1))
        inner = tuple(body(at, Variable(lane)))
        along = Loop(lane, lanes.begin, lanes.end, LoopKind.LANES, inner)
        return Loop(row, first, last, LoopKind.SERIAL, (along,))

    def clear(at: Index, lane: Index) -> Iterable[Statement]:
        for each in rows.sums:
            neutral = Scalar(new("a"), each.scalar.dtype)
            yield Accumulator(neutral, each.reducer)
            yield Store(places[each.scalar], (at, lane), neutral)

    row, lane = new("row"), new("lane")

    def add(at: Index, lane: Index) -> Iterable[Statement]:
        names = {loop.variable: Variable(row), lanes.variable: lane}
        for s in substituted(lanes.body, names):
            if isinstance(s, Accumulate):
                place = places[s.scalar]
                sum_ = Apply(s.reducer, (Load(place, (at, lane)), s.value), place.dtype)
                s = Store(place, (at, lane), sum_)
            yield s

    def read(at: Index, lane: Index) -> Iterable[Statement]:
        for each in rows.sums:
            value = Scalar(new("v"), each.scalar.dtype)
            yield Let(value, Load(places[each.scalar], (at, lane)))
            yield Accumulate(each.scalar, each.reducer, value)

    summed = replace(rows.outer, body=(over(add, row, lane),))
    one = over(read, loop.variable, new("lane"))
    finished = replace(one, body=(*rows.sums, *one.body, *rows.rest))
    body = (over(clear, new("row"), new("lane")), summed, finished)
    blocks = index.ceil_divide(index.gather(count), size)
    return Loop(block.name, 0, blocks, LoopKind.SERIAL, body)
