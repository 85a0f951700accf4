"""Cache hints on finished loops: stores that should stream, rows that should be fetched ahead.

Streaming: a kernel that moves more than STREAM_BYTES has pushed what it wrote first out of the last
cache when it ends, so reading a line only to overwrite it is wasted. Such stores of outputs that
the kernel does not read itself go past the caches; sizes decide, in the call where they are
symbols.

Fetching ahead: a row of several lane loops reads its inputs in the first of them, while the others
work from the first cache and leave memory idle. Those ask for the next row's inputs meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.loop_ir import index
from stitchcore.loop_ir.index import Binary, Index, Variable
from stitchcore.loop_ir.layout import bytes_of
from stitchcore.loop_ir.nodes import (
    Buffer,
    If,
    InRange,
    Load,
    Loop,
    LoopKind,
    Phase,
    Prefetch,
    Role,
    Section,
    Statement,
    Store,
)
from stitchcore.loop_ir.visitor import gather_indices, loads, statements

STREAM_BYTES = 32 * 2**20
"""A last cache of a server's cores; below it what a kernel writes may be found there."""

LINE_BYTES = 64
SHORT_RUN = 2048
"""Runs of fewer bytes are not streamed: measured, they cost a quarter more than ordinary stores,
while runs of 3 KB save a fifth."""

LONG_RUN = 4096
"""Bytes of a run of stores that need not begin and end at a cache line."""

LARGEST_BYTES = 2**50

LEAST_AHEAD = 1024
"""Bytes of a row from which fetching ahead pays; the machine itself sees to shorter ones."""

AHEAD_BYTES = 65536
"""Most of a row that is fetched ahead: it should fit the second cache beside the row at work."""


def hint(buffers: Sequence[Buffer], phases: Sequence[Phase]) -> tuple[Phase, ...]:
    """`phases` with their hints."""
    read = {
        load.buffer
        for phase in phases
        for section in phase.sections
        for load in loads(section.body)
    }
    size: Index = 0
    for buffer in buffers:
        if buffer.role in (Role.INPUT, Role.OUTPUT):
            size = index.add(size, bytes_of(buffer))
    condition = InRange(size, STREAM_BYTES, LARGEST_BYTES)
    written = [b for b in buffers if b.role is Role.OUTPUT and b not in read]
    if isinstance(size, int) and size < STREAM_BYTES:
        written = []
    return tuple(
        Phase(
            tuple(
                replace(section, body=_ahead(_streamed(section.body, written, condition), section))
                for section in phase.sections
            )
        )
        for phase in phases
    )


# ---- streaming ---------------------------------------------------------------------------------
def _streamed(
    body: Sequence[Statement], written: Sequence[Buffer], condition: InRange
) -> tuple[Statement, ...]:
    rewritten: list[Statement] = []
    for statement in body:
        if isinstance(statement, Loop) and statement.kind is LoopKind.LANES:
            rewritten.append(_lanes(statement, written, condition))
        elif isinstance(statement, Loop):
            inner = _streamed(statement.body, written, condition)
            rewritten.append(replace(statement, body=inner))
        else:
            rewritten.append(statement)
    return tuple(rewritten)


def _lanes(loop: Loop, written: Sequence[Buffer], condition: InRange) -> Loop:
    if any(isinstance(s, Loop | If) for s in loop.body):
        return loop
    stores = [s.buffer for s in loop.body if isinstance(s, Store)]
    body = tuple(
        replace(s, streams=condition)
        if isinstance(s, Store)
        and s.buffer in written
        and stores.count(s.buffer) == 1
        and _fills_lines(s, loop)
        else s
        for s in loop.body
    )
    return replace(loop, body=body)


