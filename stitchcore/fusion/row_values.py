"""Where the values of a row wait while it is reduced: on chip, in scratch, or computed again.

A stage is a pass over a row between two of its reductions. What is dear and wanted in several
stages is kept on chip (shared memory, a core's cache) while there is room. Where there is not,
values are demoted one by one, the largest first (AStitch 3.6: regional to global; lifetimes as in
FusionStitching 2020, 2.4): to scratch in global memory, which the task that wrote it reads again
without waiting for others, or to nothing, and each stage computes it anew. One price decides, here
for the scheduler and for the cost model, which only differ in how they know stages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from stitchcore.device.records import Device
from stitchcore.fusion.candidates import byte_size
from stitchcore.fusion.contraction import is_contraction
from stitchcore.fusion.extents import extent
from stitchcore.fusion.instructions import KEPT_COST
from stitchcore.fusion.pattern import Pattern
from stitchcore.fusion.reuse import Choice, Prices, Way, choose
from stitchcore.hlo.ir import opcodes
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.hlo.ir.shape import DTYPES

GROUPS_HELD = 4
"""Blocks of a multiprocessor that share its memory: each has so much of it for its rows."""

CORE_BYTES, CORE_ROW = 256 * 1024, 64 * 1024
"""Of a CPU's task: what its rows leave for each other should stay in the second-level cache, and
so do rows of so many elements."""


REGISTER_ROW = 8192
"""Elements of a row that the lanes of a block keep in registers (schedule/limits.py:
register_elements for each of 256 lanes)."""


def room(device: Device) -> int:
    """Bytes that the rows of one task may take on chip."""
    return CORE_BYTES if device.kind == "cpu" else device.group_bytes // GROUPS_HELD


@dataclass(frozen=True)
class Rows:
    """What tasks of the same rows compute.

    `order` has operands first; `roots` are what each stage must have. `operands` of a value are
    what its elements are computed from, none where it is `at_hand` (in memory, or known of the
    row). `row_bytes`: of one row of a value that has elements along it; None where nobody knows the
    length, 0 for any other value. `stored` values are in memory from the first stage that needs
    them. Only `storable` values have each element in one row.
    """

    order: Sequence[Instruction]
    roots: Sequence[tuple[Instruction, int]]
    operands: Callable[[Instruction], Sequence[Instruction]]
    at_hand: Callable[[Instruction], bool]
    row_bytes: Callable[[Instruction], int | None]
    stored: Collection[Instruction]
    storable: Callable[[Instruction], bool]


@dataclass(frozen=True)
class Demotion:
    """`value`, of rows of `row_bytes`, is first computed in a stage and wanted in `later` ones.
    `way` is the one chosen; `recomputed` is what the later stages compute then."""

    value: Instruction
    choice: Choice
    row_bytes: int | None
    later: int
    way: Way
    recomputed: tuple[Instruction, ...]

    def __str__(self) -> str:
        length = "unknown length" if self.row_bytes is None else f"{self.row_bytes} bytes"
        later = f"{self.later} later {'stage' if self.later == 1 else 'stages'}"
        return self.choice.text(f"rows of {length} for {later}, no room on chip")


@dataclass(frozen=True)
class Placement:
    """What is demoted, in the order of deciding; `live`, by stage, the values that are on chip when
    it ends; `moved`, seconds of what stages pass on through memory."""

    demoted: tuple[Demotion, ...]
    live: Mapping[int, frozenset[Instruction]]
    moved: float


def place(rows: Rows, room: int, prices: Prices) -> Placement:
    """Values that `room` bytes a task do not hold are demoted until the others fit."""
    demoted: dict[Instruction, Demotion] = {}
    kept, stages = _kept(rows, demoted)
    now = prices.after(Way(_reads_again(rows, stages, prices)))
    while True:
        live = _live(kept, stages, demoted)
        over = [_bytes(rows, values) - room for values in live.values()]
        if not over or max(over) <= 0:
            return Placement(tuple(demoted.values()), live, now.memory - prices.memory)
        crowded = [*live.values()][over.index(max(over))]
        choices = [_demotion(rows, v, kept, stages, now) for v in rows.order if v in crowded]
        chosen = max(choices, key=_rank)
        demoted[chosen.value] = chosen
        now = now.after(chosen.way)
        kept, stages = _kept(rows, demoted)


def _rank(one: Demotion) -> tuple[float, float]:
    size = float("inf") if one.row_bytes is None else one.row_bytes
    return size, -min(one.choice.memory_seconds, one.choice.again_seconds)


def _bytes(rows: Rows, values: Iterable[Instruction]) -> float:
    sizes = (rows.row_bytes(value) for value in values)
    return sum(float("inf") if size is None else size for size in sizes)


def _kept(
    rows: Rows, demoted: Mapping[Instruction, Demotion]
) -> tuple[frozenset[Instruction], dict[Instruction, frozenset[int]]]:
    """Values that wait somewhere, and the stages in which each value is needed. What is dear
    depends on what waits: each is decided by the other until they agree."""
    kept: frozenset[Instruction] | None = None
    while True:
        dear = _dear(rows, kept, demoted)
        stages = _stages(rows, dear)
        now = frozenset(value for value in dear if len(stages.get(value, ())) > 1)
        if kept is None or now < kept:
            kept = now
        else:
            return kept, stages


def _dear(
    rows: Rows, kept: frozenset[Instruction] | None, demoted: Mapping[Instruction, Demotion]
) -> frozenset[Instruction]:
    """Values that take KEPT_COST operations an element from what is at hand or kept, which at first
    is all that is dear."""
    costs: dict[Instruction, int] = {}
    dear = set()
    for value in rows.order:
        if rows.at_hand(value):
            costs[value] = 1
            continue
        record = opcodes.record(value.opcode)
        cost = min(record.flops + sum(costs.get(o, 1) for o in rows.operands(value)), 1 << 20)
        again = value in demoted and not demoted[value].choice.passes
        waits = record.kind == "elementwise" and rows.row_bytes(value) != 0 and not again
        if value in rows.stored:
            cost = 1
        elif waits and cost >= KEPT_COST and (kept is None or value in kept):
            dear.add(value)
            cost = 1
        costs[value] = cost
    return frozenset(dear)


def _stages(rows: Rows, kept: frozenset[Instruction]) -> dict[Instruction, frozenset[int]]:
    """The stages in which each value is needed, where what is `kept` or stored is computed in its
    first."""
    found: dict[Instruction, set[int]] = {}
    for root, stage in rows.roots:
        found.setdefault(root, set()).add(stage)
    for value in reversed(rows.order):
        wanted = found.get(value)
        if wanted and not rows.at_hand(value):
            once = value in kept or value in rows.stored
            computed = {min(wanted)} if once else wanted
            for operand in rows.operands(value):
                found.setdefault(operand, set()).update(computed)
    return {value: frozenset(wanted) for value, wanted in found.items()}


def _live(
    kept: frozenset[Instruction],
    stages: Mapping[Instruction, frozenset[int]],
    demoted: Mapping[Instruction, Demotion],
) -> dict[int, frozenset[Instruction]]:
    """The values on chip when a stage ends; the stage that reads one last takes it over."""
    live: dict[int, set[Instruction]] = {}
    for value in kept:
        if value not in demoted and len(stages[value]) > 1:
            for stage in range(min(stages[value]), max(stages[value])):
                live.setdefault(stage, set()).add(value)
    return {stage: frozenset(live[stage]) for stage in sorted(live)}


def _demotion(
    rows: Rows,
    value: Instruction,
    kept: frozenset[Instruction],
    stages: Mapping[Instruction, frozenset[int]],
    prices: Prices,
) -> Demotion:
    size = byte_size(value.shape)
    later = stages[value] - {min(stages[value])}
    recomputed, read = _cone(rows, value, kept)
    missing = ((leaf, len(later - stages[leaf])) for leaf in read)
    again = Way(
        sum(count * _read_again(leaf, rows, prices) for leaf, count in missing),
        len(later) * prices.arithmetic(recomputed),
    )
    scratch = Way(
        prices.transfer(size, size) + len(later) * _read_again(value, rows, prices),
        waiting=0.0 if rows.storable(value) else float("inf"),
    )
    choice = choose(prices, scratch, again)
    return Demotion(
        value,
        choice,
        rows.row_bytes(value),
        len(later),
        scratch if choice.passes else again,
        () if choice.passes else recomputed,
    )


def _cone(
    rows: Rows, value: Instruction, kept: frozenset[Instruction]
) -> tuple[tuple[Instruction, ...], tuple[Instruction, ...]]:
    """What is computed to have `value` from what is kept or at hand, and what of that has rows."""
    computed: dict[Instruction, None] = {}
    read: dict[Instruction, None] = {}
    stack = [value]
    while stack:
        node = stack.pop()
        waits = rows.at_hand(node) or node in kept or node in rows.stored
        if node is not value and waits:
            if rows.row_bytes(node) != 0:
                read[node] = None
        elif node not in computed:
            computed[node] = None
            stack.extend(rows.operands(node))
    return tuple(computed), tuple(read)


def _reads_again(rows: Rows, stages: Mapping[Instruction, frozenset[int]], prices: Prices) -> float:
    """Seconds in which later stages read again what lies in memory anyway."""
    return sum(
        (len(wanted) - 1) * _read_again(value, rows, prices)
        for value, wanted in stages.items()
        if (rows.at_hand(value) or value in rows.stored) and rows.row_bytes(value) != 0
    )


def _read_again(value: Instruction, rows: Rows, prices: Prices) -> float:
    """Seconds to read a value again that the same tasks have read or written: what they have under
    way may still be in the cache."""
    size, row_bytes = byte_size(value.shape), rows.row_bytes(value)
    if row_bytes is None:
        return prices.transfer(size, size)
    if row_bytes <= prices.near_row * DTYPES[value.shape.dtype].bytes:
        return 0.0
    return prices.transfer(size, min(size, row_bytes * prices.groups))


# ---- of a pattern, before there is a kernel ------------------------------------------------------
def of_pattern(
    pattern: Pattern,
    phases: Mapping[Instruction, int],
    crosses: Callable[[Instruction], bool],
) -> list[Rows]:
    """The rows of `pattern` that are reduced by one task each: those that no value connects, and
    those of each of `phases`, apart. `crosses`: no single task owns the rows of a reduction."""
    regional = frozenset(
        value
        for value in pattern.instructions
        if opcodes.record(value.opcode).kind == "reduce"
        and not crosses(value)
        and not is_contraction(value)
        and extent(value.operands[0].shape.size) > extent(value.shape.size)
    )
    if not regional:
        return []
    group = _connected(pattern, phases)
    members: dict[Instruction, list[Instruction]] = {}
    for value in pattern.instructions:
        members.setdefault(group(value), []).append(value)
    outputs = frozenset(pattern.outputs)
    read_later = frozenset(
        operand
        for value in pattern.instructions
        for operand in value.operands
        if phases.get(operand, phases[value]) < phases[value]
    )
    return [
        _of_group(values, regional.intersection(values), outputs, read_later)
        for values in members.values()
        if not regional.isdisjoint(values)
    ]


def _connected(
    pattern: Pattern, phases: Mapping[Instruction, int]
) -> Callable[[Instruction], Instruction]:
    """Which group a value of `pattern` is in: values of one phase that are computed from each other
    are, unless by a scalar."""
    parents = {value: value for value in pattern.instructions}

    def group(value: Instruction) -> Instruction:
        while parents[value] is not value:
            parents[value] = parents[parents[value]]
            value = parents[value]
        return value

    for value in pattern.instructions:
        for operand in value.operands:
            together = operand in parents and phases[operand] == phases[value]
            if together and extent(operand.shape.size) > 1:
                parents[group(operand)] = group(value)
    return group


def _of_group(
    values: Sequence[Instruction],
    regional: frozenset[Instruction],
    outputs: frozenset[Instruction],
    read_later: frozenset[Instruction],
) -> Rows:
    """Rows as in schedule/row_stages.py, by sizes where that goes by axes."""
    inside = frozenset(values)
    count = min(extent(value.shape.size) for value in regional)
    least = min(extent(value.operands[0].shape.size) for value in regional)
    static = all(
        isinstance(value.operands[0].shape.dims[dimension], int)
        for value in regional
        for dimension in value["dimensions"]
    )
    levels: dict[Instruction, int] = {}
    roots = []
    for value in values:
        below = max((levels.get(operand, 0) for operand in value.operands), default=0)
        levels[value] = below + (value in regional)
        if opcodes.record(value.opcode).kind == "reduce":
            roots.append((value.operands[0], below))
        elif value in outputs or value in read_later:
            roots.append((value, below))

    def row_bytes(value: Instruction) -> int | None:
        size = extent(value.shape.size)
        if size < least:
            return 0
        return size // count * DTYPES[value.shape.dtype].bytes if static else None

    def at_hand(value: Instruction) -> bool:
        reduces = opcodes.record(value.opcode).kind == "reduce"
        return value not in inside or reduces or extent(value.shape.size) < least

    return Rows(
        order=values,
        roots=roots,
        operands=lambda value: value.operands,
        at_hand=at_hand,
        row_bytes=row_bytes,
        stored=outputs.intersection(values),
        storable=lambda value: True,
    )


def held_bytes(rows: Rows, placement: Placement) -> int:
    """Shared memory of the rows on chip, those left out that the lanes' registers hold."""
    held = (
        sum(size for value in values if (size := rows.row_bytes(value) or 0) > _registers(value))
        for values in placement.live.values()
    )
    return max(held, default=0)


def _registers(value: Instruction) -> int:
    return REGISTER_ROW * DTYPES[value.shape.dtype].bytes
