"""Reading less by computing again: what a pattern reads from earlier patterns, as a minimum cut.

A gradient kernel often needs several values of the forward pass that are all cheap functions of one
value which is in memory anyway: the input of an activation. Then it is faster to read that one and
compute the others a second time than to write them in the forward kernel and read them here.

For one pattern: nodes are the elementwise values behind its inputs, down to what cannot be computed
again (library results, parameters, reductions); a node's capacity is the time that memory takes
when it is the one that is read. The minimum cut nearest to the pattern is what it should read.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from stitchcore.device.records import Device
from stitchcore.fusion.candidates import Graph, Role
from stitchcore.fusion.cost import arithmetic_seconds, transfer
from stitchcore.fusion.pattern_from_set import Extractor
from stitchcore.hlo.ir import opcodes

CONE_LIMIT = 160
"""Most values looked at behind the inputs of one pattern."""

SMALL_BYTES = 16384
"""Values up to this size are read: nothing that could be saved on them would be noticed."""

INFINITE = 1 << 60

RESOLUTION = 1e-15
"""Seconds that a unit of a network's flow stands for: a small part of what a byte takes."""


def recomputable(graph: Graph, v: int) -> bool:
    """Whether another pattern should consider computing v again: one element from one each."""
    if graph.roles[v] is not Role.PLACED or graph.bytes[v] <= SMALL_BYTES:
        return False
    return opcodes.record(graph.instructions[v].opcode).kind == "elementwise"


def cut(graph: Graph, inputs: Iterable[int], moving: Callable[[int], float]) -> frozenset[int]:
    """The placed positions to compute again in a pattern that reads `inputs`; often none.

    `moving(v)`: seconds of memory that reading v costs, with those of writing it where that would
    be for this pattern alone.
    """
    needed = [v for v in inputs if recomputable(graph, v)]
    if not needed:
        return frozenset()
    cone = _cone(graph, needed)
    paid = {v for v in inputs if v not in cone or not recomputable(graph, v)}
    network = _Network()
    source, sink = network.node(), network.node()
    enter: dict[int, int] = {}
    leave: dict[int, int] = {}
    for v in cone:
        enter[v], leave[v] = network.node(), network.node()
        price = 0 if v in paid else round(moving(v) / RESOLUTION)
        network.edge(enter[v], leave[v], price)
    for v, bases in cone.items():
        if bases is None:
            network.edge(source, enter[v], INFINITE)
            continue
        for u in bases:
            network.edge(leave[u], enter[v], INFINITE)
    for v in needed:
        network.edge(leave[v], sink, INFINITE)
    if network.saturate(source, sink) >= INFINITE:
        return frozenset()
    near = network.reaches(sink)
    return frozenset(v for v in cone if enter[v] in near and leave[v] in near)


def _cone(graph: Graph, needed: list[int]) -> dict[int, tuple[int, ...] | None]:
    """Values behind `needed` with what they are computed from; None where the cone ends."""
    cone: dict[int, tuple[int, ...] | None] = {}
    queue = deque(needed)
    while queue:
        v = queue.popleft()
        if v in cone:
            continue
        expand = recomputable(graph, v) and len(cone) + len(queue) < CONE_LIMIT
        cone[v] = graph.reads[v] if expand else None
        if expand:
            queue.extend(graph.reads[v])
    return cone


@dataclass(frozen=True)
class Part:
    """What a pattern owns (ascending positions) and what it computes again."""

    members: tuple[int, ...]
    extras: frozenset[int] = frozenset()


def improve(graph: Graph, parts: list[Part], extractor: Extractor, device: Device) -> list[Part]:
    """`parts`, in a runnable order, with what each should compute again; last readers choose first.

    Recomputing is taken where moving the bytes it saves takes longer than the arithmetic it adds.
    """
    inputs = [extractor.closure(part.members, part.extras)[1] for part in parts]
    readers = Counter(v for reads in inputs for v in reads)
    result = list(parts)
    for number in range(len(parts) - 1, -1, -1):
        part, reads = parts[number], set(inputs[number])

        def moving(v: int, reads: set[int] = reads) -> float:
            placed = graph.roles[v] is Role.PLACED
            stored = not placed or graph.demanded[v] or readers[v] > (v in reads)
            return transfer(graph.bytes[v], graph.bytes[v], device) * (1 if stored else 2)

        extras = cut(graph, inputs[number], moving)
        if not extras:
            continue
        inputs_after = extractor.closure(part.members, extras)[1]
        saved = sum(map(moving, reads)) - sum(map(moving, inputs_after))
        more = arithmetic_seconds((graph.instructions[v] for v in extras), device)
        if saved > more:
            result[number] = Part(part.members, extras)
            readers.subtract(reads)
            readers.update(inputs_after)
    return result


class _Network:
    """A small flow network: shortest augmenting paths by levels (Dinic)."""

    def __init__(self) -> None:
        self._edges: list[list[int]] = []
        self._target: list[int] = []
        self._capacity: list[int] = []

    def node(self) -> int:
        self._edges.append([])
        return len(self._edges) - 1

    def edge(self, start: int, end: int, capacity: int) -> None:
        for source, target, size in ((start, end, capacity), (end, start, 0)):
            self._edges[source].append(len(self._target))
            self._target.append(target)
            self._capacity.append(size)

    def saturate(self, source: int, sink: int) -> int:
        """Push a maximum flow; returns it."""
        total = 0
        while True:
            level = self._levels(source)
            if sink not in level:
                return total
            position = [0] * len(self._edges)
            while (pushed := self._augment(source, sink, level, position)) > 0:
                total += pushed
                if total >= INFINITE:
                    return total

    def reaches(self, sink: int) -> set[int]:
        """Nodes from which the sink can still be reached: the sink's side of the nearest cut."""
        seen, queue = {sink}, deque([sink])
        while queue:
            node = queue.popleft()
            for edge in self._edges[node]:
                before = self._target[edge]
                if before not in seen and self._capacity[edge ^ 1] > 0:
                    seen.add(before)
                    queue.append(before)
        return seen

    def _levels(self, source: int) -> dict[int, int]:
        level, queue = {source: 0}, deque([source])
        while queue:
            node = queue.popleft()
            for edge in self._edges[node]:
                target = self._target[edge]
                if self._capacity[edge] > 0 and target not in level:
                    level[target] = level[node] + 1
                    queue.append(target)
        return level

    def _augment(self, source: int, sink: int, level: dict[int, int], position: list[int]) -> int:
        """Push along one shortest path, found depth first; 0 when there is none left."""
        path: list[int] = []
        node = source
        while node != sink:
            while position[node] < len(self._edges[node]):
                edge = self._edges[node][position[node]]
                target = self._target[edge]
                if self._capacity[edge] > 0 and level.get(target, -1) == level[node] + 1:
                    path.append(edge)
                    node = target
                    break
                position[node] += 1
            else:
                if not path:
                    return 0
                node = self._target[path.pop() ^ 1]
                position[node] += 1
        pushed = min(self._capacity[edge] for edge in path)
        for edge in path:
            self._capacity[edge] -= pushed
            self._capacity[edge ^ 1] += pushed
        return pushed
