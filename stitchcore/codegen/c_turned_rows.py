"""Transposes: squares of what lanes read across the rows of memory, turned in registers.

Neighbouring lanes of a transpose read elements that lie a row apart, and gcc loads them one by one.
The serial loop around the lanes walks along those rows. So SIDE of its iterations take together
what they read: SIDE pieces of rows, each a vector or two, which shuffles turn into an array that
stays in the first cache; the lanes read that. Nothing that is read ahead is written in the loop, so
this is the same computation in another order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from stitchcore.codegen.c_lane_blocks import block_length, from_zero
from stitchcore.codegen.c_strided_copies import SHUFFLED
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.loop_ir import index
from stitchcore.loop_ir.index import Index, Range, Variable
from stitchcore.loop_ir.layout import flat_index
from stitchcore.loop_ir.nodes import Buffer, Let, Load, Loop, LoopKind, Role, Scope, Statement
from stitchcore.loop_ir.visitor import gather_indices, stores

SIDE = 16
"""Rows and lanes of a square: ST_SIDE of stitch_cpu.h."""

BYTES = (2, 4, 8)
"""Of elements that stitch_cpu.h has shuffles for."""


@dataclass(frozen=True)
class Square:
    """`local` is filled from the place `first` on, lanes `stride` elements apart."""

    local: Buffer
    source: Buffer
    first: Index
    stride: int


@dataclass(frozen=True)
class Turned:
    """What SIDE iterations from the variable `block` on read of `squares`. `body` is one of them
    where the lanes are SIDE: always (`exact`), or where the last block of an axis is not shorter.
    `rest`: whether iterations may be left over."""

    block: Variable
    squares: tuple[Square, ...]
    lanes: Loop
    exact: bool
    rest: bool
    body: tuple[Statement, ...]


def turned(rows: Loop, ranges: Mapping[str, Range]) -> Turned | None:
    """The squares that a serial loop's lanes read, `ranges` those of the variables around them;
    None where they read none."""
    loops = [s for s in rows.body if isinstance(s, Loop)]
    lanes = loops[0] if len(loops) == 1 else None
    if lanes is None or lanes.kind is not LoopKind.LANES or gather_indices(rows.body):
        return None
    length, exact = block_length(lanes, ranges)
    count = index.gather(index.add(rows.end, index.multiply(rows.begin, -1)))
    if length != SIDE or (isinstance(count, int) and count < SIDE):
        return None
    block = Variable(f"{rows.variable}_square")
    written = {store.buffer for store in stores(rows.body)}
    squares: list[Square] = []
    body: list[Statement] = []
    whole = from_zero(lanes, SIDE)
    for statement, short in zip(lanes.body, whole.body, strict=True):
        square = _square(rows, lanes, statement, block)
        if square is not None and square.source not in written and isinstance(short, Let):
            squares.append(square)
            row = index.add(Variable(rows.variable), index.multiply(block, -1))
            short = Let(short.scalar, Load(square.local, (row, Variable(lanes.variable))))
        body.append(short)
    if not squares:
        return None
    whole = replace(whole, body=tuple(body))
    inside = tuple(whole if s is lanes else s for s in rows.body)
    rest = not isinstance(count, int) or count % SIDE != 0 or not exact
    return Turned(block, tuple(squares), lanes, exact, rest, inside)


def _square(rows: Loop, lanes: Loop, statement: Statement, block: Variable) -> Square | None:
    if not (isinstance(statement, Let) and isinstance(statement.value, Load)):
        return None
    load = statement.value
    row, lane = Variable(rows.variable), Variable(lanes.variable)
    place = flat_index(load.buffer, load.indices)
    counts, _ = index.terms(place)
    along, stride = counts.pop(row, 0), counts.pop(lane, 0)
    regular = not any(index.mentions(t, v.name) for t in counts for v in (row, lane))
    if not regular or along != 1 or stride <= SHUFFLED:
        return None
    if DTYPES[load.dtype].bytes not in BYTES:
        return None
    first = index.substitute(place, {row.name: block, lane.name: lanes.begin})
    name, side = f"{statement.scalar.name}_square", (SIDE, SIDE)
    local = Buffer(name, load.dtype, side, Scope.GROUP, Role.LOCAL)
    return Square(local, load.buffer, first, stride)
