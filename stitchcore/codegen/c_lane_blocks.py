"""Blocks of lanes: loops of a constant length, which gcc makes vectors of however short they are.

A lane loop over a block of an axis begins where its task says. Counted from zero its length is a
number in the text, but in the last block of an axis that the blocks do not divide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from stitchcore.loop_ir import index
from stitchcore.loop_ir.index import Binary, Range, Variable
from stitchcore.loop_ir.nodes import Loop
from stitchcore.loop_ir.visitor import substituted


def block_length(loop: Loop, ranges: Mapping[str, Range]) -> tuple[int, bool]:
    """Iterations of a loop over a block of lanes but for the last block of an axis, and whether all
    blocks are so long; 0 for a loop over something else."""
    begin, end = (index.simplify(node, ranges) for node in (loop.begin, loop.end))
    if isinstance(begin, int):
        return 0, True
    last, exact = end, True
    if isinstance(end, Binary) and end.operator == "min":
        last, exact = end.left, False
    length = index.gather(index.add(last, index.multiply(begin, -1)))
    return (length, exact) if isinstance(length, int) else (0, True)


def from_zero(loop: Loop, count: int) -> Loop:
    """`loop` over its first `count` iterations, counted from 0."""
    at = index.add(loop.begin, Variable(loop.variable))
    return replace(loop, begin=0, end=count, body=substituted(loop.body, {loop.variable: at}))
