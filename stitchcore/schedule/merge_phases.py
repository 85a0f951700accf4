"""Merge phases: what reads a value in the tasks that wrote it goes on in them, with no boundary.

The boundary between two phases lets any task read what any other wrote. Where each section of the
later phase touches only elements that its own task's counterpart touched before (two column
reductions one after another, a scalar and what is computed from it), both are one section: a
regional scheme in AStitch's words, which needs no grid barrier but at most one of a block. Sections
of a phase that need nothing of the one before it, or all of its tasks, are no part of that.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stitchcore.loop_ir import index
from stitchcore.loop_ir.index import Index, Variable
from stitchcore.loop_ir.layout import flat_index
from stitchcore.loop_ir.nodes import (
    Allocate,
    Buffer,
    If,
    Loop,
    Phase,
    Role,
    Section,
    Statement,
    Store,
)
from stitchcore.loop_ir.visitor import gather_indices, own_accesses, statements, substituted
from stitchcore.schedule.buffers import aligned_bytes

TASK = Variable("a task")
"""Stands for the task of whatever section."""

Ranges = dict[str, index.Range]


@dataclass(frozen=True)
class _Access:
    """`owners` are by dimension, and last for the element's place in the buffer."""

    buffer: Buffer
    writes: bool
    owners: tuple[_Owner | None, ...]


@dataclass(frozen=True)
class _Owner:
    """An index that is `of_task` times `width` and something at least 0 below `width`."""

    of_task: Index
    width: int


Touched = Mapping[Buffer, frozenset[_Access]]


@dataclass
class _Memo:
    """What sections touch, found once for each: a section is compared with many."""

    known: dict[int, tuple[Section, Touched]] = field(default_factory=dict)

    def __call__(self, section: Section) -> Touched:
        if id(section) not in self.known:
            self.known[id(section)] = section, _touched(section)
        return self.known[id(section)][1]

    def merged(self, parts: Sequence[Section]) -> Section:
        """`parts` as one section, which touches what they do."""
        touched: dict[Buffer, frozenset[_Access]] = {}
        for part in map(self, parts):
            for buffer, accesses in part.items():
                touched[buffer] = touched.get(buffer, frozenset()) | accesses
        section = _merged(parts)
        self.known[id(section)] = section, touched
        return section


def merge(phases: Sequence[Phase], local_bytes: int) -> tuple[Phase, ...]:
    """`phases` with those that need no boundary as one. `local_bytes` bounds a section's LOCAL
    buffers. Where that leaves fewer, each section is in the first phase that it can be in."""
    touched = _Memo()
    merged = list(phases[:1])
    for phase in phases[1:]:
        together = _merged_phases(merged[-1], phase, local_bytes, touched)
        merged[-1:] = [merged[-1], phase] if together is None else [together]
    early = earliest(phases, local_bytes) if len(merged) > 2 else merged
    return tuple(early if len(early) < len(merged) else merged)


def _merged_phases(before: Phase, after: Phase, local_bytes: int, touched: _Memo) -> Phase | None:
    sections = list(before.sections)
    for section in after.sections:
        needed = [
            earlier for earlier in sections if any(_conflicts(touched(earlier), touched(section)))
        ]
        if not needed:
            sections.append(section)
            continue
        parts = (*needed, section)
        if not _may_merge(parts, local_bytes, touched):
            return None
        sections[sections.index(needed[0])] = touched.merged(parts)
        sections = [earlier for earlier in sections if earlier not in needed[1:]]
    return Phase(tuple(sections))


def earliest(phases: Sequence[Phase], local_bytes: int) -> list[Phase]:
    """Every section in one with those of the last phase that it needs, or in the phase after: what
    only later phases wait for, as the sums over all tasks of what a chain of rows passes on, keeps
    no chain apart."""
    placed, touched = list[list[Section]](), _Memo()
    for phase in phases:
        before = [list(sections) for sections in placed]
        became: dict[int, Section] = {}
        for section in phase.sections:
            at, needed = -1, list[Section]()
            for number, sections in enumerate(before):
                conflicting = [
                    one for one in sections if any(_conflicts(touched(one), touched(section)))
                ]
                if conflicting:
                    at, needed = number, conflicting
            now = {id(one): one for one in (_latest(one, became) for one in needed)}
            parts = (*now.values(), section)
            if needed and _may_merge(parts, local_bytes, touched):
                whole = touched.merged(parts)
                placed[at] = [*(one for one in placed[at] if id(one) not in now), whole]
                became |= dict.fromkeys(now, whole)
                continue
            if at + 1 == len(placed):
                placed.append([])
            placed[at + 1].append(section)
    return [Phase(tuple(sections)) for sections in placed]


def _latest(section: Section, became: Mapping[int, Section]) -> Section:
    """What a section is part of by now."""
    while id(section) in became:
        section = became[id(section)]
    return section


