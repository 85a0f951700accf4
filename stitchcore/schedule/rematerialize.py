"""Rematerialization: large values that a later phase computes again, though they are in memory.

Reading a large value back costs bandwidth, which is what most kernels lack. Where the section reads
all the large values it is made of anyway, a few operations an element cost nothing beside that; and
an output that nobody reads back may be written past the caches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction, reachable
from stitchcore.schedule.axes import Axes
from stitchcore.schedule.tiling import size_of

FEW_OPERATIONS = 16
"""Most operations that are computed again for one element."""

SMALL = 64
"""A value of so many times fewer elements is read from a cache, whoever wants it."""


def choose(
    roots: Iterable[Instruction],
    axes: Axes,
    in_memory: Callable[[Instruction], bool],
    stored: Callable[[Instruction], bool],
    operands: Callable[[Instruction], Sequence[Instruction]],
) -> frozenset[Instruction]:
    """Of the values that a section with these roots reads, those it should compute instead.

    `in_memory`: the value is there when the section begins; `stored`: an earlier phase put it
    there.
    """
    read, viewed = _read(roots, axes, in_memory, operands)
    chosen = set()
    for value in read:
        if value in viewed or not stored(value) or value in axes.constant:
            continue
        leaves = _leaves(value, axes, in_memory, operands)
        others = [other for other in read if other is not value and other not in chosen]
        if leaves is not None and all(_at_hand(leaf, value, axes, others) for leaf in leaves):
            chosen.add(value)
    return frozenset(chosen)


def _read(
    roots: Iterable[Instruction],
    axes: Axes,
    in_memory: Callable[[Instruction], bool],
    operands: Callable[[Instruction], Sequence[Instruction]],
) -> tuple[dict[Instruction, None], frozenset[Instruction]]:
    """What lies in memory and is read, in order, and which of it through an index map."""
    read: dict[Instruction, None] = {}
    viewed: set[Instruction] = set()
    for value in reachable(roots, in_memory, operands):
        if in_memory(value):
            read[value] = None
        else:
            inputs = enumerate(value.operands)
            viewed |= {operand for n, operand in inputs if (value, n) in axes.views}
    return read, frozenset(viewed)


def _leaves(
    value: Instruction,
    axes: Axes,
    in_memory: Callable[[Instruction], bool],
    operands: Callable[[Instruction], Sequence[Instruction]],
) -> set[Instruction] | None:
    """What lies in memory and makes up `value`, or None where that takes more than it is worth."""
    leaves: set[Instruction] = set()
    work = 0
    for node in reachable((value,), lambda node: node is not value and in_memory(node), operands):
        if node is not value and in_memory(node):
            leaves.add(node)
            continue
        record = op.record(node.opcode)
        work += record.flops
        views = any((node, n) in axes.views for n in range(len(node.operands)))
        if views or work > FEW_OPERATIONS or record.kind == "reduce":
            return None
    return leaves


def _at_hand(
    leaf: Instruction, value: Instruction, axes: Axes, read: Iterable[Instruction]
) -> bool:
    own, whole = axes.of(leaf), axes.of(value)
    if size_of(axes.extents[a] for a in own) * SMALL <= size_of(axes.extents[a] for a in whole):
        return True
    return frozenset(own) == frozenset(whole) and leaf in read
