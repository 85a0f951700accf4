"""Register reuse: a lane reads again what it read or wrote itself, with no memory.

Lane loops deal iterations to lanes alike, so a value that one lane loop leaves at the number of its
iteration, and another takes from there, never changes its lane. Such LOCAL buffers become the
lanes' own (Scope.LANE), and so do elements of memory that several lane loops of a row read
(AStitch's hierarchical data reuse: registers before shared memory before global memory). What is
worth most is kept first, until the lanes' registers are spent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.loop_ir import index
from stitchcore.loop_ir.index import Index, Variable
from stitchcore.loop_ir.layout import is_own
from stitchcore.loop_ir.nodes import (
    Allocate,
    Buffer,
    Expression,
    Let,
    Load,
    Loop,
    LoopKind,
    Role,
    Scope,
    Section,
    Statement,
    Store,
)
from stitchcore.loop_ir.visitor import accesses, gather_indices, loads, mapped, statements
from stitchcore.schedule.limits import WARP_LANES, Limits

WORD_BYTES = 4
LANE = Variable("a lane")
"""Stands for the iteration of whatever lane loop."""

Place = tuple[Buffer, tuple[Index, ...]]


def reuse(section: Section, limits: Limits, names: Callable[[str], str]) -> Section:
    """`section` with what its lanes can keep of rows; `names` makes names of buffers."""
    if not limits.register_words:
        return section
    lanes = WARP_LANES if section.scope is Scope.WARP else limits.lanes
    budget = _Budget(
        limits.register_words, limits.register_elements, lanes, section.elements_per_lane
    )
    section = _own_buffers(section, budget)
    chosen: dict[_Row, Buffer] = {}
    uses: Counter[_Row] = Counter()
    for body in _bodies(section.body):
        uses.update(_repeated(body))
    for row in sorted(uses, key=lambda row: -uses[row]):
        buffer = Buffer(names("kept"), row.buffer.dtype, (row.extent,), Scope.LANE, Role.LOCAL)
        if budget.take(buffer):
            chosen[row] = buffer
    if not chosen:
        return section
    body = _rewritten(section.body, chosen)
    return replace(section, body=(*map(Allocate, chosen.values()), *body))


@dataclass
class _Budget:
    """Words of a lane's registers; `most` elements of one buffer; `lanes` that take runs of
    `elements_per_lane` iterations."""

    words: int
    most: int
    lanes: int
    elements_per_lane: int

    def take(self, buffer: Buffer) -> bool:
        """Whether there is room for `buffer`, which is taken then."""
        elements = (
            -(-_size(buffer) // (self.lanes * self.elements_per_lane)) * self.elements_per_lane
        )
        words = elements * -(-DTYPES[buffer.dtype].bytes // WORD_BYTES)
        if elements > self.most or words > self.words:
            return False
        self.words -= words
        return True


def _size(buffer: Buffer) -> int:
    total = 1
    for extent in buffer.dims:
        assert isinstance(extent, int), f"{buffer.name} is LOCAL"
        total *= extent
    return total


# ---- LOCAL buffers -------------------------------------------------------------------------------
def _own_buffers(section: Section, budget: _Budget) -> Section:
    """`section` with those LOCAL buffers in registers of which each lane touches its own part."""
    shared = frozenset(_not_own(section.body, None))
    own: dict[Buffer, Buffer] = {}
    for statement in statements(section.body):
        if isinstance(statement, Allocate) and statement.buffer not in shared:
            if budget.take(statement.buffer):
                own[statement.buffer] = replace(statement.buffer, scope=Scope.LANE)
    return replace(section, body=mapped(section.body, lambda buffer: own.get(buffer, buffer)))


def _not_own(body: Sequence[Statement], loop: Loop | None) -> Iterator[Buffer]:
    """LOCAL buffers that are touched elsewhere than at the number of a lane loop's iteration."""
    for statement in body:
        if isinstance(statement, Loop):
            lanes = statement.kind is LoopKind.LANES
            yield from _not_own(statement.body, statement if lanes else loop)
            continue
        for access in accesses((statement,)):
            buffer, indices = access.buffer, access.indices
            if buffer.role is Role.LOCAL and (loop is None or not is_own(loop, buffer, indices)):
                yield buffer


