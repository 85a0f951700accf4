"""What the C renderer needs to act on cache hints: streamed stores and prefetches of a lane loop.

A streamed store writes a tile that stays in the first cache, or straight to the buffer where the
hint does not hold in this call; afterwards the tile goes past the caches line by line. Prefetches
of a lane loop are issued as whole ranges after it, so that the loop itself stays a plain loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.loop_ir import index
from stitchcore.loop_ir.index import Index, Variable
from stitchcore.loop_ir.nodes import Buffer, Loop, Prefetch, Store

NEAR_BYTES = 16384
"""Longest lane loop whose prefetched elements go to the first cache; else to the second."""


def streamed(loop: Loop) -> tuple[Store, ...]:
    """Stores of a lane loop's own body that may go past the caches."""
    return tuple(s for s in loop.body if isinstance(s, Store) and s.streams is not None)


def prefetched(loop: Loop) -> tuple[Prefetch, ...]:
    """Prefetches of a lane loop's own body."""
    return tuple(s for s in loop.body if isinstance(s, Prefetch))


def hinted(loop: Loop) -> bool:
    """Whether a lane loop is best run in blocks because of its hints."""
    return bool(streamed(loop) or prefetched(loop))


def at_lane(indices: Sequence[Index], lane: str, position: str) -> tuple[Index, ...]:
    """`indices` with the text `position` for the lane variable."""
    value: Index = Variable(f"({position})") if " " in position else Variable(position)
    if position.isdigit():
        value = int(position)
    return tuple(index.substitute(node, {lane: value}) for node in indices)


def bytes_text(buffer: Buffer, begin: str, end: str) -> str:
    """C text of the bytes that lanes [begin, end) have in `buffer`."""
    size = DTYPES[buffer.dtype].bytes
    if begin.isdigit() and end.isdigit():
        return str((int(end) - int(begin)) * size)
    return f"({end} - ({begin})) * {size}"


def prefetch_function(loop: Loop, buffer: Buffer) -> str:
    """The helper that brings the lanes of `loop` in `buffer` nearer."""
    extent = index.add(loop.end, index.multiply(loop.begin, -1))
    near = isinstance(extent, int) and extent * DTYPES[buffer.dtype].bytes <= NEAR_BYTES
    return "st_prefetch_near" if near else "st_prefetch_far"
