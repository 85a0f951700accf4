"""Which accesses of a lane loop move a whole run at once: read off the loop, nothing is decided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.loop_ir.index import Index
from stitchcore.loop_ir.layout import is_vector_access
from stitchcore.loop_ir.nodes import Buffer, If, Load, Loop, Scope, Store
from stitchcore.loop_ir.visitor import loads, stores

VECTOR_BYTES = 16
"""The widest load and store of a thread."""

Place = tuple[Buffer, tuple[Index, ...]]


@dataclass(frozen=True)
class VectorAccesses:
    """Places that are loaded before a run's iterations, and stored after them; each once."""

    loads: tuple[Place, ...]
    stores: tuple[Place, ...]


def of(loop: Loop, length: int) -> VectorAccesses:
    """Of runs of `length` iterations of `loop`.

    Loads are done early and stores late, so a buffer that is read after it was written in the same
    iteration stays as it is; so does what stands under a condition or in a loop of its own.
    """
    if length == 1:
        return VectorAccesses((), ())
    late = frozenset(_read_late(loop))
    plain = [s for s in loop.body if not isinstance(s, Loop | If)]
    written = Counter(store.buffer for store in stores(loop.body))

    def whole(place: Place) -> bool:
        buffer, indices = place
        memory = buffer.scope is not Scope.LANE
        fits = memory and DTYPES[buffer.dtype].bytes * length <= VECTOR_BYTES
        return fits and buffer not in late and is_vector_access(loop, buffer, indices, length)

    return VectorAccesses(
        tuple(dict.fromkeys(place for place in map(_place, loads(plain)) if whole(place))),
        tuple(
            place for place in map(_place, stores(plain)) if whole(place) and written[place[0]] == 1
        ),
    )


def _place(access: Load | Store) -> Place:
    return access.buffer, access.indices


def _read_late(loop: Loop) -> Iterator[Buffer]:
    """Buffers that are read by a statement after one that writes them."""
    written: set[Buffer] = set()
    for statement in loop.body:
        yield from (load.buffer for load in loads((statement,)) if load.buffer in written)
        written |= {store.buffer for store in stores((statement,))}
