"""How wide a kernel's index arithmetic has to be: a GPU does 64-bit arithmetic in pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stitchcore.loop_ir import index
from stitchcore.loop_ir.index import Binary, Index
from stitchcore.loop_ir.layout import flat_index
from stitchcore.loop_ir.nodes import (
    FromIndex,
    InRange,
    Kernel,
    Load,
    Loop,
    Position,
    Section,
    Statement,
    Store,
)
from stitchcore.loop_ir.visitor import expressions

LARGEST = 2**30
"""Indices up to here leave an int room for one more step of whatever loop."""


def fits_int(kernel: Kernel) -> bool:
    """Whether no index of `kernel`, nor a part of one, leaves the range of an int. False where a
    symbol decides."""
    sections = [section for phase in kernel.phases for section in phase.sections]
    return all(_small(node, ranges) for one in sections for node, ranges in _indices(one))


Ranges = dict[str, index.Range]


def _indices(section: Section) -> Iterator[tuple[Index, Ranges]]:
    yield section.tasks, {}
    ranges: Ranges = {}
    if isinstance(section.tasks, int):
        ranges[section.variable] = (0, max(section.tasks - 1, 0))
    yield from ((node, ranges) for node in _inside(section.body, ranges))


def _inside(body: Sequence[Statement], ranges: Ranges) -> Iterator[Index]:
    """Indices of statements; the ranges of loops are in `ranges` when those inside come."""
    for statement in body:
        if isinstance(statement, Loop):
            yield from (statement.begin, statement.end)
            begin, end = (index.bounds(i, ranges) for i in (statement.begin, statement.end))
            if begin is not None and end is not None:
                ranges[statement.variable] = begin[0], max(end[1] - 1, begin[0])
            yield from _inside(statement.body, ranges)
            continue
        if isinstance(statement, Position):
            yield statement.last
            last = index.bounds(statement.last, ranges)
            if last is not None:
                ranges[statement.variable] = 0, max(last[1], 0)
        for node in expressions((statement,)):
            match node:
                case Load(buffer, indices):
                    yield flat_index(buffer, indices)
                    yield from indices
                case FromIndex(at):
                    yield at
                case InRange(at, low, high):
                    yield from (at, low, high)
        if isinstance(statement, Store):
            yield flat_index(statement.buffer, statement.indices)
            yield from statement.indices


def _small(node: Index, ranges: Ranges) -> bool:
    found = index.bounds(node, ranges)
    if found is None or found[0] < -LARGEST or found[1] > LARGEST:
        return False
    return not isinstance(node, Binary) or (
        _small(node.left, ranges) and _small(node.right, ranges)
    )
