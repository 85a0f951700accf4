"""Reduction epilogues: values of the elements of a column sum or a scan, stored where these end.

A global reduction of one part for each kept element is finished by its own tasks. An elementwise
value of that element needs no further phase then: it is computed from the sum while it is in a
register, and where nobody else reads the sum, that is not stored at all. So are values of a scan's
element, while the pass along the axis has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction, reachable
from stitchcore.schedule.axes import Axes, Axis
from stitchcore.schedule.dominants import Dominants

Loops = tuple[frozenset[Axis], frozenset[Axis], int, Instruction | None]
"""Axes of the loops of a finished reduction, the reduced ones among them, its phase, and a scan
itself: it shares its loops with none."""


_ELSEWHERE = ("reduce", "check", "lookup", "update", "scatter", "scan")
"""Kinds of values that are not made of the same element of what they are computed from."""


@dataclass(frozen=True)
class FinishedReductions:
    """Reductions that their tasks finish, and scans, by the phase of these; what lies in memory,
    likewise."""

    axes: Axes
    dominants: Dominants
    inputs: frozenset[Instruction]
    finals: Mapping[Instruction, int]
    stored: Mapping[Instruction, int]

    def loops(self, reduction: Instruction) -> Loops:
        axes = self.axes
        domain, reduced = axes.domain(reduction), axes.reduced.get(reduction, ())
        alone = None if op.record(reduction.opcode).kind == "reduce" else reduction
        return frozenset(domain), frozenset(reduced), self.finals[reduction], alone


def find(
    known: FinishedReductions, wanted: Iterable[Instruction]
) -> dict[Instruction, Instruction]:
    """Of values to be stored, those that can be a reduction's epilogue -> such a reduction."""
    epilogues = {}
    for value in wanted:
        sources = _sources(value, known)
        if sources and len({known.loops(source) for source in sources}) == 1:
            elements = frozenset(known.axes.of(sources[0]))
            if elements == frozenset(known.axes.of(value)):
                epilogues[value] = sources[0]
    return epilogues


def _sources(value: Instruction, known: FinishedReductions) -> list[Instruction]:
    """The reductions finished in the phase before `value`'s that it is computed from, element by
    element; none where something else stands in the way."""
    phase = known.dominants.states[value].phase - 1
    sources: dict[Instruction, None] = {}
    seen: set[Instruction] = set()
    stack = [value]
    while stack:
        node = stack.pop()
        if node in seen or _at_hand(node, phase, known):
            continue
        seen.add(node)
        if known.finals.get(node) == phase:
            sources[node] = None
            continue
        kind = op.record(node.opcode).kind
        if kind in _ELSEWHERE or known.dominants.states[node].home is not None:
            return []
        for number, operand in enumerate(node.operands):
            if (node, number) not in known.axes.views:
                stack.append(operand)
            elif not _is_early(operand, phase, known):
                return []
    return list(sources)


def _at_hand(value: Instruction, phase: int, known: FinishedReductions) -> bool:
    """Whether `value` lies in memory when the tasks of `phase` begin."""
    return value in known.inputs or known.stored.get(value, phase) < phase


def _is_early(value: Instruction, phase: int, known: FinishedReductions) -> bool:
    """Whether `value`, read through an index map, needs nothing of `phase`."""
    return not any(
        op.record(node.opcode).kind in ("reduce", "check")
        for node in reachable((value,), lambda node: _at_hand(node, phase, known))
        if not _at_hand(node, phase, known)
    )
