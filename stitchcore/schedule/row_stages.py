"""Stages of a section: lane loops over a row, separated by its regional reductions.

Everything at one level (number of regional reductions on the way) shares one lane loop. A value
that several stages want is read back where an earlier stage stored it, kept in a LOCAL row buffer
when it is expensive, and computed again otherwise: loads of a row come from L1.

Buffers are taken over once they were read last, in the lane loop that reads them at the earliest:
each lane has then read the element that it writes over (FusionStitching 2020 and AStitch reuse
shared memory along the dominance tree; stages follow each other, so lifetimes are intervals). What
would not fit beside what lives then is stored to scratch memory, which nobody but the task that
wrote it reads, or computed again, by a price (fusion/row_values.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from stitchcore.fusion import row_values
from stitchcore.fusion.reuse import Prices
from stitchcore.fusion.row_values import Demotion, Rows
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.schedule.axes import Axes, Axis
from stitchcore.schedule.dominants import EXPENSIVE
from stitchcore.schedule.sections import Sink, SinkKind

READ_BACK = 3
"""From this cost a value that an earlier stage wrote to memory is read back."""


@dataclass(frozen=True)
class Nest:
    """One lane loop (inside serial loops over all but the last of `inner`); empty: row level.

    `reduces` are regional reductions it accumulates, `sinks` what it leaves in memory, `saved`
    the values it keeps in LOCAL buffers for later stages, `demoted` those that it keeps in scratch.
    """

    inner: tuple[Axis, ...]
    reduces: tuple[Instruction, ...]
    sinks: tuple[Sink, ...]
    saved: tuple[Instruction, ...]
    demoted: tuple[Instruction, ...] = ()


@dataclass(frozen=True)
class Stages:
    """Nests of each stage. `read_back` are stored values that later stages load, `invariant`
    those computed once a task, `wanted` all values the section computes, operands first; `last`
    is the last stage that reads a saved value; `demotions` say why a value is not kept on chip."""

    nests: tuple[tuple[Nest, ...], ...]
    read_back: frozenset[Instruction]
    invariant: tuple[Instruction, ...]
    wanted: tuple[Instruction, ...]
    last: Mapping[Instruction, int]
    demotions: tuple[Demotion, ...]


@dataclass(frozen=True)
class Context:
    """What the section knows of values: which are `in_memory`, `regional` reductions of these rows,
    `operands` a value is computed from here, `inner` axes of a domain in loop order. The lane loop
    of an elementwise section may be cut where it is deeper than twice `stage_depth`; 0: not.
    Each task has a position of `rows`. `prices` decide where a value waits that `local_bytes` have
    no room for."""

    axes: Axes
    in_memory: Callable[[Instruction], bool]
    regional: Callable[[Instruction], bool]
    operands: Callable[[Instruction], Sequence[Instruction]]
    inner: Callable[[Iterable[Axis]], tuple[Axis, ...]]
    domain: Callable[[Sink], frozenset[Axis]]
    local_bytes: int
    invariant_rows: bool
    stage_depth: int
    rows: frozenset[Axis]
    prices: Prices


def plan(sinks: Sequence[Sink], context: Context) -> Stages:
    """Stages of a section with these sinks."""
    levels = _levels([sink.root for sink in sinks], context)
    if context.stage_depth:
        levels = _cut(levels, context)
    axes = context.axes
    work: dict[tuple[int, tuple[Axis, ...]], tuple[list[Instruction], list[Sink]]] = {}
    for value in levels:
        if context.regional(value):
            inner = context.inner(axes.domain(value))
            work.setdefault((levels[value] - 1, inner), ([], []))[0].append(value)
    for sink in sinks:
        inner = context.inner(context.domain(sink))
        work.setdefault((levels[sink.root], inner), ([], []))[1].append(sink)
    stored = {sink.value: levels[sink.root] for sink in sinks if sink.kind is SinkKind.STORE}
    demotions: tuple[Demotion, ...] = ()
    if not context.stage_depth and len({stage for stage, _ in work}) > 1:
        demotions = _demotions(levels, work, stored, context)
    choice = _Choice(context, stored, demotions)
    for stage in range(max(levels.values(), default=0) if context.stage_depth else 0):
        for inner in {nest for _, nest in work}:
            work.setdefault((stage, inner), ([], []))
    if context.stage_depth:
        choice.cut(levels)
    for stage, inner in sorted(work):
        reduces, ends = work[stage, inner]
        roots = [value.operands[0] for value in reduces] + [sink.root for sink in ends]
        choice.visit(stage, inner, roots)
    count = max((stage for stage, _ in work), default=0) + 1
    nests: list[list[Nest]] = [[] for _ in range(count)]
    for stage, inner in sorted(work, key=lambda pair: (pair[0], not pair[1])):
        reduces, ends = work[stage, inner]
        saved, demoted = (
            tuple(value for value in levels if kept.get(value) == (stage, inner))
            for kept in (choice.saved, choice.demoted)
        )
        nests[stage].append(Nest(inner, tuple(reduces), tuple(ends), saved, demoted))
    return Stages(
        tuple(map(tuple, nests)),
        frozenset(choice.read_back),
        tuple(choice.invariant),
        tuple(value for value in levels if not context.in_memory(value)),
        choice.last,
        demotions,
    )


def _demotions(
    levels: Mapping[Instruction, int],
    work: Mapping[tuple[int, tuple[Axis, ...]], tuple[list[Instruction], list[Sink]]],
    stored: Mapping[Instruction, int],
    context: Context,
) -> tuple[Demotion, ...]:
    """Values that several stages want and the group's memory has no room for."""
    axes = context.axes

    def at_hand(value: Instruction) -> bool:
        known = context.in_memory(value) or context.regional(value)
        return known or not context.inner(axes.of(value))

    def row_bytes(value: Instruction) -> int | None:
        inner = context.inner(axes.of(value))
        return bytes_along(axes, value, inner) if inner else 0

    roots = [
        (root, stage)
        for (stage, _), (reduces, sinks) in work.items()
        for root in (*(value.operands[0] for value in reduces), *(sink.root for sink in sinks))
    ]
    rows = Rows(
        order=tuple(levels),
        roots=roots,
        operands=context.operands,
        at_hand=at_hand,
        row_bytes=row_bytes,
        stored=stored,
        storable=lambda value: context.rows <= frozenset(axes.of(value)),
    )
    return row_values.place(rows, context.local_bytes, context.prices).demoted


