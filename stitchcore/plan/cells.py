"""A window of one level as a small graph of cells, and the delta-evaluator over sets of cells.

FusionStitching's explorer works on the kernels that XLA's own fusion leaves (papers.md section 2).
Cells are these: a value together with everything that only it reads, cut at reductions. A cell has
one value that others may read. Sets of cells are integers with one bit per cell; cells are numbered
in topological order.

The delta-evaluator (papers.md 2.2) estimates what one kernel of a set saves against a kernel per
cell, from figures gathered once per cell: bytes that need not be moved, launches, less the phases
that the kernel must wait for. It follows cost.py but for registers, which it leaves alone as the
paper does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stitchcore.device.records import Device
from stitchcore.hlo import opcodes
from stitchcore.hlo.instruction import Instruction
from stitchcore.plan.cost import crosses_tasks, kernel_seconds, read_size, work
from stitchcore.plan.pattern import Pattern
from stitchcore.plan.scopes import Problem, within_limits


def bits(cells: int) -> Iterator[int]:
    """The numbers in a set, ascending."""
    while cells:
        low = cells & -cells
        yield low.bit_length() - 1
        cells ^= low


@dataclass(frozen=True)
class Dag:
    """Which cell reads which, as sets: `consumers[c]` directly, `below[c]` and `above[c]` all that
    can be reached from c and that reach c, with c itself."""

    consumers: tuple[int, ...]
    below: tuple[int, ...]
    above: tuple[int, ...]

    def down(self, cells: int) -> int:
        """All that a set reaches, and itself."""
        found = 0
        for c in bits(cells):
            found |= self.below[c]
        return found

    def hull(self, cells: int) -> int:
        """The least set without a path that leaves it and comes back."""
        up = 0
        for c in bits(cells):
            up |= self.above[c]
        return self.down(cells) & up


def dag(consumers: Sequence[int]) -> Dag:
    """The Dag with these direct consumers, each of a higher number than what it reads."""
    count = len(consumers)
    below, above = [0] * count, [0] * count
    for c in range(count - 1, -1, -1):
        below[c] = 1 << c
        for d in bits(consumers[c]):
            below[c] |= below[d]
    for c in range(count):
        above[c] |= 1 << c
        for d in bits(consumers[c]):
            above[d] |= above[c]
    return Dag(tuple(consumers), tuple(below), tuple(above))


@dataclass(frozen=True)
class Cell:
    """`members` are positions, ascending; the last one's value is what others may read. `reads` are
    (position, bytes touched) of values from outside the cell. `stored`: the value must be in memory
    whatever the window's kernels do. `crossing`: who reads it in the same kernel waits for all."""

    members: tuple[int, ...]
    reads: tuple[tuple[int, int], ...]
    size: int
    flops: int
    instructions: int
    stored: bool
    crossing: bool


@dataclass(frozen=True)
class Window:
    """Cells with their Dag. `made[p]` is the cell whose value is at position p; `sizes` are bytes
    of every value that a cell reads or makes."""

    cells: tuple[Cell, ...]
    dag: Dag
    made: dict[int, int]
    sizes: dict[int, int]
    device: Device

    def members(self, cells: int) -> tuple[int, ...]:
        """Positions in a set of cells, ascending."""
        return tuple(sorted(p for c in bits(cells) for p in self.cells[c].members))

    def seconds(self, cells: int) -> float | None:
        """One kernel of a set; None where that breaks a resource rule."""
        readers: dict[int, list[tuple[int, int]]] = {}
        moved = flops = instructions = outputs = 0
        for c in bits(cells):
            cell = self.cells[c]
            flops += cell.flops
            instructions += cell.instructions
            if cell.stored or self.dag.consumers[c] & ~cells:
                moved += cell.size
                outputs += 1
            for position, touched in cell.reads:
                maker = self.made.get(position)
                if maker is None or not cells >> maker & 1:
                    readers.setdefault(position, []).append((c, touched))
        if within_limits(instructions, len(readers) + outputs) is not None:
            return None
        phase = self._phases(cells)
        for position, by in readers.items():
            size = min(self.sizes[position], sum(touched for _, touched in by))
            again = phase and size > self.device.cache_bytes
            moved += size * (len({phase[c] for c, _ in by}) if again else 1)
        count = 1 + max(phase.values(), default=0)
        return kernel_seconds(moved, flops, count, self.device)

    def _phases(self, cells: int) -> dict[int, int]:
        """The phase in which each cell of a set can first run; empty where there is one."""
        if not any(self.cells[c].crossing for c in bits(cells)):
            return {}
        first: dict[int, int] = {}
        for c in bits(cells):
            makers = [self.made.get(position) for position, _ in self.cells[c].reads]
            first[c] = max(
                (first[m] + self.cells[m].crossing for m in makers if m is not None and m in first),
                default=0,
            )
        return first


def window(given: Problem, members: Sequence[int]) -> Window:
    """The cells of `members` (ascending positions of one level) with their Dag."""
    graph, extractor = given.graph, given.extractor
    inside = set(members)
    root: dict[int, int] = {}
    for v in reversed(members):
        readers = extractor.readers(v)
        alone = len(readers) == 1 and readers[0] in inside and not graph.demanded[v]
        reduces = opcodes.record(graph.instructions[v].opcode).kind == "reduce"
        root[v] = root[readers[0]] if alone and not reduces else v
    groups: dict[int, list[int]] = {}
    for v in members:
        groups.setdefault(root[v], []).append(v)
    made = {v: c for c, v in enumerate(sorted(groups))}
    cells = []
    consumers = [0] * len(made)
    sizes: dict[int, int] = {}
    for v, c in made.items():
        pattern = extractor.pattern(tuple(groups[v]))
        reads = tuple(_reads(given, pattern))
        sizes.update({p: graph.bytes[p] for p, _ in reads})
        sizes[v] = graph.bytes[v]
        for position, _ in reads:
            if position in made:
                consumers[made[position]] |= 1 << c
        cells.append(
            Cell(
                tuple(groups[v]),
                reads,
                graph.bytes[v],
                sum(map(work, pattern.instructions)),
                len(pattern.instructions),
                graph.demanded[v] or any(w not in inside for w in extractor.readers(v)),
                crosses_tasks(graph.instructions[v]),
            )
        )
    return Window(tuple(cells), dag(consumers), made, sizes, given.device)


def _reads(given: Problem, pattern: Pattern) -> Iterator[tuple[int, int]]:
    users: dict[Instruction, list[Instruction]] = {}
    for instruction in pattern.instructions:
        for operand in instruction.operands:
            users.setdefault(operand, []).append(instruction)
    for value in pattern.inputs:
        yield given.graph.position[value], read_size(value, users[value])
