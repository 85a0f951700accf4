"""Rows that walk memory backwards, a short way each: an image flipped, whose pixels are rows.

Processors that fetch ahead follow one direction. Where a run of a few hundred bytes is touched from
its end and the next one lies behind it, they see to neither, and every line is waited for: what
such rows touch is asked for two kilobytes before it is wanted. Where all that rows do is to move
groups of elements, those of a run are turned by shuffles, a vector of them at a time (st_flip of
stitch_cpu.h).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stitchcore.codegen.c_row_digits import Counted
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.loop_ir import index
from stitchcore.loop_ir.index import Index, Variable
from stitchcore.loop_ir.layout import flat_index
from stitchcore.loop_ir.nodes import Barrier, Buffer, Let, Load, Loop, LoopKind, Role, Store
from stitchcore.loop_ir.visitor import accesses, gather_indices

AHEAD_BYTES = 2048
"""From what is touched now to what is asked for: measured, half of it comes too late."""

LONGEST_RUN = 4096
"""Bytes of a run that is walked backwards, above which the processor itself follows it."""

LARGEST_GROUP = 15
"""Elements of a group; what fills a vector is moved as one."""

FLIPPED_BYTES = (4, 8)
"""Of elements that stitch_cpu.h turns groups of."""


@dataclass(frozen=True)
class Ahead:
    """Rows that walk backwards from here will touch `size` bytes from `place` on."""

    buffer: Buffer
    place: Index
    size: int


@dataclass(frozen=True)
class Flip:
    """Rows that only move a group of elements each, from a place of one buffer to one of another:
    the source's falls from row to row and the target's rises, or the other way round."""

    source: tuple[Buffer, Index]
    target: tuple[Buffer, Index]
    source_falls: bool
    group: int


@dataclass(frozen=True)
class _Walk:
    """What lanes touch from `place` on: `step` elements further in the next row of a run, `run` in
    the same row of the next one, and `lane` in the next lane."""

    place: Index
    step: int
    run: int
    lane: int


def ahead(rows: Counted) -> tuple[Ahead, ...]:
    """What rows of a counted loop will touch that walk backwards in short runs, each once."""
    return tuple(
        dict.fromkeys(
            Ahead(access.buffer, place, size)
            for loop in _lane_loops(rows)
            for access in accesses(loop.body)
            if access.buffer.role is not Role.LOCAL
            and (walk := _walk(rows, loop, access.buffer, access.indices)) is not None
            and (place := _place_ahead(rows, access.buffer, walk)) is not None
            and (size := _bytes(loop, access.buffer)) is not None
        )
    )


def flip(rows: Counted) -> Flip | None:
    """The groups that a counted loop moves and nothing else, where they come in the other order."""
    match [s for s in rows.loop.body if not isinstance(s, Barrier)]:
        case [Loop(begin=0, end=int() as group, kind=LoopKind.LANES) as loop] if (
            1 < group <= LARGEST_GROUP
        ):
            pass
        case _:
            return None
    match loop.body:
        case (Let(scalar, Load() as load), Store(value=value, streams=None) as store):
            source = _walk(rows, loop, load.buffer, load.indices)
            target = _walk(rows, loop, store.buffer, store.indices)
        case _:
            return None
    if value != scalar or source is None or target is None:
        return None
    dense = source.lane == target.lane == 1 and {source.step, target.step} == {group, -group}
    alike = load.buffer != store.buffer and load.buffer.dtype == store.buffer.dtype
    if not dense or not alike or DTYPES[load.buffer.dtype].bytes not in FLIPPED_BYTES:
        return None
    return Flip((load.buffer, source.place), (store.buffer, target.place), source.step < 0, group)


def _lane_loops(rows: Counted) -> Iterator[Loop]:
    """Loops over lanes directly in the rows, with none inside."""
    for loop in rows.loop.body:
        if isinstance(loop, Loop) and loop.kind is LoopKind.LANES:
            if not any(isinstance(s, Loop) for s in loop.body):
                yield loop


def _walk(rows: Counted, loop: Loop, buffer: Buffer, indices: Sequence[Index]) -> _Walk | None:
    """How rows walk along a buffer; None where that is not the same from row to row."""
    fast, slow = (Variable(digit.variable) for digit in rows.digits[:2])
    row, lane = Variable(rows.loop.variable), Variable(loop.variable)
    place = flat_index(buffer, indices)
    counts, _ = index.terms(place)
    steps = [counts.pop(variable, 0) for variable in (fast, row, slow, lane)]
    names = {fast.name, row.name, lane.name, *gather_indices(rows.loop.body)}
    if any(index.names(term) & names for term in counts):
        return None
    at = index.substitute(place, {lane.name: loop.begin})
    return _Walk(at, steps[0] + steps[1], steps[2], steps[3])


def _place_ahead(rows: Counted, buffer: Buffer, walk: _Walk) -> Index | None:
    """Where rows will be that walk backwards in short runs."""
    slow, radix, size = rows.digits[1], rows.digits[0].radix, DTYPES[buffer.dtype].bytes
    short = radix is not None and 0 < -walk.step * radix * size <= LONGEST_RUN
    if not short or walk.run == 0 or index.mentions(walk.place, rows.loop.variable):
        return None
    runs = -(-AHEAD_BYTES // (abs(walk.run) * size))
    later = {slow.variable: index.add(Variable(slow.variable), runs)}
    return index.substitute(walk.place, later)


def _bytes(loop: Loop, buffer: Buffer) -> int | None:
    extent = index.add(loop.end, index.multiply(loop.begin, -1))
    return extent * DTYPES[buffer.dtype].bytes if isinstance(extent, int) else None