def bytes_along(axes: Axes, value: Instruction, inner: Iterable[Axis]) -> int | None:
    """Of a row of `value`; None where its length is symbolic."""
    size = DTYPES[value.shape.dtype].bytes
    for axis in inner:
        extent = axes.extents[axis]
        if not isinstance(extent, int):
            return None
        size *= extent
    return size


def _levels(roots: Iterable[Instruction], context: Context) -> dict[Instruction, int]:
    """Regional reductions on the longest way to each value that the roots need; operands first."""
    levels: dict[Instruction, int] = {}
    stack = [(root, False) for root in roots]
    while stack:
        value, ready = stack.pop()
        if value in levels:
            continue
        operands = () if context.in_memory(value) else context.operands(value)
        if ready:
            below = max((levels[operand] for operand in operands), default=0)
            levels[value] = below + context.regional(value)
        else:
            stack.append((value, True))
            stack.extend((operand, False) for operand in operands if operand not in levels)
    return levels


def _cut(levels: Mapping[Instruction, int], context: Context) -> dict[Instruction, int]:
    """Stages by depth, in place of the one stage of an elementwise section."""
    depths: dict[Instruction, int] = {}
    for value in levels:
        operands = () if context.in_memory(value) else context.operands(value)
        work = 0 if context.in_memory(value) else op.record(value.opcode).flops
        depths[value] = work + max((depths[operand] for operand in operands), default=0)
    deepest = max(depths.values(), default=0)
    if deepest <= 2 * context.stage_depth:
        return dict(levels)
    return {value: depth // context.stage_depth for value, depth in depths.items()}


class _Choice:
    """Which values later stages find in memory."""

    def __init__(
        self,
        context: Context,
        stored: Mapping[Instruction, int],
        demotions: Iterable[Demotion],
    ) -> None:
        self.context = context
        self.stored = stored
        self.choices = {one.value: one.choice for one in demotions}
        self.demoted: dict[Instruction, tuple[int, tuple[Axis, ...]]] = {}
        self.first: dict[tuple[Instruction, tuple[Axis, ...]], int] = {}
        self.saved: dict[Instruction, tuple[int, tuple[Axis, ...]]] = {}
        self.read_back: set[Instruction] = set()
        self.invariant: dict[Instruction, None] = {}
        self.last: dict[Instruction, int] = {}
        self.live: Counter[int] = Counter()
        self.whole_task = 0

    def cut(self, levels: Mapping[Instruction, int]) -> None:
        """Save what a stage leaves to later ones, unless it costs little to compute again."""
        costs: dict[Instruction, int] = {}
        for value, level in levels.items():
            if self.context.in_memory(value):
                continue
            stack = list(self.context.operands(value))
            while stack:
                operand = stack.pop()
                if self.context.in_memory(operand) or levels[operand] >= level:
                    continue
                inner = self.context.inner(self.context.axes.of(operand))
                if op.record(operand.opcode).kind != "elementwise":
                    stack.extend(self.context.operands(operand))
                elif operand in self.saved:
                    self.last[operand] = max(self.last[operand], level)
                elif inner and self._cost(operand, costs) >= READ_BACK:
                    self.saved[operand] = (levels[operand], inner)
                    self.last[operand] = level
                    costs = {}
                else:
                    stack.extend(self.context.operands(operand))

    def visit(self, stage: int, inner: tuple[Axis, ...], roots: Iterable[Instruction]) -> None:
        costs: dict[Instruction, int] = {}
        wanted = frozenset(inner)
        seen: set[Instruction] = set()
        stack = list(roots)
        while stack:
            value = stack.pop()
            if value in seen or self.context.in_memory(value) or not inner:
                continue
            seen.add(value)
            own = frozenset(self.context.axes.of(value))
            if not own & wanted:
                continue
            if self._is_invariant(value, own, wanted, costs):
                continue
            if wanted <= own:
                first = self.first.setdefault((value, inner), stage)
                if first < stage and self._keep(value, stage, first, inner, costs):
                    continue
            stack.extend(self.context.operands(value))

    def _keep(
        self,
        value: Instruction,
        stage: int,
        first: int,
        inner: tuple[Axis, ...],
        costs: dict[Instruction, int],
    ) -> bool:
        if value in self.read_back:
            return True
        if value in self.demoted:
            return self.demoted[value][1] == inner
        if self.saved.get(value, (stage, ()))[1] == inner:
            return self._reserve(value, inner, self.last[value], stage)
        if op.record(value.opcode).kind in ("movement", "constant"):
            return False
        cost = self._cost(value, costs)
        if self.stored.get(value, stage) < stage and cost >= READ_BACK:
            self.read_back.add(value)
            return True
        if cost < EXPENSIVE or value in self.saved:
            return False
        if value in self.choices:
            if self.choices[value].passes:
                self.demoted[value] = (first, inner)
            return value in self.demoted
        if not self._reserve(value, inner, first, stage):
            return False
        self.saved[value] = (first, inner)
        return True

    def _is_invariant(
        self,
        value: Instruction,
        own: frozenset[Axis],
        inner: frozenset[Axis],
        costs: dict[Instruction, int],
    ) -> bool:
        """Whether `value` is the same in every row and worth keeping for the whole task."""
        if value in self.invariant:
            return True
        if not self.context.invariant_rows or own != inner:
            return False
        if op.record(value.opcode).kind != "elementwise":
            return False
        if self._cost(value, costs) < EXPENSIVE:
            return False
        size = bytes_along(self.context.axes, value, own)
        room = self.context.local_bytes - max(self.live.values(), default=0) - self.whole_task
        if size is None or size > room:
            return False
        self.whole_task += size
        self.invariant[value] = None
        return True

    def _reserve(self, value: Instruction, inner: Iterable[Axis], first: int, last: int) -> bool:
        """Room for a row of `value` from stage `first` until it is read in `last`, if there is."""
        if first >= last:
            return True
        size, stages = bytes_along(self.context.axes, value, inner), range(first, last)
        room = self.context.local_bytes - self.whole_task
        if size is None or any(self.live[stage] + size > room for stage in stages):
            return False
        self.live.update(dict.fromkeys(stages, size))
        self.last[value] = last
        return True

    def _cost(self, value: Instruction, costs: dict[Instruction, int]) -> int:
        """Operations to compute `value` from what lies in memory now (shared ones count twice).

        Row-level values are at hand: they are scalars between the lane loops.
        """
        stack = [value]
        while stack:
            node = stack[-1]
            if node in costs:
                stack.pop()
                continue
            context = self.context
            at_hand = (
                context.in_memory(node)
                or context.regional(node)
                or (node is not value and not context.inner(context.axes.of(node)))
                or (
                    node is not value
                    and any(node in kept for kept in (self.saved, self.demoted, self.read_back))
                )
                or (node is not value and node in self.invariant)
            )
            operands = () if at_hand else context.operands(node)
            missing = [operand for operand in operands if operand not in costs]
            if missing:
                stack.extend(missing)
                continue
            work = 1 if at_hand else op.record(node.opcode).flops
            costs[node] = min(work + sum(costs[operand] for operand in operands), 1 << 20)
            stack.pop()
        return costs[value]
