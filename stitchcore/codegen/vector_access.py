"""Which accesses of a lane loop move a whole run at once: read off the loop, nothing is decided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.loop_ir.index import Index
from stitchcore.loop_ir.layout import is_run
from stitchcore.loop_ir.nodes import Buffer, If, Load, Loop, Scope, Statement, Store
from stitchcore.loop_ir.visitor import expressions, statements

VECTOR_BYTES = 16
"""The widest load and store of a thread."""

Place = tuple[Buffer, tuple[Index, ...]]


@dataclass(frozen=True)
class Runs:
    """Places that are loaded before a run's iterations, and stored after them; each once."""

    loads: tuple[Place, ...]
    stores: tuple[Place, ...]


def of(loop: Loop, length: int) -> Runs:
    """Of runs of `length` iterations of `loop`.

    Loads are done early and stores late, so a buffer that is read after it was written in the same
    iteration stays as it is; so does what stands under a condition or in a loop of its own.
    """
    if length == 1:
        return Runs((), ())
    late = frozenset(_read_late(loop))
    plain = [s for s in loop.body if not isinstance(s, Loop | If)]
    loads = [(e.buffer, e.indices) for e in expressions(plain) if isinstance(e, Load)]
    stores = [(s.buffer, s.indices) for s in plain if isinstance(s, Store)]
    written = Counter(_stored(loop.body))

    def whole(place: Place) -> bool:
        buffer, indices = place
        memory = buffer.scope is not Scope.LANE
        fits = memory and DTYPES[buffer.dtype].bytes * length <= VECTOR_BYTES
        return fits and buffer not in late and is_run(loop, buffer, indices, length)

    return Runs(
        tuple(dict.fromkeys(place for place in loads if whole(place))),
        tuple(place for place in stores if whole(place) and written[place[0]] == 1),
    )


def _stored(body: tuple[Statement, ...]) -> Iterator[Buffer]:
    return (s.buffer for s in statements(body) if isinstance(s, Store))


def _read_late(loop: Loop) -> Iterator[Buffer]:
    """Buffers that are read by a statement after one that writes them."""
    written: set[Buffer] = set()
    for statement in loop.body:
        for node in expressions((statement,)):
            if isinstance(node, Load) and node.buffer in written:
                yield node.buffer
        written |= set(_stored((statement,)))
