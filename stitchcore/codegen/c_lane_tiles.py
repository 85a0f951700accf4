"""Lane loops around serial loops, cut so that compilers vectorise them: tiles of lanes, in pieces.

A C compiler vectorises innermost loops. `lanes i { A; serial s { B }; C }` therefore becomes, for
each tile of lanes, `simd i { A }`, `for s { simd i { B } }`, `simd i { C }`. Scalars that one piece
defines and another uses live in arrays of a tile's length. Lanes are independent, so this is the
same computation in another order. A lane takes TOGETHER iterations of an innermost serial loop at a
time (unroll and jam), and keeps what they add up in a register meanwhile. Where rows one after the
other read the same again, as those of a matrix product do, and it is too much for the first cache,
a tile has several rows: each reads these iterations' share before the next share is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stitchcore.loop_ir import index
from stitchcore.loop_ir.index import Index
from stitchcore.loop_ir.nodes import (
    Accumulator,
    Barrier,
    Buffer,
    If,
    Let,
    Loop,
    LoopKind,
    Scalar,
    Statement,
)
from stitchcore.loop_ir.visitor import (
    gather_indices,
    loads,
    outer_accumulators,
    own_scalars,
    statements,
    stores,
)

UNROLLED = 16
"""A serial loop of at most so many iterations is unrolled inside its lane loop instead."""

TOGETHER = 8
"""Of 4, 8, 16 and 32 the quickest for sums of 50 to 256 products, with AVX2 and AVX-512."""

ROW_BYTES = 16384
"""What the lanes' serial loop may read for one row and find in the first cache for the next."""

TILE_ELEMENTS = 1024
"""Of a tile of several rows."""

WORD_BYTES = 4

_PREFERRED, _LARGEST, _VECTOR = 256, 512, 16


@dataclass(frozen=True)
class Pieces:
    """A body cut into runs of plain statements and serial loops, in order."""

    parts: tuple[tuple[Statement, ...] | Loop, ...]


def unrolled(loop: Loop) -> bool:
    """Whether a serial loop inside a lane loop is short enough to unroll."""
    extent = _extent(loop)
    return isinstance(extent, int) and extent <= UNROLLED


def _extent(loop: Loop) -> Index:
    return index.add(loop.end, index.multiply(loop.begin, -1))


def needs_tiles(loop: Loop) -> bool:
    """Whether `loop` (of lanes) holds a serial loop to be turned inside out, and it may be."""
    inner = [s for s in statements(loop.body) if isinstance(s, Loop) and not unrolled(s)]
    conditional = any(
        isinstance(s, If) and any(isinstance(t, Loop) for t in statements(s.body))
        for s in statements(loop.body)
    )
    varying = any(index.mentions(bound, loop.variable) for s in inner for bound in (s.begin, s.end))
    if gather_indices(loop.body):  # an index has no array of a tile's length
        return False
    return bool(inner) and not conditional and not varying


def jams(loop: Loop) -> bool:
    """Whether lanes take several iterations of a serial loop at a time: an innermost one."""
    return not any(isinstance(s, Loop) for s in statements(loop.body))


def rows_together(rows: Loop, shared: frozenset[Buffer]) -> int:
    """Rows of a tile of the lane loop that is all of `rows`' body; 1 where each is on its own: no
    row may see what another leaves, and none stores to what is `shared` with an input."""
    body = [s for s in rows.body if not isinstance(s, Barrier)]
    lanes = body[0] if len(body) == 1 else None
    if not isinstance(lanes, Loop) or lanes.kind is not LoopKind.LANES:
        return 1
    stored = {store.buffer for store in stores(lanes.body)}
    apart = not stored & {load.buffer for load in loads(lanes.body)} and not stored & shared
    bounds = any(index.mentions(bound, rows.variable) for bound in (lanes.begin, lanes.end))
    if not needs_tiles(lanes) or not apart or bounds or outer_accumulators(lanes):
        return 1
    size = tile_size(lanes.begin, lanes.end)
    serial = [_extent(s) for s in statements(lanes.body) if isinstance(s, Loop)]
    longest = max(e if isinstance(e, int) else ROW_BYTES for e in serial)
    return 1 if longest * size * WORD_BYTES <= ROW_BYTES else max(TILE_ELEMENTS // size, 1)


def cut(body: Sequence[Statement]) -> Pieces:
    """The pieces of a body."""
    parts: list[tuple[Statement, ...] | Loop] = []
    run: list[Statement] = []
    for statement in body:
        if isinstance(statement, Loop) and not unrolled(statement):
            if run:
                parts.append(tuple(run))
            parts.append(statement)
            run = []
        else:
            run.append(statement)
    if run:
        parts.append(tuple(run))
    return Pieces(tuple(parts))


def spread(body: Sequence[Statement]) -> frozenset[Scalar]:
    """Scalars that one piece of `body` defines and another piece, or a loop among them, uses."""
    scalars: set[Scalar] = set()
    parts = cut(body).parts
    for part in parts:
        if isinstance(part, Loop):
            scalars |= spread(part.body)
            continue
        defined = {s.scalar for s in part if isinstance(s, Let | Accumulator)}
        others = [p for p in parts if p is not part]
        scalars |= {scalar for scalar in defined if any(_mentions(p, scalar) for p in others)}
    return frozenset(scalars)


def tile_size(begin: Index, end: Index) -> int:
    """Lanes of a tile: a multiple of a vector that divides a static extent, where there is one, or
    all of a short one."""
    extent = index.add(end, index.multiply(begin, -1))
    if isinstance(extent, int):
        for size in range(_LARGEST, _VECTOR - 1, -_VECTOR):
            if extent % size == 0:
                return size
        if 0 < extent <= _LARGEST:
            return extent
    return _PREFERRED


def _mentions(part: Sequence[Statement] | Loop, scalar: Scalar) -> bool:
    body = part.body if isinstance(part, Loop) else part
    return any(scalar in own_scalars(statement) for statement in statements(body))
