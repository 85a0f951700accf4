"""From a set of placed instructions to a Pattern, and where to cut a set in two."""

from __future__ import annotations

from collections.abc import Collection

from stitchcore.fusion.candidates import Graph, Role
from stitchcore.fusion.pattern import Pattern


class Extractor:
    """Patterns of one graph. Holds the inverse of `Graph.reads`, built once."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._readers: list[list[int]] = [[] for _ in graph.instructions]
        for v, role in enumerate(graph.roles):
            if role is Role.PLACED:
                for u in graph.reads[v]:
                    self._readers[u].append(v)

    def readers(self, v: int) -> list[int]:
        """The placed positions that read `v`, through aliases too."""
        return self._readers[v]

    def pattern(
        self,
        members: tuple[int, ...],
        extras: frozenset[int] = frozenset(),
        read: Collection[int] | None = None,
    ) -> Pattern:
        """The pattern of `members` (ascending positions), with the aliases and duplicables they
        read, and the placed `extras` of other patterns computed here once more.

        Outputs are the members that memory must hold: demanded, or among `read`, the positions
        other patterns read; without `read`, whatever an instruction outside `members` reads.
        """
        graph = self._graph
        inside, inputs = self.closure(members, extras)
        wanted = set(members)
        outputs = [
            v
            for v in members
            if graph.demanded[v]
            or (
                v in read
                if read is not None
                else any(reader not in wanted for reader in self._readers[v])
            )
        ]
        instructions = graph.instructions
        return Pattern(
            tuple(instructions[v] for v in sorted(inside)),
            tuple(instructions[v] for v in inputs),
            tuple(instructions[v] for v in outputs),
        )

    def closure(
        self, members: tuple[int, ...], extras: frozenset[int]
    ) -> tuple[set[int], tuple[int, ...]]:
        """All positions computed inside, and those read from outside (ascending)."""
        graph = self._graph
        inside = set(members)
        inputs: set[int] = set()
        stack = list(members)
        while stack:
            v = stack.pop()
            for operand in graph.instructions[v].operands:
                u = graph.position[operand]
                if u in inside or u in inputs:
                    continue
                if graph.through[u] or u in extras:
                    inside.add(u)
                    stack.append(u)
                else:
                    inputs.add(u)
        return inside, tuple(sorted(inputs))

    def halves(self, members: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Cut `members` into a first and a second part (no value flows back) between a quarter and
        three quarters, where the fewest bytes are carried over."""
        graph, count = self._graph, len(members)
        rank = {v: i for i, v in enumerate(members)}
        change = [0] * (count + 1)
        for i, v in enumerate(members):
            if graph.demanded[v]:
                continue
            last = max((rank[w] for w in self._readers[v] if w in rank), default=i)
            change[i] += graph.bytes[v]
            change[last] -= graph.bytes[v]
        low, high = max(1, count // 4), max(2, count - count // 4)
        carried, best, best_bytes = 0, low, None
        for i in range(count - 1):
            carried += change[i]
            cut = i + 1
            if low <= cut < high and (best_bytes is None or carried < best_bytes):
                best, best_bytes = cut, carried
        return members[:best], members[best:]
