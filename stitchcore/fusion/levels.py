"""Levels: where between the library calls each placed instruction is computed.

The level of an opaque instruction is the largest number of opaque instructions before it on any
path. A placed instruction may take any level from that of its latest operand to that of its
earliest user. Patterns are cut from single levels, and every path from one pattern to another
that leaves their level goes through a higher one, so no choice of levels can make a cycle.

The choice is made by the bytes that must cross: a value that is read at another level than its own
is written once and read once per such level. Starting from the earliest levels, two sweeps of
local moves (users first, then operands first) bring producers to their readers: what AStitch's
maximal scopes leave open, and what decides which kernel computes, say, the derivative of an
activation. Where a mechanism is left out that would let kernels go on after reductions, those that
read one are of a later level too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from stitchcore.fusion.candidates import Graph, Role, reduces_rows
from stitchcore.fusion.contraction import is_contraction
from stitchcore.fusion.mechanisms import ALL, Mechanism, Mechanisms
from stitchcore.hlo.ir import opcodes
from stitchcore.hlo.ir.instruction import Instruction

CANDIDATES = 8
"""Levels tried for one instruction in one sweep; keeps a sweep linear."""


@dataclass(frozen=True)
class Levels:
    """`of[v]` is the level of every placed and opaque position; sources keep 0."""

    of: tuple[int, ...]


@dataclass
class _State:
    """Working state of the sweeps: levels, and for each base how many read it at which level."""

    graph: Graph
    level: list[int]
    read_at: list[Counter[int]]

    def crossing(self, v: int, level: int | None) -> int:
        """Bytes moved for value v if it is computed at `level` (None: it comes from outside)."""
        levels = self.read_at[v]
        if level is None:
            return self.graph.bytes[v] * len(levels)
        others = len(levels) - (level in levels)
        stored = others > 0 or self.graph.demanded[v]
        return self.graph.bytes[v] * (others + stored)

    def placed_level(self, v: int) -> int | None:
        return self.level[v] if self.graph.roles[v] is Role.PLACED else None

    def cost(self, v: int, level: int) -> int:
        """Bytes that depend on v's level, with v computed at `level`."""
        total = self.crossing(v, level)
        for u in self.graph.reads[v]:
            self.read_at[u][level] += 1
            total += self.crossing(u, self.placed_level(u))
            self._unread(u, level)
        return total

    def _unread(self, u: int, level: int) -> None:
        counter = self.read_at[u]
        counter[level] -= 1
        if not counter[level]:
            del counter[level]

    def lift(self, v: int) -> None:
        """Take v's reads off the books before its costs are compared."""
        for u in self.graph.reads[v]:
            self._unread(u, self.level[v])

    def put(self, v: int, level: int) -> None:
        self.level[v] = level
        for u in self.graph.reads[v]:
            self.read_at[u][level] += 1


def assign(graph: Graph, mechanisms: Mechanisms = ALL) -> Levels:
    """Levels of every instruction, chosen to move few bytes."""
    ends = [ends_kernel(instruction, mechanisms) for instruction in graph.instructions]
    level, available = _earliest(graph, ends)
    latest_user = _users(graph)
    state = _State(graph, level, [Counter() for _ in level])
    placed = graph.placed()
    for v in placed:
        state.put(v, level[v])
    top = max(level, default=0)
    for order, forward in ((reversed(placed), False), (placed, True), (reversed(placed), False)):
        for v in order:
            low = max(
                (
                    level[u] + ends[u] if _is_placed(graph, u) else available[u]
                    for u in graph.reads[v]
                ),
                default=0,
            )
            high = min((level[w] - ends[v] for w in latest_user[v]), default=top)
            if low < high:
                _move(state, v, low, high, forward)
    return Levels(tuple(level))


def _move(state: _State, v: int, low: int, high: int, forward: bool) -> None:
    """Put v where it is cheapest. Ties go towards the readers, but the last value of a chain (only
    the caller needs it) stays early, so that what it reads can be freed."""
    wanted = {low, high, state.level[v], *list(state.read_at[v])[:CANDIDATES]}
    for u in state.graph.reads[v]:
        wanted.update(list(state.read_at[u])[:2])
        if len(wanted) >= CANDIDATES:
            break
    choices = sorted(level for level in wanted if low <= level <= high)
    state.lift(v)
    late = bool(state.read_at[v]) and not forward
    best = state.level[v]
    best_cost = state.cost(v, best)
    for level in choices:
        cost = state.cost(v, level)
        if cost < best_cost or (cost == best_cost and late and level > best):
            best, best_cost = level, cost
    state.put(v, best)


def _is_placed(graph: Graph, v: int) -> bool:
    return graph.roles[v] is Role.PLACED


def _earliest(graph: Graph, ends: Sequence[bool]) -> tuple[list[int], list[int]]:
    """Earliest level of each position, and the level from which others may read it."""
    level = [0] * len(graph.instructions)
    available = [0] * len(graph.instructions)
    for v, instruction in enumerate(graph.instructions):
        role = graph.roles[v]
        outside = role in (Role.OPAQUE, Role.SOURCE)
        operands = [graph.position[operand] for operand in instruction.operands]
        bases = {b for u in operands for b in (graph.reads[u] if graph.through[u] else (u,))}
        if outside:
            bases.update(u for u in operands if graph.roles[u] is Role.PLACED)
        level[v] = max((available[u] for u in bases), default=0)
        if role is Role.OPAQUE:
            available[v] = level[v] + 1
        elif role is Role.SOURCE:
            # Passed on through a tuple: readable only after the kernel that made it has ended.
            placed = any(graph.roles[u] is Role.PLACED for u in bases)
            available[v] = level[v] + placed
        else:
            available[v] = level[v] + (role is Role.PLACED and ends[v])
    return level, available


def _users(graph: Graph) -> list[list[int]]:
    """For each placed position, the positions whose level bounds it from above."""
    users: list[list[int]] = [[] for _ in graph.instructions]
    root = graph.position[graph.module.entry.root]
    for v, instruction in enumerate(graph.instructions):
        role = graph.roles[v]
        if role is Role.PLACED:
            for u in graph.reads[v]:
                users[u].append(v)
        elif role is Role.OPAQUE or (role is Role.SOURCE and v != root):
            for operand in instruction.operands:
                u = graph.position[operand]
                through = graph.reads[u] if graph.through[u] else ()
                for base in {*_seen_through(graph, u), *through}:
                    users[base].append(v)
    return users


def _seen_through(graph: Graph, u: int) -> list[int]:
    """`u` and, where it is a free view, what it looks at: that has to be in memory for it, though
    kernels would look through it too (a slice that something outside wants)."""
    chain = [u]
    while graph.roles[chain[-1]] is Role.ALIAS:
        chain.append(graph.position[graph.instructions[chain[-1]].operands[0]])
    return chain


def ends_kernel(instruction: Instruction, mechanisms: Mechanisms) -> bool:
    """Whether what reads `instruction` must be of a later kernel: one that cannot go on after its
    reductions, within a task or across tasks."""
    kind = opcodes.record(instruction.opcode).kind
    if kind not in ("reduce", "scatter", "scan") or is_contraction(instruction):
        return False
    needed = Mechanism.REGIONAL if reduces_rows(instruction) else Mechanism.GLOBAL
    return needed not in mechanisms
