"""How wide a kernel's index arithmetic has to be: a GPU does 64-bit arithmetic in pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stitchcore.loop_ir import index
from stitchcore.loop_ir.index import Binary, Index
from stitchcore.loop_ir.layout import flat_index
from stitchcore.loop_ir.nodes import GatherIndex, If, Kernel, Loop, Prefetch, Section, Statement
from stitchcore.loop_ir.visitor import own_accesses, own_expressions, own_indices

LARGEST = 2**30
"""Indices up to here leave an int room for one more step of whatever loop."""


def fits_int(kernel: Kernel) -> bool:
    """Whether no index of `kernel`, nor a part of one, leaves the range of an int. False where a
    symbol decides."""
    sections = [section for phase in kernel.phases for section in phase.sections]
    return all(_small(node, ranges) for section in sections for node, ranges in _indices(section))


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
        if isinstance(statement, Prefetch):  # a hint, of which a GPU's text says nothing
            continue
        yield from own_indices(statement)
        for node in own_expressions(statement):
            yield from own_indices(node)
        for access in own_accesses(statement):
            yield flat_index(access.buffer, access.indices)
        if isinstance(statement, Loop):
            begin, end = (index.bounds(i, ranges) for i in (statement.begin, statement.end))
            if begin is not None and end is not None:
                ranges[statement.variable] = begin[0], max(end[1] - 1, begin[0])
        elif isinstance(statement, GatherIndex):
            last = index.bounds(statement.last, ranges)
            if last is not None:
                ranges[statement.variable] = 0, max(last[1], 0)
        if isinstance(statement, Loop | If):
            yield from _inside(statement.body, ranges)


def _small(node: Index, ranges: Ranges) -> bool:
    limits = index.bounds(node, ranges)
    if limits is None or limits[0] < -LARGEST or limits[1] > LARGEST:
        return False
    return not isinstance(node, Binary) or (
        _small(node.left, ranges) and _small(node.right, ranges)
    )