# ---- elements of memory that are read again ------------------------------------------------------
@dataclass(frozen=True)
class _Row:
    """What lane loops from `begin`, of `extent` iterations, touch of a buffer; over LANE."""

    begin: Index
    extent: int
    buffer: Buffer
    indices: tuple[Index, ...]


def _bodies(body: tuple[Statement, ...]) -> Iterator[tuple[Statement, ...]]:
    """Statement lists outside lane loops."""
    yield body
    for statement in body:
        if isinstance(statement, Loop) and statement.kind is LoopKind.SERIAL:
            yield from _bodies(statement.body)


def _repeated(body: Sequence[Statement]) -> dict[_Row, int]:
    """Rows that a lane loop of `body` defines and later ones read, and in how many of these."""
    defined: dict[_Row, int] = {}
    for loop in body:
        if isinstance(loop, Loop) and loop.kind is LoopKind.LANES:
            for row in {row for row in _read(loop) if row in defined}:
                defined[row] += 1
            for row, _ in _defined(loop):
                defined.setdefault(row, 0)
    return {row: count for row, count in defined.items() if count}


def _row(loop: Loop, place: Place) -> _Row | None:
    """Of an access in a lane loop of known length; None for what is LOCAL or not the lane's."""
    buffer, indices = place
    extent = index.gather(index.add(loop.end, index.multiply(loop.begin, -1)))
    if buffer.role is Role.LOCAL or not isinstance(extent, int):
        return None
    named = {name for node in indices for name in index.names(node)}
    if loop.variable not in named or named & gather_indices(loop.body):
        return None
    lane = {loop.variable: LANE}
    return _Row(loop.begin, extent, buffer, tuple(index.substitute(i, lane) for i in indices))


def _read(loop: Loop) -> Iterator[_Row]:
    for load in loads(loop.body):
        if (row := _row(loop, (load.buffer, load.indices))) is not None:
            yield row


def _defined(loop: Loop) -> Iterator[tuple[_Row, int]]:
    """Rows whose elements are loaded or stored in every iteration, and by which statement."""
    for number, statement in enumerate(loop.body):
        match statement:
            case Let(_, Load(buffer, indices)) | Store(buffer, indices):
                row = _row(loop, (buffer, indices))
                if row is not None:
                    yield row, number


def _rewritten(body: tuple[Statement, ...], chosen: Mapping[_Row, Buffer]) -> tuple[Statement, ...]:
    rewritten: list[Statement] = []
    repeated = _repeated(body)
    in_registers: set[_Row] = set()
    for statement in body:
        if isinstance(statement, Loop) and statement.kind is LoopKind.SERIAL:
            statement = replace(statement, body=_rewritten(statement.body, chosen))
        elif isinstance(statement, Loop):
            loop = _reading(statement, {row: chosen[row] for row in in_registers})
            new = {
                row: chosen[row] for row in repeated if row in chosen and row not in in_registers
            }
            statement, added = _leaving(loop, new)
            in_registers |= added
        rewritten.append(statement)
    return tuple(rewritten)


def _reading(loop: Loop, in_registers: Mapping[_Row, Buffer]) -> Loop:
    """`loop` with loads of what is kept taken from there."""
    number = index.add(Variable(loop.variable), index.multiply(loop.begin, -1))

    def load(node: Expression) -> Expression:
        if not isinstance(node, Load):
            return node
        row = _row(loop, (node.buffer, node.indices))
        buffer = None if row is None else in_registers.get(row)
        return node if buffer is None else Load(buffer, (number,))

    return replace(loop, body=mapped(loop.body, expression=load))


def _leaving(loop: Loop, new: Mapping[_Row, Buffer]) -> tuple[Loop, set[_Row]]:
    """`loop` with what it loads or stores of `new` rows left there too; which these were."""
    at = (index.add(Variable(loop.variable), index.multiply(loop.begin, -1)),)
    after: dict[int, list[Statement]] = {}
    added: set[_Row] = set()
    for row, number in _defined(loop):
        statement = loop.body[number]
        if row in new and row not in added:
            assert isinstance(statement, Let | Store)
            value = statement.scalar if isinstance(statement, Let) else statement.value
            after.setdefault(number, []).append(Store(new[row], at, value))
            added.add(row)
    body: list[Statement] = []
    for number, statement in enumerate(loop.body):
        body += [statement, *after.get(number, ())]
    return replace(loop, body=tuple(body)), added
