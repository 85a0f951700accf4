"""What a lane loop moves with a stride, moved in loops of its own, so that the rest is vectors.

gcc leaves a whole loop scalar, with an exponential in it, where one load of a transposed value
would have to be put together of single elements. So such loads fill an array first, one by one,
and such stores empty one afterwards; both arrays stay in the first cache. Lanes are independent and
nothing that is read ahead or written late is touched otherwise in the loop, so this is the same
computation in another order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from stitchcore.hlo.ir import opcodes
from stitchcore.loop_ir import index
from stitchcore.loop_ir.index import Range, Variable
from stitchcore.loop_ir.layout import flat_index
from stitchcore.loop_ir.nodes import Apply, Let, Load, Loop, Store
from stitchcore.loop_ir.visitor import expressions, gather_indices, loads, stores

LEAST_WORK = 5
"""Simple operations an element from which arrays pay: below, their own traffic takes as long. A
division, a product and a choice between two take 0.3 of the time with them."""

SHUFFLED = 4
"""Strides up to this many elements are whole vectors and shuffles to compilers."""


@dataclass(frozen=True)
class Staged:
    """Loads of a lane loop that come before it, and stores that come after it, in text order."""

    loads: tuple[Let, ...] = ()
    stores: tuple[Store, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.loads or self.stores)


def staged(loop: Loop, ranges: Mapping[str, Range]) -> Staged:
    """What of a lane loop's own body is better moved apart from it, within loops of `ranges`."""
    if _work(loop) < LEAST_WORK:
        return Staged()
    read = {load.buffer for load in loads(loop.body)}
    written = Counter(store.buffer for store in stores(loop.body))
    early = tuple(
        s
        for s in loop.body
        if isinstance(s, Let)
        and isinstance(s.value, Load)
        and s.value.buffer not in written
        and _strided(loop, s.value, ranges)
    )
    late = tuple(
        s
        for s in loop.body
        if isinstance(s, Store)
        and s.streams is None
        and s.buffer not in read
        and written[s.buffer] == 1
        and _strided(loop, s, ranges)
    )
    return Staged(early, late)


def _work(loop: Loop) -> int:
    applied = (e for e in expressions(loop.body) if isinstance(e, Apply))
    return sum(opcodes.record(operation.opcode).flops for operation in applied)


def _strided(loop: Loop, access: Load | Store, ranges: Mapping[str, Range]) -> bool:
    """Whether neighbouring lanes touch elements that are no few whole vectors together."""
    indices = [index.simplify(node, ranges) for node in access.indices]
    place, lane = flat_index(access.buffer, indices), Variable(loop.variable)
    if not index.mentions(place, lane.name) or index.names(place) & gather_indices(loop.body):
        return False
    counts, _ = index.terms(place)
    stride = counts.pop(lane, 0)
    regular = not any(index.mentions(term, lane.name) for term in counts)
    return not (regular and abs(stride) <= SHUFFLED)
