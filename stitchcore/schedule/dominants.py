"""Dominants: how each reduction runs, and the phase and home of every value.

A reduction is a dominant: it decides loops for its neighbours. Four ways, after AStitch's schemes:

- REGIONAL: the reduced axes are the innermost in memory; one task owns a whole row, lanes reduce
  it, and users in the same rows go on in the same task.
- GLOBAL: reduced axes are outer (columns), or a few long rows: tasks reduce parts, a later phase
  combines them in a fixed order. One part a kept index needs no combining.
- INLINE: few elements, or a matrix product: a serial loop inside the lane that wants the value.
  Before a product's factors are read, what is to be computed of them is stored, as is a factor
  whose elements lie in another order than the lanes take them.

A value's *phase* is the earliest in which it can be computed; its *home* names the loops it is
tied to there: ROWS of a regional reduction, or COLUMNS of a combination. A value that would be
tied to two homes, or to one whose loops do not fit it, waits for the next phase.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from stitchcore.fusion.contraction import is_contraction
from stitchcore.fusion.instructions import KEPT_COST
from stitchcore.fusion.pattern import Pattern
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.schedule import tiling
from stitchcore.schedule.axes import Axes, Axis
from stitchcore.schedule.limits import Limits
from stitchcore.schedule.tiling import Partition, no_vector, size_of
from stitchcore.schedule.views import is_moved

EXPENSIVE = KEPT_COST
"""Where the scheduler keeps a value; the cost model must think the same."""

LIMIT = 1 << 20


class Scheme(Enum):
    """How a reduction is computed."""

    REGIONAL = "regional"
    GLOBAL = "global"
    INLINE = "inline"


class HomeKind(Enum):
    """Loops that a value is tied to in its phase."""

    ROWS = "rows"
    COLUMNS = "columns"
    MEMORY = "memory"


@dataclass(frozen=True)
class Home:
    """`axes` are the rows (ROWS), all axes of the loop nest (COLUMNS), or empty (MEMORY)."""

    kind: HomeKind
    axes: frozenset[Axis] = frozenset()


@dataclass(frozen=True)
class State:
    """Earliest phase of a value and what it is tied to there (None: nothing of that phase)."""

    phase: int
    home: Home | None = None


@dataclass(frozen=True)
class Dominants:
    """Decisions for every value of a pattern.

    `pieced` concatenations and updates are written part by part where their operands are
    computed, and reversed outputs that nothing here reads where what they reverse is; scatters and
    scans have loops of their own; `forced` pairs are a value and its reader, for which it is
    stored: a pad would compute it where it is not wanted, a matrix product again and again; a
    `single` global reduction has one part a kept element, so its tasks finish it.
    """

    states: Mapping[Instruction, State]
    schemes: Mapping[Instruction, Scheme]
    layouts: Mapping[Instruction, tuple[Axis, ...]]
    costs: Mapping[Instruction, int]
    pieced: frozenset[Instruction]
    forced: frozenset[tuple[Instruction, Instruction]]
    single: frozenset[Instruction]


def find(
    pattern: Pattern,
    axes: Axes,
    limits: Limits,
    passed: frozenset[tuple[Instruction, Instruction]] = frozenset(),
) -> Dominants:
    """Schemes, phases, homes, layouts and costs of all values of `pattern`. Over the `passed` edges
    values go through memory: who reads them waits for the next phase."""
    read = {operand for value in pattern.instructions for operand in value.operands}
    inputs, outputs = frozenset(pattern.inputs), frozenset(pattern.outputs)
    search = _Search(axes, inputs, outputs, frozenset(read), limits, passed)
    for value in filter(is_contraction, pattern.instructions):
        search.factors.update(value.operands[0].operands)
    search.factors -= {v for v in search.factors if v.operands[0] in pattern.inputs}
    for value in pattern.inputs:
        search.states[value] = State(0)
        search.layouts[value] = axes.of(value)
        search.costs[value] = 1
    for value in pattern.instructions:
        search.visit(value)
    return Dominants(
        search.states,
        search.schemes,
        search.layouts,
        search.costs,
        frozenset(search.pieced),
        frozenset(search.forced),
        frozenset(search.single),
    )


class _Search:
    def __init__(
        self,
        axes: Axes,
        inputs: frozenset[Instruction],
        outputs: frozenset[Instruction],
        read: frozenset[Instruction],
        limits: Limits,
        passed: frozenset[tuple[Instruction, Instruction]],
    ) -> None:
        self.axes = axes
        self.read = read
        self.passed = passed
        self.limits = limits
        self.inputs = inputs
        self.outputs = outputs
        self.states: dict[Instruction, State] = {}
        self.schemes: dict[Instruction, Scheme] = {}
        self.layouts: dict[Instruction, tuple[Axis, ...]] = {}
        self.costs: dict[Instruction, int] = {}
        self.pieced: set[Instruction] = set()
        self.forced: set[tuple[Instruction, Instruction]] = set()
        self.factors: set[Instruction] = set()
        self.single: set[Instruction] = set()

    def visit(self, value: Instruction) -> None:
        self.layouts[value] = self._layout(value)
        record = op.record(value.opcode)
        cost = record.flops + sum(self.costs[operand] for operand in value.operands)
        self.costs[value] = min(cost, LIMIT)
        if record.kind == "reduce":
            self.costs[value] = 1
            self._reduce(value)
        elif record.kind == "scatter":
            self.pieced.add(value)
            self.costs[value] = 1
            state = State(scatter_phase(self.states, value), Home(HomeKind.MEMORY))
            self.states[value] = state
        elif record.kind == "scan":
            self.pieced.add(value)
            self.costs[value] = 1
            before = self.states[value.operands[0]]
            phase = before.phase + (before.home is not None)
            self.states[value] = State(phase, Home(HomeKind.MEMORY))
        elif self._is_pieced(value):
            self.pieced.add(value)
            self.costs[value] = 1
            count = 2 if is_update(value) else len(value.operands)
            phase = max(piece_phase(self.states, value, number) for number in range(count))
            self.states[value] = State(phase, Home(HomeKind.MEMORY))
        elif value in self.factors and self._is_stored_first(value):
            self.states[value] = State(self.states[value.operands[0]].phase + 1)
        else:
            self.states[value] = self._join(value)

    def _layout(self, value: Instruction) -> tuple[Axis, ...]:
        """Axes in the order of the memory they come from; the operand with most axes decides."""
        own = self.axes.of(value)
        present = frozenset(own)
        best: tuple[Axis, ...] = ()
        for operand in value.operands:
            layout = tuple(a for a in self.layouts[operand] if a in present)
            if len(layout) > len(best):
                best = layout
        if len(best) == len(own):
            return best
        known = frozenset(best)
        merged = list(best)
        for position, axis in enumerate(own):
            if axis not in known:
                later = [a for a in own[position + 1 :] if a in merged]
                merged.insert(merged.index(later[0]) if later else len(merged), axis)
        return tuple(merged)

    def _is_pieced(self, value: Instruction) -> bool:
        if value.opcode == op.REVERSE:
            copied = value.operands[0] in self.inputs and is_moved(value)
            turned = copied and self.limits.packs and no_vector(value.shape.dims[-1])
            return value in self.outputs and value not in self.read and not turned
        joins = value.opcode == op.CONCATENATE or is_update(value)
        return joins and self._worth_pieces(value)

    def _worth_pieces(self, value: Instruction) -> bool:
        """Of a concatenation or update; else each of its elements is chosen where it is wanted."""
        return value in self.outputs or any(
            self.states[operand].home is not None or self.costs[operand] >= EXPENSIVE
            for operand in value.operands
        )

    def _is_stored_first(self, factor: Instruction) -> bool:
        """Whether the base of a matrix product's factor is to be stored before it is read, which it
        then is in an order that suits the lanes: they take the last dimension."""
        base = factor.operands[0]
        own = self.axes.of(base)
        of_lanes = factor["dimensions"][-1] == factor.shape.rank - 1
        across = of_lanes and self.layouts[base][-1:] != own[-1:]
        turned = across and size_of(factor.shape.dims) > self.limits.strided_terms
        computed = self.costs[base] > self.limits.factor_cost
        if base in self.axes.constant or not (turned or computed):
            return False
        self.forced.add((base, factor))
        if across:
            self.layouts[base] = own
        return True

    def _join(self, value: Instruction) -> State:
        own = frozenset(self.axes.of(value))
        phase = max((self.states[o].phase for o in value.operands), default=0)
        homes: set[Home] = set()
        for number, operand in enumerate(value.operands):
            state = self.states[operand]
            if (operand, value) in self.passed:
                self.forced.add((operand, value))
                phase = max(phase, state.phase + 1)
            elif (value, number) in self.axes.views:
                if value.opcode == op.PAD and self.costs[operand] >= EXPENSIVE:
                    self.forced.add((operand, value))
                    phase = max(phase, state.phase + 1)
                elif state.home is not None:
                    phase = max(phase, state.phase + 1)
            elif state.home is not None and state.phase == phase:
                homes.add(state.home)
        homes = {
            self.states[o].home  # type: ignore[misc]
            for number, o in enumerate(value.operands)
            if self.states[o].home is not None
            and self.states[o].phase == phase
            and (value, number) not in self.axes.views
        }
        if not homes:
            return State(phase)
        if len(homes) == 1:
            (home,) = homes
            if home.kind is HomeKind.ROWS and home.axes <= own:
                return State(phase, home)
            if home.kind is HomeKind.COLUMNS and home.axes == own:
                return State(phase, home)
        return State(phase + 1)

    # ---- reductions ----------------------------------------------------------------------------
    def _reduce(self, value: Instruction) -> None:
        operand = value.operands[0]
        scheme = self._scheme(value)
        self.schemes[value] = scheme
        kept = frozenset(self.axes.of(value))
        state = self.states[operand]
        if (operand, value) in self.passed:
            self.forced.add((operand, value))
            state = State(state.phase + 1)
        home = state.home
        if scheme is Scheme.REGIONAL:
            if home is not None and home != Home(HomeKind.ROWS, kept):
                state = State(state.phase + 1)
            self.states[value] = State(state.phase, Home(HomeKind.ROWS, kept))
        elif scheme is Scheme.INLINE:
            phase = state.phase + (home is not None)
            self.states[value] = State(phase, Home(HomeKind.COLUMNS, kept))
        else:
            fits = home is not None and self._fits(value, home)
            phase = state.phase + (home is not None and not fits)
            loops = partition(self.axes, self.layouts, value)
            geometry = tiling.over_partition(self.axes.extents, loops, self.limits)
            if not fits and tiling.parts_of(geometry, loops.lane_reduced) == 1:
                self.single.add(value)
                self.states[value] = State(phase + 1)
            else:
                self.states[value] = State(phase + 1, Home(HomeKind.COLUMNS, kept))

    def _fits(self, value: Instruction, home: Home) -> bool:
        """Whether a global reduction can run inside the rows that its operand is tied to."""
        reduced = frozenset(self.axes.reduced[value])
        kept = frozenset(self.axes.of(value))
        if home.kind is not HomeKind.ROWS or not home.axes <= reduced:
            return False
        inner = frozenset(self.axes.domain(value)) - home.axes
        static = all(isinstance(self.axes.extents[a], int) for a in kept)
        size = size_of(self.axes.extents[a] for a in kept)
        return kept in (inner, frozenset()) and static and size <= 16384

    def _scheme(self, value: Instruction) -> Scheme:
        extents = self.axes.extents
        order = order_of(self.axes, self.layouts, value)
        reduced = frozenset(self.axes.reduced[value])
        kept = [a for a in order if a not in reduced]
        size = size_of(extents[a] for a in reduced)
        static = all(isinstance(extents[a], int) for a in reduced)
        if not order or not reduced or is_contraction(value):
            return Scheme.INLINE
        if order[-1] not in reduced:
            return Scheme.INLINE if static and size <= self.limits.inline_size else Scheme.GLOBAL
        rows = size_of(extents[a] for a in kept)
        if not kept:
            return Scheme.INLINE if static and size <= self.limits.inline_size else Scheme.GLOBAL
        if rows < self.limits.few_rows and size > self.limits.long_row:
            return Scheme.GLOBAL
        first = min(i for i, a in enumerate(order) if a in reduced)
        suffix = all(a in reduced for a in order[first:])
        apart = size > self.limits.long_row // 16
        return Scheme.GLOBAL if apart and not suffix else Scheme.REGIONAL


def scatter_phase(states: Mapping[Instruction, State], value: Instruction) -> int:
    """The phase in which a scatter's updates are applied: after the one in which what they are
    applied to is put in place, and once they can be computed."""
    first, *others = (states[operand] for operand in value.operands)
    into = first.phase + (first.home is not None) + 1
    return max(into, *(state.phase + (state.home is not None) for state in others))


def is_update(value: Instruction) -> bool:
    return op.record(value.opcode).kind == "update"


def piece_phase(states: Mapping[Instruction, State], value: Instruction, number: int) -> int:
    """The phase in which operand `number` is written into its part of a pieced value: where it is
    computed, but after what lies in memory only; an update's, once its place is known. Around its
    window an update's first operand is written by loops of their own."""
    updates = is_update(value)
    state = states[value.operands[number]]
    apart = state.home == Home(HomeKind.MEMORY) or (updates and number == 0)
    phase = state.phase + (apart and state.home is not None)
    for start in value.operands[2:] if updates else ():
        phase = max(phase, states[start].phase + (states[start].home is not None))
    return phase


def order_of(
    axes: Axes, layouts: Mapping[Instruction, tuple[Axis, ...]], reduce: Instruction
) -> tuple[Axis, ...]:
    """All axes of a reduction's loops in memory order; those its operand ignores come first."""
    layout = layouts[reduce.operands[0]]
    missing = tuple(a for a in axes.domain(reduce) if a not in layout)
    return missing + layout


def partition(
    axes: Axes, layouts: Mapping[Instruction, tuple[Axis, ...]], reduce: Instruction
) -> Partition:
    """The loops of a global reduction that stands alone."""
    order = order_of(axes, layouts, reduce)
    reduced = frozenset(axes.reduced[reduce])
    lane = order[-1]
    outer = order[:-1]
    beside = itertools.takewhile(lambda axis: axis not in reduced, reversed(outer))
    return Partition(
        tuple(a for a in outer if a not in reduced),
        tuple(a for a in outer if a in reduced),
        lane,
        lane in reduced,
        len([*beside]),
    )