def _may_merge(parts: Sequence[Section], local_bytes: int, touched: _Memo) -> bool:
    """Whether `parts`, each of which needs what those before it leave, may be one section."""
    if any(part.copy_unless_aliased or _scatters(part) for part in parts):
        return False
    pairs = itertools.combinations(parts, 2)
    if not all(_task_by_task(*pair, touched) for pair in pairs):
        return False
    return sum(map(_local_bytes, parts)) <= local_bytes


def _scatters(section: Section) -> bool:
    """Whether it writes where data says, again and again: which lane comes first nobody knows."""
    guarded = (s for s in statements(section.body) if isinstance(s, If))
    return any(gather_indices(statement.body) for statement in guarded)


def _merged(parts: Sequence[Section]) -> Section:
    first, *others = parts
    task = Variable(first.variable)
    bodies = (substituted(part.body, {part.variable: task}) for part in others)
    return replace(first, body=tuple(itertools.chain(first.body, *bodies)))


def _local_bytes(section: Section) -> int:
    sizes = (aligned_bytes(s.buffer) for s in statements(section.body) if isinstance(s, Allocate))
    return sum(size for size in sizes if isinstance(size, int))


def _conflicts(before: Touched, after: Touched) -> Iterator[tuple[_Access, _Access]]:
    """Accesses to the same buffer, one of which writes."""
    for buffer in before.keys() & after.keys():
        for first, second in itertools.product(before[buffer], after[buffer]):
            if first.writes or second.writes:
                yield first, second


def _task_by_task(before: Section, after: Section, touched: _Memo) -> bool:
    """Whether an element that both touch, and one writes, is touched by tasks of one number."""
    if (before.tasks, before.scope) != (after.tasks, after.scope):
        return False
    return before.tasks == 1 or all(
        itertools.starmap(_same_task, _conflicts(touched(before), touched(after)))
    )


def _same_task(first: _Access, second: _Access) -> bool:
    owners = zip(first.owners, second.owners, strict=True)
    return any(left == right and left.of_task == TASK for left, right in owners if left is not None)


# ---- what a section touches ----------------------------------------------------------------------
def _touched(section: Section) -> Touched:
    """Accesses of the kernel's own buffers; of its inputs none, as nobody writes them."""
    ranges: Ranges = {}
    if isinstance(section.tasks, int):
        ranges[TASK.name] = (0, section.tasks - 1)
    found: dict[Buffer, set[_Access]] = {}
    for access in _walk(section.body, {section.variable: TASK}, ranges):
        found.setdefault(access.buffer, set()).add(access)
    return {buffer: frozenset(accesses) for buffer, accesses in found.items()}


def _walk(
    body: Sequence[Statement], values: Mapping[str, Index], ranges: Ranges
) -> Iterator[_Access]:
    for statement in body:
        if isinstance(statement, Loop):
            begin = index.substitute(statement.begin, values)
            length = _most(index.substitute(statement.end, values), begin)
            if length is not None:
                ranges[statement.variable] = (0, max(length - 1, 0))
            inner = index.add(begin, Variable(statement.variable))
            yield from _walk(statement.body, {**values, statement.variable: inner}, ranges)
            continue
        if isinstance(statement, If):
            yield from _walk(statement.body, values, ranges)
        for access in own_accesses(statement):
            if access.buffer.role in (Role.SCRATCH, Role.OUTPUT):
                at = [index.substitute(i, values) for i in access.indices]
                flat = index.collapse(flat_index(access.buffer, at))
                owners = (_owner(i, ranges) for i in (*at, flat))
                yield _Access(access.buffer, isinstance(access, Store), tuple(owners))


def _most(end: Index, begin: Index) -> int | None:
    """The most iterations of a loop, where it is known."""
    if isinstance(end, index.Binary) and end.operator == "min":
        lengths = [_most(side, begin) for side in (end.left, end.right)]
        return min((length for length in lengths if length is not None), default=None)
    length = index.gather(index.add(end, index.multiply(begin, -1)))
    return length if isinstance(length, int) else None


def _owner(node: Index, ranges: Ranges) -> _Owner | None:
    """`node` split into what its task decides and the rest; None where that says nothing."""
    terms, constant = index.terms(index.simplify(node, ranges))
    of_task = {term: times for term, times in terms.items() if index.names(term) == {TASK.name}}
    rest: Index = constant
    for term, times in terms.items():
        if term not in of_task:
            rest = index.add(rest, index.multiply(term, times))
    known = index.bounds(rest, ranges)
    width = math.gcd(*of_task.values())
    if not of_task or known is None or known[0] < 0 or known[1] >= width:
        return None
    total: Index = 0
    for term, times in of_task.items():
        total = index.add(total, index.multiply(term, times // width))
    return _Owner(total, width)
