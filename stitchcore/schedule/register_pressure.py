"""How many registers a thread of a kernel will need, before there is a compiler's word on it.

What lives at once in a lane (scalars between definition and last use, the lanes' own rows, the runs
that a lane loop has under way), and how much else there is to keep addresses for, put on a scale by
what NVRTC 12.9 used for 445 kernels of the workloads on sm_90 (least squares, r = 0.80;
bench.cuda_compile has the figures of the day). The root is because a compiler orders work so that
less lives at once where there is more to order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.loop_ir.nodes import (
    Accumulator,
    Allocate,
    Buffer,
    Kernel,
    Let,
    Loop,
    LoopKind,
    Scalar,
    Scope,
    Section,
    Statement,
)
from stitchcore.loop_ir.visitor import accesses, own_scalars, statements
from stitchcore.schedule import limits

WORD_BYTES = 4
FEWEST, MOST = 16, 255
BASE, ROOT_OF_LIVE, MOVED, PHASES, LOG_SECTIONS = 21.0, 3.7, 1.0, 6.5, 8.6
"""Registers: of any kernel, by the root of live words, by words of a run, of a kernel that has grid
barriers, by the logarithm of the number of sections."""


def registers(kernel: Kernel) -> int:
    """Registers of a thread of `kernel`."""
    sections = [section for phase in kernel.phases for section in phase.sections]
    most = 0.0
    for section in sections:
        words = pressure(section, kernel.threads)
        mixed = ROOT_OF_LIVE * math.sqrt(words.live) + MOVED * words.moved
        most = max(most, mixed + words.carried)
    more = PHASES * (len(kernel.phases) > 1) + LOG_SECTIONS * math.log(max(len(sections), 1))
    return min(max(round(BASE + most + more), FEWEST), MOST)


@dataclass(frozen=True)
class Pressure:
    """32-bit words of a lane: `live` at once, which a compiler may order otherwise; `carried`
    through loops as they are accumulated into; `moved` beside them by a run."""

    live: int
    carried: int
    moved: int


def pressure(section: Section, lanes: int) -> Pressure:
    """What a lane of `section` holds, in groups of `lanes`."""
    distributed = limits.WARP_LANES if section.scope is Scope.WARP else lanes
    own = sum(
        _elements(statement.buffer, distributed * section.elements_per_lane)
        * section.elements_per_lane
        * _words(statement.buffer.dtype)
        for statement in statements(section.body)
        if isinstance(statement, Allocate) and statement.buffer.scope is Scope.LANE
    )
    accumulated = {s.scalar for s in statements(section.body) if isinstance(s, Accumulator)}
    carried = _most(section.body, 1, accumulated.__contains__)
    live = _most(section.body, 1, lambda scalar: scalar not in accumulated)
    with_runs = _most(
        section.body, section.elements_per_lane, lambda scalar: scalar not in accumulated
    )
    return Pressure(own + live, carried, with_runs - live)


def _elements(buffer: Buffer, distributed: int) -> int:
    """Of a LANE buffer, how many of `distributed` elements each lane has one."""
    total = 1
    for extent in buffer.dims:
        assert isinstance(extent, int), f"{buffer.name} is LOCAL"
        total *= extent
    return -(-total // distributed)


def _words(dtype: str) -> int:
    return -(-DTYPES[dtype].bytes // WORD_BYTES)


def _walked(body: Sequence[Statement]) -> Iterator[tuple[Statement, int]]:
    """Statements in order; with each the position of the outermost loop's last statement, up to
    which lives what was defined before that loop."""
    position = 0
    for statement in body:
        inside = [*statements((statement,))]
        last = position + len(inside) - 1
        yield from ((nested, last) for nested in inside)
        position += len(inside)


def _moved(loop: Loop) -> int:
    """Words of one iteration's loads and stores."""
    elements = {(access.buffer, access.indices) for access in accesses(loop.body)}
    return sum(_words(buffer.dtype) for buffer, _ in elements)


def _most(
    body: Sequence[Statement], elements_per_lane: int, counted: Callable[[Scalar], bool]
) -> int:
    """Most words of `counted` scalars alive at one statement, and of what a run moves there."""
    begins: dict[Scalar, int] = {}
    ends: dict[Scalar, int] = {}
    moved: dict[int, int] = {}
    for position, (statement, last) in enumerate(_walked(body)):
        if isinstance(statement, Let | Accumulator):
            begins.setdefault(statement.scalar, position)
        for scalar in own_scalars(statement):
            first = begins.setdefault(scalar, position)
            ends[scalar] = max(ends.get(scalar, 0), last if first < position else position)
        if (
            isinstance(statement, Loop)
            and statement.kind is LoopKind.LANES
            and elements_per_lane > 1
        ):
            moved[position] = (elements_per_lane - 1) * _moved(statement)
    change: dict[int, int] = {}
    for scalar, first in begins.items():
        if not counted(scalar):
            continue
        words = _words(scalar.dtype)
        change[first] = change.get(first, 0) + words
        end = ends.get(scalar, first) + 1
        change[end] = change.get(end, 0) - words
    most = live = 0
    for position in range(max(change, default=0) + 1):
        live += change.get(position, 0)
        most = max(most, live + moved.get(position, 0))
    return most
