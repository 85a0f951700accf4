"""Vectorization: a lane takes neighbouring iterations at once, so that it moves 16 bytes at a time.

On a GPU a warp's load of 16 bytes a lane keeps four times as much under way as one of 4 bytes. All
lane loops of a section deal iterations in runs of the same length, so which lane touches which
element does not depend on it: neither barriers nor the sharing of memory do. A section whose lanes
go through a serial loop in each iteration moves most in there, and that has no runs: more lanes and
their iterations together (codegen/cuda_lanes.py) are worth more.
"""

from __future__ import annotations

from dataclasses import replace

from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.loop_ir import index
from stitchcore.loop_ir.layout import flat_index, is_vector_access
from stitchcore.loop_ir.nodes import Loop, LoopKind, Role, Scope, Section
from stitchcore.loop_ir.visitor import accesses, statements
from stitchcore.schedule.limits import Limits

VECTOR_BYTES = 16

SHORT = 16
"""Iterations of a serial loop that counts for little beside what is around it."""


def vectorize(section: Section, limits: Limits) -> Section:
    """`section` with runs as long as most of what it moves allows."""
    lanes = limits.run_lanes
    if not lanes:
        return section
    if section.scope is Scope.WARP:
        lanes = max(lanes // limits.warps, 1)
    length = VECTOR_BYTES
    while length > 1 and not _pays(section, length, lanes):
        length //= 2
    return replace(section, elements_per_lane=length)


def _pays(section: Section, length: int, lanes: int) -> bool:
    """Whether every lane gets a run of the longest loop, and most bytes are moved in runs."""
    loops = [s for s in statements(section.body) if isinstance(s, Loop)]
    longest = max((_extent(s) for s in loops if s.kind is LoopKind.LANES), default=0)
    if longest < lanes * length or any(map(_goes_through_a_loop, loops)):
        return False
    moved = in_runs = 0
    for loop in loops:
        if loop.kind is not LoopKind.LANES:
            continue
        for access in accesses(loop.body):
            buffer, indices = access.buffer, access.indices
            size = DTYPES[buffer.dtype].bytes
            place = flat_index(buffer, indices)
            if buffer.role is Role.LOCAL or not index.mentions(place, loop.variable):
                continue
            moved += size
            fits = size * length <= VECTOR_BYTES
            in_runs += size * (fits and is_vector_access(loop, buffer, indices, length))
    return in_runs * 2 > moved


def _goes_through_a_loop(loop: Loop) -> bool:
    inner = (s for s in statements(loop.body) if isinstance(s, Loop))
    return loop.kind is LoopKind.LANES and any(_extent(s) > SHORT for s in inner)


def _extent(loop: Loop) -> int:
    """Of a symbolic one it is not known: it counts as long."""
    extent = index.gather(index.add(loop.end, index.multiply(loop.begin, -1)))
    return extent if isinstance(extent, int) else 1 << 30
