"""Input-output aliasing: outputs that may take over an input's memory, read off the finished loops.

An element of such an input is read only at the indices at which the output's is written, in the
same section, before that write. Loops of equal range and depth deal their iterations to lanes
alike, so a read in an earlier lane loop over the same row counts too.

Where an input could share with several outputs or several inputs with one, those that the fewest
outputs depend on choose first. An optimizer's slot is read for its own next value and the
parameter's, a gradient for all of them: so slots are updated in place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from stitchcore.loop_ir.index import Index, Variable, rename
from stitchcore.loop_ir.nodes import (
    Accumulate,
    Buffer,
    If,
    Let,
    Load,
    Loop,
    LoopKind,
    Phase,
    Role,
    Scalar,
    Section,
    Statement,
    Store,
)
from stitchcore.loop_ir.visitor import expressions, own_accesses, statements


@dataclass(frozen=True)
class _Access:
    """One access: in which section, at which indices (loop variables named by their ranges);
    `distributed`: in a lane loop, by the lane that has the iteration."""

    buffer: Buffer
    section: int
    position: int
    indices: tuple[Index, ...]
    writes: bool
    distributed: bool


def find(buffers: Sequence[Buffer], phases: Sequence[Phase]) -> tuple[tuple[int, int], ...]:
    """(input position, output position) pairs, each input and each output at most once."""
    inputs = [b for b in buffers if b.role is Role.INPUT]
    dependents = _dependents(phases)
    possible: dict[int, list[int]] = {}
    for source, target in possible_pairs(buffers, phases):
        possible.setdefault(source, []).append(target)
    sources: dict[int, int] = {}  # source by target
    for source in sorted(possible, key=lambda i: len(dependents.get(inputs[i], ()))):
        free = [target for target in possible[source] if target not in sources]
        if free:
            sources[free[0]] = source
    return tuple(sorted((source, target) for target, source in sources.items()))


def possible_pairs(
    buffers: Sequence[Buffer], phases: Sequence[Phase]
) -> tuple[tuple[int, int], ...]:
    """All (input position, output position) pairs of which any choice is right that has no input
    and no output twice."""
    inputs = [b for b in buffers if b.role is Role.INPUT]
    outputs = [b for b in buffers if b.role is Role.OUTPUT]
    copied = _copied(phases)
    accesses = _accesses(phases, copied)
    owner = {target: source for source, target in copied}
    writers: dict[tuple[object, ...], list[int]] = {}
    for target, buffer in enumerate(outputs):
        stores = [a for a in accesses.get(buffer, ()) if a.writes]
        if len(stores) == 1 and stores[0].distributed:
            key = (buffer.dtype, buffer.dims, stores[0].section, stores[0].indices)
            writers.setdefault(key, []).append(target)
    pairs = []
    for source, buffer in enumerate(inputs):
        reads = accesses.get(buffer, [])
        candidates = [
            n for n, output in enumerate(outputs) if (buffer, output) in copied and not reads
        ]
        places = {(a.section, a.indices) for a in reads}
        if len(places) == 1 and all(a.distributed for a in reads):
            ((where, indices),) = places
            candidates = writers.get((buffer.dtype, buffer.dims, where, indices), [])
        last = max((a.position for a in reads), default=0)
        for target in candidates:
            written = [a.position for a in accesses.get(outputs[target], ()) if a.writes]
            if owner.get(outputs[target], buffer) == buffer and all(last < at for at in written):
                pairs.append((source, target))
    return tuple(pairs)


def decide_copies(
    buffers: Sequence[Buffer], phases: Sequence[Phase], aliases: Sequence[tuple[int, int]]
) -> tuple[Phase, ...]:
    """`phases` in which sections copy unless aliased for the pairs of `aliases`, and always for
    others."""
    inputs = [b for b in buffers if b.role is Role.INPUT]
    outputs = [b for b in buffers if b.role is Role.OUTPUT]
    pairs = {(inputs[source], outputs[target]) for source, target in aliases}

    def copying(section: Section) -> Section:
        pair = section.copy_unless_aliased
        return replace(section, copy_unless_aliased=pair if pair in pairs else None)

    return tuple(Phase(tuple(map(copying, phase.sections))) for phase in phases)


def _copied(phases: Sequence[Phase]) -> frozenset[tuple[Buffer, Buffer]]:
    """(from, to) of the sections that only copy, where nothing else copies either."""
    pairs = [
        s.copy_unless_aliased
        for phase in phases
        for s in phase.sections
        if s.copy_unless_aliased is not None
    ]
    sources, targets = Counter(pair[0] for pair in pairs), Counter(pair[1] for pair in pairs)
    return frozenset(pair for pair in pairs if sources[pair[0]] == targets[pair[1]] == 1)


def _accesses(
    phases: Sequence[Phase], copied: frozenset[tuple[Buffer, Buffer]]
) -> dict[Buffer, list[_Access]]:
    """All accesses but those of sections that do not run where their pair shares memory."""
    by_buffer: dict[Buffer, list[_Access]] = {}
    for number, section in enumerate(s for phase in phases for s in phase.sections):
        skipped = section.copy_unless_aliased if section.copy_unless_aliased in copied else ()
        for access in _walk(section.body, {section.variable: Variable("task")}, number):
            if access.buffer not in (skipped or ()):
                by_buffer.setdefault(access.buffer, []).append(access)
    return by_buffer


def _dependents(phases: Sequence[Phase]) -> dict[Buffer, set[Buffer]]:
    """The outputs whose elements depend on each input, through scalars and other buffers."""
    reached: dict[Scalar | Buffer, set[Buffer]] = {}  # the inputs that a value was made from
    dependents: dict[Buffer, set[Buffer]] = {}
    for statement in statements([s for phase in phases for p in phase.sections for s in p.body]):
        if not isinstance(statement, Let | Accumulate | Store):
            continue
        target = statement.buffer if isinstance(statement, Store) else statement.scalar
        sources = set() if isinstance(statement, Let) else set(reached.get(target, ()))
        for node in expressions((statement,)):
            match node:
                case Load(buffer) if buffer.role is Role.INPUT:
                    sources.add(buffer)
                case Load(buffer):
                    sources |= reached.get(buffer, set())
                case Scalar():
                    sources |= reached.get(node, set())
        reached[target] = sources
        if isinstance(target, Buffer) and target.role is Role.OUTPUT:
            for source in sources:
                dependents.setdefault(source, set()).add(target)
    return dependents


def _walk(body: Sequence[Statement], named: Mapping[str, Index], section: int) -> Iterator[_Access]:
    position = 0
    stack: list[tuple[Statement, Mapping[str, Index], int, bool]] = [
        (statement, named, 0, False) for statement in reversed(body)
    ]
    while stack:
        statement, names, depth, distributed = stack.pop()
        if isinstance(statement, Loop):
            begin, end = rename(statement.begin, names), rename(statement.end, names)
            own = Variable(f"{statement.kind.value} {depth} {begin} {end}")
            inner = {**names, statement.variable: own}
            lanes = distributed or statement.kind is LoopKind.LANES
            stack.extend((s, inner, depth + 1, lanes) for s in reversed(statement.body))
            continue
        if isinstance(statement, If):
            stack.extend((s, names, depth, distributed) for s in reversed(statement.body))
        for access in own_accesses(statement):
            position += 1
            at = tuple(rename(i, names) for i in access.indices)
            writes = isinstance(access, Store)
            yield _Access(access.buffer, section, position, at, writes, distributed)
