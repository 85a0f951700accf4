"""A window of one level as a small graph of cells, and the delta-evaluator over sets of cells.

FusionStitching's explorer works on the kernels that XLA's own fusion leaves (Zheng et al. 2020,
arXiv:2009.10924v2).
Cells are these: a value together with everything that only it reads, cut at reductions. A cell has
one value that others may read. Sets of cells are integers with one bit per cell; cells are numbered
in topological order.

The delta-evaluator (section 5.4 there) estimates what one kernel of a set saves against a kernel
per cell, from figures gathered once per cell: bytes that need not be moved, launches, less the
phases that the kernel must wait for. It follows cost.py but for registers and shared memory, which
it leaves alone as the paper does, and on a GPU for what does not add up over cells: what is
computed again at broadcasts, the critical path of a warp, code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from stitchcore.device.records import Device
from stitchcore.fusion import latency
from stitchcore.fusion.candidates import byte_size
from stitchcore.fusion.cost import (
    crosses_tasks,
    kernel_seconds,
    priced,
    read_size,
    taken_size,
    transfer,
    written_size,
)
from stitchcore.fusion.latency import Work
from stitchcore.fusion.pattern import Pattern
from stitchcore.fusion.planner_rules import Problem, within_limits
from stitchcore.hlo.ir import opcodes
from stitchcore.hlo.ir.instruction import Instruction


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
class Part:
    """A set of cells with all that it reaches (`down`), all that reaches it (`up`), itself in both,
    and the seconds that it saves as one kernel."""

    cells: int
    down: int
    up: int
    saved: float


Judge = Callable[[int, int], float | None]
"""Seconds a set saves as one kernel, or None where it cannot be one. The second set is a part of
the first that was judged before, or 0."""


def lone(dag: Dag, c: int) -> Part:
    """One cell, which saves nothing."""
    return Part(1 << c, dag.below[c], dag.above[c], 0.0)


def union(first: Part, second: Part, judge: Judge) -> Part | None:
    """Both in one kernel; what lies on paths between them may be missing."""
    known = max(first.cells, second.cells, key=int.bit_count)
    cells = first.cells | second.cells
    saved = judge(cells, known)
    return (
        None
        if saved is None
        else Part(cells, first.down | second.down, first.up | second.up, saved)
    )


def hull(part: Part, judge: Judge) -> Part | None:
    """The least set around `part` that no path leaves and comes back to."""
    cells = part.down & part.up
    if cells == part.cells:
        return part
    saved = judge(cells, part.cells)
    return None if saved is None else replace(part, cells=cells, saved=saved)


@dataclass(frozen=True)
class Key:
    """Something that cells read: a value or a slice of one. `maker` is the cell that makes it, -1
    outside the window; `readers` are cells; `large` values are read again in every phase."""

    maker: int
    readers: int
    seconds: float
    large: bool


@dataclass(frozen=True)
class Cell:
    """`members` are positions, ascending; the last one's value is what others may read, and takes
    `seconds` to write. `reads` are keys. `stored`: the value must be in memory whatever the
    window's kernels do. `crossing`: who reads it in the same kernel waits for all tasks."""

    members: tuple[int, ...]
    reads: tuple[int, ...]
    keys: tuple[int, ...]
    seconds: float
    work: Work
    instructions: int
    stored: bool
    crossing: bool


@dataclass(frozen=True)
class Window:
    """Cells with their Dag and what they read."""

    cells: tuple[Cell, ...]
    dag: Dag
    keys: tuple[Key, ...]
    device: Device

    def members(self, cells: int) -> tuple[int, ...]:
        """Positions in a set of cells, ascending."""
        return tuple(sorted(p for c in bits(cells) for p in self.cells[c].members))


def window(problem: Problem, members: Sequence[int]) -> Window:
    """The cells of `members` (ascending positions of one level) with their Dag."""
    graph, extractor, inside = problem.graph, problem.extractor, set(members)
    groups = _groups(problem, members)
    cell_of = {v: c for c, v in enumerate(groups)}
    patterns = [extractor.pattern(tuple(group)) for group in groups.values()]
    number: dict[Instruction, int] = {}
    entries: list[tuple[int, float, bool]] = []
    readers: list[int] = []
    reads: list[list[int]] = []
    consumers = [0] * len(cell_of)
    for c, pattern in enumerate(patterns):
        reads.append([])
        for read, base in _reads(pattern):
            k = number.setdefault(read, len(number))
            if k == len(entries):
                total = byte_size(base.shape)
                size = total if read is base else min(total, taken_size(read))
                seconds = transfer(size, total, problem.device)
                maker = cell_of.get(graph.position[base], -1)
                entries.append((maker, seconds, total > problem.device.cache_bytes))
                readers.append(0)
            readers[k] |= 1 << c
            reads[c].append(k)
            if entries[k][0] >= 0:
                consumers[entries[k][0]] |= 1 << c
    keys_of: list[list[int]] = [[] for _ in cell_of]
    for k, (maker, _, _) in enumerate(entries):
        if maker >= 0:
            keys_of[maker].append(k)
    cells = tuple(
        Cell(
            tuple(group),
            tuple(reads[c]),
            tuple(keys_of[c]),
            transfer(written_size(graph.instructions[v]), graph.bytes[v], problem.device),
            _work(patterns[c], problem.device),
            len(patterns[c].instructions),
            graph.demanded[v] or any(w not in inside for w in extractor.readers(v)),
            crosses_tasks(graph.instructions[v]),
        )
        for c, (v, group) in enumerate(groups.items())
    )
    keys = tuple(Key(m, r, s, big) for (m, s, big), r in zip(entries, readers, strict=True))
    return Window(cells, dag(consumers), keys, problem.device)


