"""From dominants to sections: what each phase stores, and which loops it shares.

Sinks are what a phase leaves behind: outputs, scratch values that a later phase reads, parts of
global reductions. A value of an earlier phase is read back when it lies in memory, and else stored
to scratch or computed again, by price (fusion/reuse.py). Sinks that run over the same loops share a
section, so they share loads and subexpressions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from stitchcore.fusion.candidates import byte_size
from stitchcore.fusion.extents import extent
from stitchcore.fusion.mechanisms import ALL, Mechanism, Mechanisms
from stitchcore.fusion.pattern import Pattern
from stitchcore.fusion.reuse import STORED, Choice, Prices, Way, choose
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction, reachable
from stitchcore.schedule import reduction_epilogue, tiling
from stitchcore.schedule.axes import Axes, Axis
from stitchcore.schedule.dominants import (
    Dominants,
    HomeKind,
    Scheme,
    is_update,
    order_of,
    partition,
    piece_phase,
)
from stitchcore.schedule.limits import Limits
from stitchcore.schedule.tiling import Partition

Domain = frozenset[Axis]

WORD_BYTES = 4
"""A lane moves at least so much of a value that phases pass on: masks are spread and packed."""


class SinkKind(Enum):
    """What a phase leaves in memory."""

    STORE = "store"  # the value, element by element
    PIECE = "piece"  # operand `number` of a concatenation, update or reverse, to its place
    AROUND = "around"  # the first operand of an update, but for what the update replaces
    SCATTER = "scatter"  # rows of a scatter's updates, where its indices say
    SCAN = "scan"  # what a pass along an axis has so far, at each of its elements
    PARTIAL = "partial"  # this task's part of a global reduction
    FINAL = "final"  # a global reduction that one task finishes


@dataclass(frozen=True)
class Sink:
    """`value` is stored; `root` is what the loops compute for it."""

    kind: SinkKind
    value: Instruction
    number: int = 0

    @property
    def root(self) -> Instruction:
        if self.kind is SinkKind.STORE:
            return self.value
        return self.value.operands[self.number]


@dataclass(frozen=True)
class SectionScheme:
    """Sinks that share loops.

    `rows` is set where regional reductions tie them to rows, `loops` where a global reduction
    decides; otherwise the nest runs over `order`. `combines`: elements cost serial loops.
    `epilogue` are values stored where the section's global reductions are finished, or its scan
    has come to.
    """

    sinks: tuple[Sink, ...]
    rows: tuple[Axis, ...] | None
    loops: Partition | None
    order: tuple[Axis, ...]
    combines: bool
    epilogue: tuple[Instruction, ...] = ()


@dataclass(frozen=True)
class KernelScheme:
    """Sections of each phase, and the phase in which each stored value is written; `choices` of
    values that later phases want again."""

    phases: tuple[tuple[SectionScheme, ...], ...]
    stored: Mapping[Instruction, int]
    partial: Mapping[Instruction, int]
    choices: Mapping[Instruction, Choice]

    @property
    def rematerializable(self) -> frozenset[Instruction]:
        """What is stored for another reason than that a later phase wants it."""
        return frozenset(self.stored).difference(self.choices)


def assign(
    pattern: Pattern,
    axes: Axes,
    dominants: Dominants,
    prices: Prices,
    limits: Limits,
    mechanisms: Mechanisms = ALL,
    apart: frozenset[int] = frozenset(),
) -> KernelScheme:
    """Sinks and sections of every phase of `pattern`. What has as many rows as `apart` says is
    stored in a section of its own, whoever sums it up over tasks: it goes on in these rows. So is
    what a task would write across the lines of memory."""
    recomputes = prices if Mechanism.RECOMPUTE in mechanisms else None
    demand = _demanded(pattern, axes, dominants, {}, recomputes)
    epilogues = reduction_epilogue.find(demand.finished(), demand.elements())
    if epilogues:
        demand = _demanded(pattern, axes, dominants, epilogues, recomputes)
    count = max((phase for phase, _ in demand.sinks), default=0) + 1
    phases = []
    for phase in range(count):
        sinks = [sink for at, sink in demand.sinks if at == phase]
        merged = [sinks] if Mechanism.DOMINANT_MERGING in mechanisms else [[s] for s in sinks]
        sections = [
            s for group in merged for s in _sections(phase, group, axes, dominants, limits, apart)
        ]
        phases.append(tuple(_with_epilogue(section, epilogues, demand) for section in sections))
    return KernelScheme(tuple(phases), demand.stored, demand.partial, demand.choices)


def _demanded(
    pattern: Pattern,
    axes: Axes,
    dominants: Dominants,
    epilogues: Mapping[Instruction, Instruction],
    prices: Prices | None,
) -> _Demand:
    """What each phase leaves in memory; `epilogues` are stored where a reduction is finished.
    Without `prices` whatever a later phase wants is stored.

    What a phase reads anyway depends on what it computes again, and the other way round: it is
    taken to be what it would read if it computed nothing again.
    """
    reads: Mapping[int, Collection[Instruction]] = {}
    if prices is not None:
        everything = _Demand(axes, dominants, frozenset(pattern.inputs), epilogues, prices, None)
        _settle(everything, pattern)
        if not everything.choices:
            return everything
        reads = everything.reads
    demand = _Demand(axes, dominants, frozenset(pattern.inputs), epilogues, prices, reads)
    _settle(demand, pattern)
    return demand


def _settle(demand: _Demand, pattern: Pattern) -> None:
    dominants = demand.dominants
    for value in pattern.instructions:
        if dominants.schemes.get(value) is Scheme.GLOBAL:
            demand.require_reduction(value)
    for value in pattern.outputs:
        demand.require_output(value)
    for value in pattern.instructions:
        if value in dominants.pieced and value not in demand.stored:
            demand.require_output(value)
    demand.run()
    for _, sink in demand.sinks if demand.epilogues else ():
        unread = sink.value not in demand.read and sink.value not in pattern.outputs
        if sink.kind in _GOING_ON and unread:
            del demand.stored[sink.value]


def _with_epilogue(
    section: SectionScheme, epilogues: Mapping[Instruction, Instruction], demand: _Demand
) -> SectionScheme:
    own = {sink.value for sink in section.sinks if sink.kind in _GOING_ON}
    there = (v for v, source in epilogues.items() if source in own and v in demand.stored)
    return replace(section, epilogue=tuple(there))


@dataclass
class _Demand:
    axes: Axes
    dominants: Dominants
    inputs: frozenset[Instruction]
    epilogues: Mapping[Instruction, Instruction]
    prices: Prices | None
    reads_anyway: Mapping[int, Collection[Instruction]] | None
    stored: dict[Instruction, int] = field(default_factory=dict)
    partial: dict[Instruction, int] = field(default_factory=dict)
    sinks: list[tuple[int, Sink]] = field(default_factory=list)
    computed: dict[Instruction, int] = field(default_factory=dict)
    seen: set[tuple[Instruction, int]] = field(default_factory=set)
    stack: list[tuple[Instruction, int]] = field(default_factory=list)
    read: set[Instruction] = field(default_factory=set)
    reads: dict[int, set[Instruction]] = field(default_factory=dict)
    choices: dict[Instruction, Choice] = field(default_factory=dict)

    def finished(self) -> reduction_epilogue.FinishedReductions:
        """The reductions that their tasks finish, and what lies in memory."""
        finals = {s.value: phase for phase, s in self.sinks if s.kind in _GOING_ON}
        return reduction_epilogue.FinishedReductions(
            self.axes, self.dominants, self.inputs, finals, self.stored
        )

    def elements(self) -> list[Instruction]:
        """Values stored element by element in the phase in which they can first be."""
        states = self.dominants.states
        stores = [(phase, sink.value) for phase, sink in self.sinks if sink.kind is SinkKind.STORE]
        return [value for phase, value in stores if states[value].phase == phase]

    def require_reduction(self, value: Instruction) -> None:
        phase = self.dominants.states[value].phase - 1
        if value in self.dominants.single:
            self.stored[value] = phase
            self.sinks.append((phase, Sink(SinkKind.FINAL, value)))
        else:
            self.partial[value] = phase
            self.sinks.append((phase, Sink(SinkKind.PARTIAL, value)))

    def require_output(self, value: Instruction) -> None:
        if value in self.stored:
            return
        phase = self.dominants.states[value].phase
        if value in self.epilogues:
            self.stored[value] = phase - 1
            return
        self.stored[value] = phase
        if op.record(value.opcode).kind == "scatter":
            self.sinks.append((phase - 1, Sink(SinkKind.AROUND, value)))
            self.sinks.append((phase, Sink(SinkKind.SCATTER, value, 2)))
        elif op.record(value.opcode).kind == "scan":
            self.sinks.append((phase, Sink(SinkKind.SCAN, value)))
        elif value in self.dominants.pieced:
            states, updates = self.dominants.states, is_update(value)
            for number, operand in enumerate(value.operands[:2] if updates else value.operands):
                read_back = states[operand].phase + self._elsewhere(value, number)
                at = max(piece_phase(states, value, number), read_back)
                self.stored[value] = max(self.stored[value], at)
                kind = SinkKind.AROUND if updates and number == 0 else SinkKind.PIECE
                if operand.shape.size != 0:
                    self.sinks.append((at, Sink(kind, value, number)))
        else:
            self.sinks.append((phase, Sink(SinkKind.STORE, value)))

    def _elsewhere(self, value: Instruction, number: int) -> bool:
        """Whether a part of a pieced value is made where the loops that write it are not: in
        memory, or in rows whose axes those loops lack. It is read back in the next phase."""
        home = self.dominants.states[value.operands[number]].home
        if home is None or home.kind is HomeKind.MEMORY:
            return home is not None
        return not home.axes <= domain_of(Sink(SinkKind.PIECE, value, number), self.axes)

    def run(self) -> None:
        for phase, sink in sorted(self.sinks, key=lambda pair: pair[0]):
            if sink.kind is SinkKind.STORE:
                self.visit(sink.value, phase)
            else:
                self.need(sink.value, sink.number, phase)
                for number in _besides(sink):
                    self.need(sink.value, number, phase)
            self._drain()
        for value in self.epilogues:
            if value in self.stored:
                self.visit(value, self.stored[value])
                self._drain()

    def _drain(self) -> None:
        while self.stack:
            self.visit(*self.stack.pop())

    def need(self, consumer: Instruction, number: int, phase: int) -> None:
        value = consumer.operands[number]
        if value in self.inputs:
            self.reads.setdefault(phase, set()).add(value)
            return
        if self.stored.get(value, phase) < phase:
            self.reads.setdefault(phase, set()).add(value)
            self.read.add(value)
            return
        if self._keep(consumer, value, phase):
            self._store(value)
        else:
            self.stack.append((value, phase))

    def visit(self, value: Instruction, phase: int) -> None:
        if (value, phase) in self.seen:
            return
        self.seen.add((value, phase))
        self.computed[value] = min(self.computed.get(value, phase), phase)
        numbers: Iterable[int] = range(len(value.operands))
        if value in self.partial:
            numbers = range(1, len(value.operands))
        for number in numbers:
            self.need(value, number, phase)

    def _keep(self, consumer: Instruction, value: Instruction, phase: int) -> bool:
        """Whether a value of an earlier phase is stored there rather than computed again."""
        state = self.dominants.states[value]
        if state.phase >= phase:
            return False
        if value in self.dominants.schemes:
            return True
        if (value, consumer) in self.dominants.forced:
            return True
        if op.record(value.opcode).kind in ("movement", "constant"):
            return False
        if self.prices is None:
            return value not in self.axes.constant
        home, own = state.home, frozenset(self.axes.of(value))
        if home is None or (home.kind is HomeKind.ROWS and home.axes != own):
            earlier = self.computed.get(value, phase) < phase
            return earlier and value not in self.axes.constant and self._passes(value, phase)
        return True

    def _passes(self, value: Instruction, phase: int) -> bool:
        """Whether `phase` reads a value of an earlier one rather than compute it again."""
        assert self.prices is not None
        if self.reads_anyway is None:
            self.choices[value] = STORED
            return True
        anyway = self.reads_anyway.get(phase, ())

        def at_hand(node: Instruction) -> bool:
            in_memory = node in self.inputs or self.stored.get(node, phase) < phase
            return in_memory or node in self.dominants.schemes

        cone = [*reachable((value,), at_hand)]
        size = max(byte_size(value.shape), WORD_BYTES * extent(value.shape.size))
        missing = (  # of something larger a slice is read, or rows are looked up
            min(byte_size(node.shape), size)
            for node in cone
            if at_hand(node) and node not in anyway
        )
        choice = choose(
            self.prices,
            Way(2 * self.prices.transfer(size, size)),
            Way(
                sum(self.prices.transfer(leaf, leaf) for leaf in missing),
                self.prices.arithmetic(node for node in cone if not at_hand(node)),
            ),
        )
        self.choices[value] = choice
        return choice.passes

    def _store(self, value: Instruction) -> None:
        if value in self.epilogues:
            self.stored[value] = self.dominants.states[value].phase - 1
            return
        state = self.dominants.states[value]
        phase = state.phase
        if state.home is None and value not in self.dominants.schemes:
            phase = self.computed.get(value, phase)
        self.stored[value] = phase
        self.sinks.append((phase, Sink(SinkKind.STORE, value)))
        self.stack.append((value, phase))


def _besides(sink: Sink) -> range:
    """Numbers of the operands that a sink needs beside its root."""
    count = len(sink.value.operands)
    if sink.kind is SinkKind.FINAL:
        return range(1, count)
    if sink.kind is SinkKind.SCATTER:
        return range(1, 2)
    return range(2, count) if is_update(sink.value) else range(0)


# ---- sections ------------------------------------------------------------------------------------
@dataclass
class _Group:
    sinks: list[Sink]
    rows: Domain | None
    reduced: Domain | None
    domains: set[Domain]


def _sections(
    phase: int,
    sinks: list[Sink],
    axes: Axes,
    dominants: Dominants,
    limits: Limits,
    apart: frozenset[int],
) -> tuple[SectionScheme, ...]:
    tied: dict[Domain, _Group] = {}
    rest: list[tuple[Sink, Domain]] = []
    alone = [_Group([s], None, None, set()) for s in sinks if s.kind in _ALONE]
    for sink in sinks:
        if sink.kind in _ALONE:
            continue
        state = dominants.states[sink.root]
        home = state.home if state.phase == phase else None
        if home is not None and home.kind is HomeKind.ROWS:
            group = tied.setdefault(home.axes, _Group([], home.axes, None, set()))
            group.sinks.append(sink)
            group.domains.add(domain_of(sink, axes))
        else:
            rest.append((sink, domain_of(sink, axes)))
    for value, scheme in dominants.schemes.items():
        state = dominants.states[value]
        if scheme is Scheme.REGIONAL and state.phase == phase and state.home is not None:
            if state.home.axes in tied:
                tied[state.home.axes].domains.add(frozenset(axes.domain(value)))
    hosts = {domain: group for group in tied.values() for domain in group.domains}
    free: dict[tuple[Domain, Domain | None], _Group] = {}
    for sink, domain in sorted(rest, key=lambda pair: pair[0].kind in _ELEMENTS):
        host = hosts.get(domain)
        if (
            host is not None
            and _joins(sink, host, axes)
            and not across_lines(sink, host.rows or (), axes, limits)
        ):
            hosted = tiling.size_of(axes.extents[axis] for axis in host.rows or ())
            if sink.kind in _ELEMENTS or hosted not in apart:
                host.sinks.append(sink)
                continue
        reduced = None if sink.kind in _ELEMENTS else frozenset(axes.reduced[sink.value])
        rows = tiling.size_of(axes.extents[axis] for axis in (_written(sink, axes) or ())[:-1])
        if reduced is None and rows not in apart:
            reduced = next((r for d, r in free if d == domain), None)
        key = (domain, reduced)
        free.setdefault(key, _Group([], None, reduced, {domain})).sinks.append(sink)
    groups = [*tied.values(), *free.values(), *alone]
    return tuple(_section(group, axes, dominants, phase) for group in groups)


_ALONE = (SinkKind.AROUND, SinkKind.SCATTER, SinkKind.SCAN)
"""What shares its loops with nothing else."""

_GOING_ON = (SinkKind.FINAL, SinkKind.SCAN)
"""Sinks from whose elements, where they are left, others are computed (reduction_epilogue.py)."""

_PARTS = (SinkKind.PIECE, *_ALONE)
_ELEMENTS = (SinkKind.STORE, *_PARTS)


def domain_of(sink: Sink, axes: Axes) -> Domain:
    """Axes of the loops that a sink needs."""
    if sink.kind is SinkKind.STORE:
        return frozenset(axes.of(sink.value))
    if sink.kind in _PARTS:
        rows = axes.pieces[sink.value, sink.number]
        return frozenset(a for row in rows for a in row)
    return frozenset(axes.domain(sink.value))


def _joins(sink: Sink, host: _Group, axes: Axes) -> bool:
    assert host.rows is not None
    if sink.kind in _ELEMENTS:
        return host.rows <= domain_of(sink, axes)
    if sink.kind is SinkKind.FINAL or not host.rows <= frozenset(axes.reduced[sink.value]):
        return False
    kept = frozenset(axes.of(sink.value))
    inner = domain_of(sink, axes) - host.rows
    static = all(isinstance(axes.extents[a], int) for a in kept)
    return static and kept in (inner, frozenset())


def across_lines(sink: Sink, rows: Collection[Axis], axes: Axes, limits: Limits) -> bool:
    """Whether tasks of `rows` would write each element of `sink` to a line of its own, so many of
    them that none is left when the next row comes to its neighbour."""
    written = _written(sink, axes)
    if not limits.turned_lanes or not written or written[-1] not in rows:
        return False
    return tiling.size_of(axes.extents[a] for a in written if a not in rows) > tiling.FEW_LINES


def _section(group: _Group, axes: Axes, dominants: Dominants, phase: int) -> SectionScheme:
    sinks = tuple(group.sinks)
    states = [dominants.states[sink.root] for sink in sinks]
    combines = any(s.phase == phase and s.home is not None for s in states)
    if group.rows is not None:
        order = _widest(sinks, axes, dominants)
        rows = tuple(a for a in order if a in group.rows)
        return SectionScheme(sinks, rows, None, order, False)
    for sink in sinks:
        if sink.kind not in _ELEMENTS:
            loops = partition(axes, dominants.layouts, sink.value)
            order = order_of(axes, dominants.layouts, sink.value)
            return SectionScheme(sinks, None, loops, order, combines)
    return SectionScheme(sinks, None, None, _widest(sinks, axes, dominants), combines)


def _widest(sinks: Iterable[Sink], axes: Axes, dominants: Dominants) -> tuple[Axis, ...]:
    """Axes of the sink with most of them, in the order of the memory it writes."""
    best: tuple[Axis, ...] = ()
    for sink in sinks:
        order = _written(sink, axes)
        if order is None:
            order = order_of(axes, dominants.layouts, sink.value)
        if len(order) > len(best) or not best:
            best = order
    return best


def _written(sink: Sink, axes: Axes) -> tuple[Axis, ...] | None:
    """Axes of a sink that is stored element by element, in the order of the memory it writes."""
    if sink.kind is SinkKind.STORE:
        return axes.of(sink.value)
    if sink.kind in _PARTS:
        return tuple(a for row in axes.pieces[sink.value, sink.number] for a in row)
    return None