def _fills_lines(store: Store, loop: Loop) -> bool:
    """Whether the lanes write a run of memory, of whole lines or so long that ends do not count."""
    if not unit_stride(store.indices, loop.variable) or _by_data(store.indices, loop):
        return False
    extent = index.add(loop.end, index.multiply(loop.begin, -1))
    size = DTYPES[store.buffer.dtype].bytes
    if not isinstance(extent, int) or extent * size >= LONG_RUN:
        return True
    row = store.buffer.dims[-1]
    return (
        extent * size >= SHORT_RUN
        and extent * size % LINE_BYTES == 0
        and isinstance(row, int)
        and row * size % LINE_BYTES == 0
        and store.indices[-1] == Variable(loop.variable)
        and loop.begin == 0
    )


def unit_stride(indices: Sequence[Index], variable: str) -> bool:
    """Whether neighbouring lanes touch neighbouring elements."""
    if not indices or any(index.mentions(node, variable) for node in indices[:-1]):
        return False
    node = indices[-1]
    while isinstance(node, Binary) and node.operator == "+":
        left, right = node.left, node.right
        if index.mentions(right, variable):
            left, right = right, left
        if index.mentions(right, variable):
            return False
        node = left
    return node == Variable(variable)


# ---- fetching ahead ----------------------------------------------------------------------------
def _ahead(body: tuple[Statement, ...], section: Section) -> tuple[Statement, ...]:
    """The section's body with prefetches in the loops over its rows (or tasks of one row)."""
    rows = [s for s in body if isinstance(s, Loop) and s.kind is LoopKind.SERIAL]
    if not rows:
        return _row(body, section.variable)
    return tuple(
        replace(s, body=_row(s.body, s.variable)) if s in rows else s  # type: ignore[union-attr]
        for s in body
    )


def _row(body: tuple[Statement, ...], row: str) -> tuple[Statement, ...]:
    lane_loops = [s for s in body if isinstance(s, Loop) and s.kind is LoopKind.LANES]
    plain = [p for p in lane_loops if not any(isinstance(s, Loop) for s in statements(p.body))]
    if len(plain) < 2:
        return body
    wanted: dict[Prefetch, Loop] = {}
    for loop in lane_loops:
        next_row = {row: Variable(row) + 1, loop.variable: _LANE}
        for load in loads(loop.body):
            if _of_next_rows(load, loop, row):
                at = tuple(index.rename(i, next_row) for i in load.indices)
                wanted.setdefault(Prefetch(load.buffer, at), loop)
    hints: dict[Loop, list[Prefetch]] = {}
    total = 0
    for number, (prefetch, first) in enumerate(wanted.items()):
        hosts = [p for p in plain[1:] if (p.begin, p.end) == (first.begin, first.end)]
        size = _row_bytes(prefetch, first)
        if not hosts or size is None or size < LEAST_AHEAD:
            continue
        if total + size <= AHEAD_BYTES:
            total += size
            host = hosts[number % len(hosts)]
            lane = {_LANE.name: Variable(host.variable)}
            at = tuple(index.rename(i, lane) for i in prefetch.indices)
            hints.setdefault(host, []).append(Prefetch(prefetch.buffer, at))
    return tuple(
        replace(s, body=(*s.body, *hints.get(s, ()))) if isinstance(s, Loop) else s for s in body
    )


_LANE = Variable("lane")
"""Stands for the lane variable, whose name differs between the loops of a row."""


def _of_next_rows(load: Load, loop: Loop, row: str) -> bool:
    outside = load.buffer.role is Role.INPUT
    varies = any(index.mentions(node, row) for node in load.indices)
    plain = not _by_data(load.indices, loop)
    return outside and varies and plain and unit_stride(load.indices, loop.variable)


def _by_data(indices: Sequence[Index], loop: Loop) -> bool:
    """Whether data that the loop reads decides where."""
    return any(index.names(node) & gather_indices(loop.body) for node in indices)


def _row_bytes(prefetch: Prefetch, loop: Loop) -> int | None:
    extent = index.add(loop.end, index.multiply(loop.begin, -1))
    return extent * DTYPES[prefetch.buffer.dtype].bytes if isinstance(extent, int) else None