def _work(pattern: Pattern, device: Device) -> Work:
    return sum((priced(instruction, device) for instruction in pattern.instructions), Work())


def _groups(problem: Problem, members: Sequence[int]) -> dict[int, list[int]]:
    """The members of each cell by the position of its value, in order."""
    graph, inside = problem.graph, set(members)
    root: dict[int, int] = {}
    for v in reversed(members):
        readers = problem.extractor.readers(v)
        alone = len(readers) == 1 and readers[0] in inside and not graph.demanded[v]
        reduces = opcodes.record(graph.instructions[v].opcode).kind == "reduce"
        root[v] = root[readers[0]] if alone and not reduces else v
    groups: dict[int, list[int]] = {v: [] for v in sorted(set(root.values()))}
    for v in members:
        groups[root[v]].append(v)
    return groups


def _reads(pattern: Pattern) -> Iterator[tuple[Instruction, Instruction]]:
    """(what is read, the value it is part of): slices where nothing else of the value is read."""
    users: dict[Instruction, list[Instruction]] = {}
    for instruction in pattern.instructions:
        for operand in instruction.operands:
            users.setdefault(operand, []).append(instruction)
    for value in pattern.inputs:
        if read_size(value, users[value]) < byte_size(value.shape):
            yield from ((part, value) for part in dict.fromkeys(users[value]))
        else:
            yield value, value


NOTHING = Work()
"""Of no cell."""


@dataclass(frozen=True, slots=True)
class _Facts:
    """Sums over a set: seconds of its cells each alone, of the transfers of its inputs and outputs,
    arithmetic, counts, and its large inputs as a set of keys."""

    apart: float = 0.0
    memory: float = 0.0
    work: Work = NOTHING
    instructions: int = 0
    buffers: int = 0
    large: int = 0


class Delta:
    """The delta-evaluator of one window; remembers the facts of every set it was asked about."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._facts = {0: _Facts()}
        self._saved: dict[int, float | None] = {0: 0.0}
        self._crossing = sum(1 << c for c, cell in enumerate(window.cells) if cell.crossing)
        count = len(window.cells)
        self._alone = [0.0] * count
        self._alone = [self.seconds(1 << c) for c in range(count)]
        self._facts = {0: _Facts()}
        for c in range(count):
            self._grown(1 << c, 0)

    def judge(self, cells: int, known: int) -> float | None:
        """A Judge."""
        if cells not in self._saved:
            facts = self._grown(cells, known)
            together = self._seconds(cells, facts)
            allowed = within_limits(facts.instructions, facts.buffers) is None
            self._saved[cells] = facts.apart - together if allowed else None
        return self._saved[cells]

    def seconds(self, cells: int) -> float:
        """One kernel of `cells`."""
        return self._seconds(cells, self._grown(cells, 0))

    def _grown(self, cells: int, known: int) -> _Facts:
        """The facts of `cells`, from those of a part of it."""
        if cells in self._facts:
            return self._facts[cells]
        facts = self._facts[known]
        apart, memory, work = facts.apart, facts.memory, facts.work
        instructions, buffers, large = facts.instructions, facts.buffers, facts.large
        consumers, inside = self._window.dag.consumers, known
        for c in bits(cells & ~known):
            cell = self._window.cells[c]
            apart += self._alone[c]
            work += cell.work
            instructions += cell.instructions
            if cell.stored or consumers[c] & ~inside:
                memory += cell.seconds
                buffers += 1
            for k in cell.keys:
                key = self._window.keys[k]
                if key.readers & inside:
                    memory -= key.seconds
                    buffers -= 1
                    large &= ~(1 << k)
            grown = inside | 1 << c
            for k in cell.reads:
                key = self._window.keys[k]
                if key.maker >= 0 and inside >> key.maker & 1:
                    continue
                if not key.readers & inside:
                    memory += key.seconds
                    buffers += 1
                    large |= key.large << k
            for m in {self._window.keys[k].maker for k in cell.reads}:
                if m >= 0 and inside >> m & 1 and not self._window.cells[m].stored:
                    if not consumers[m] & ~grown:
                        memory -= self._window.cells[m].seconds
                        buffers -= 1
            inside = grown
        grown_facts = _Facts(apart, memory, work, instructions, buffers, large)
        self._facts[cells] = grown_facts
        return grown_facts

    def _seconds(self, cells: int, facts: _Facts) -> float:
        memory, phases = facts.memory, 1
        crossing = cells & self._crossing
        if crossing:
            starts = self._phases(cells, crossing)
            phases = len(starts)
            if phases > 1:
                for k in bits(facts.large):
                    key = self._window.keys[k]
                    first = [
                        now & ~later for now, later in zip(starts, [*starts[1:], 0], strict=True)
                    ]
                    times = sum(1 for phase in first if phase & key.readers & cells)
                    memory += key.seconds * (times - 1)
        device = self._window.device
        path_cycles = 0.0 if device.timing is None else phases * device.timing.cpi.memory
        return kernel_seconds(
            memory, latency.seconds(facts.work, device, path_cycles=path_cycles), phases, device
        )

    def _phases(self, cells: int, crossing: int) -> list[int]:
        """For each phase, the cells that can run no earlier; the first holds all."""
        starts = [cells]
        for c in bits(crossing):
            phase = max(n for n, late in enumerate(starts) if late >> c & 1)
            later = self._window.dag.below[c] & cells & ~(1 << c)
            if later and phase + 1 == len(starts):
                starts.append(0)
            if later:
                starts[phase + 1] |= later
        return starts
