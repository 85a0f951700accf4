"""Regions that hold too much are cut, and only what no cut mends is left as it was.

One kernel reads its inputs until it ends and makes all its outputs at once, where the operations
that it replaces held one chain after the other. So a region is put in an order that finishes what
it began (depth first, the chain whose inputs are there first before others), and consecutive
stretches of that order become regions of their own, as many as it takes: 2, 4, 8, ... No path
leaves a stretch and comes back, since the order is topological; between two stretches lies what
crosses least.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from stitchcore.errors import Refusal, Refused
from stitchcore.inject.digest import LOOP_BACK
from stitchcore.tensorflow.graph import Edge, GraphIndex
from stitchcore.tensorflow.live_bytes import Chosen, Peak, peak
from stitchcore.tensorflow.partition import Partition, Region, operation_count, region_of

MOST_PARTS = 64
"""Parts that one region is cut into at the most."""

GUILTY_SHARE = 8
"""A region that holds less than this part of what the step holds too much is left whole."""

Make = Callable[[Partition, Region], Chosen]
"""Lowers and plans one region. Raises Refused."""


@dataclass(frozen=True)
class Cut:
    """One region in `parts`, and the step's live bytes before and after."""

    region: str
    parts: tuple[str, ...]
    before: int
    after: int

    def __str__(self) -> str:
        held = f"{self.before / 2**20:,.0f} → {self.after / 2**20:,.0f} MiB live"
        return f"{self.region} in {len(self.parts)} ({held})"


@dataclass(frozen=True)
class Fitted:
    """A partition whose regions were cut, what is chosen of it, and what was done. `refused` are
    parts that no kernel covers."""

    partition: Partition
    chosen: tuple[Chosen, ...]
    cuts: tuple[Cut, ...]
    refused: tuple[Refusal, ...]


def fitted(partition: Partition, chosen: Sequence[Chosen], allowed: int, make: Make) -> Fitted:
    """`partition` with regions cut until the stitched step holds no more than `allowed`, or as
    little as cuts can do.

    What holds most when the step holds most is cut in two, all of it, then in four, and so on: one
    region's results are often another's inputs, and neither cut helps alone. Then each is put
    together again as far as that holds no more.
    """
    search = _Search(partition, chosen, make)
    counts = dict.fromkeys(search.whole, 1)
    before = now = search.held(counts)
    best = counts
    for count in _doubled(MOST_PARTS):
        while now.bytes > allowed:
            guilty = search.guilty(now, now.bytes - allowed)
            further = {name for name in guilty if counts[name] < count}
            if not further:
                break
            counts = counts | dict.fromkeys(further, count)
            now = search.held(counts)
            best = counts if now.bytes < search.held(best).bytes else best
    enough = max(allowed, search.held(best).bytes)
    for name in [name for name, count in best.items() if count > 1]:
        for count in [1, *_doubled(best[name] // 2)]:
            if search.held(best | {name: count}).bytes <= enough:
                best = best | {name: count}
                break
    return search.fitted(best, before.bytes)


class _Search:
    """A step whose regions are cut in any number of parts; each cut is made once."""

    def __init__(self, partition: Partition, chosen: Sequence[Chosen], make: Make) -> None:
        self._partition, self._make = partition, make
        self.whole = {entry[0].name: entry for entry in chosen}
        self._made: dict[tuple[str, int], tuple[list[Region], list[Chosen], list[Refusal]]] = {}
        self._held: dict[tuple[int, ...], Peak] = {}

    def _parts(self, name: str, count: int) -> tuple[list[Region], list[Chosen], list[Refusal]]:
        if count == 1:
            return [self.whole[name][0]], [self.whole[name]], []
        if (name, count) not in self._made:
            regions = list(cut(self._partition, self.whole[name][0], count))
            chosen: list[Chosen] = []
            refused: list[Refusal] = []
            for part in regions:
                try:
                    chosen.append(self._make(self._partition, part))
                except Refused as error:
                    refused.append(replace(error.refusal, subject=part.name))
            self._made[name, count] = regions, chosen, refused
        return self._made[name, count]

    def held(self, counts: Mapping[str, int]) -> Peak:
        """The most live bytes of the step with each region in `counts` parts."""
        key = tuple(counts.values())
        if key not in self._held:
            chosen = [one for item in counts.items() for one in self._parts(*item)[1]]
            self._held[key] = peak(self._partition, chosen)
        return self._held[key]

    def guilty(self, now: Peak, excess: int) -> set[str]:
        """Regions whose parts hold what matters beside `excess`."""
        held: Counter[str] = Counter()
        origin = {part.name: part.cut_from for parts, _, _ in self._made.values() for part in parts}
        for part, size in now.by_region.items():
            held[origin.get(part, part)] += size
        return {name for name, size in held.items() if size >= excess / GUILTY_SHARE}

    def fitted(self, counts: Mapping[str, int], before: int) -> Fitted:
        regions: list[Region] = []
        chosen: list[Chosen] = []
        refused: list[Refusal] = []
        cuts: list[Cut] = []
        after = self.held(counts).bytes
        for region in self._partition.regions:
            if counts.get(region.name, 1) == 1:
                regions.append(region)
                chosen += [self.whole[region.name]] if region.name in self.whole else []
                continue
            parts, own, without = self._parts(region.name, counts[region.name])
            regions += parts
            chosen += own
            refused += without
            cuts.append(Cut(region.name, tuple(part.name for part in parts), before, after))
        partition = replace(self._partition, regions=tuple(regions))
        return Fitted(partition, tuple(chosen), tuple(cuts), tuple(refused))


def _doubled(most: int) -> list[int]:
    return [2**power for power in range(1, most.bit_length())]


def cut(partition: Partition, region: Region, count: int) -> tuple[Region, ...]:
    """`region` in about `count` regions; fewer where a part would be no two operations."""
    graph = partition.graph
    order = depth_first(graph, region.members)
    position = {i: p for p, i in enumerate(graph.order)}
    must_stay = {graph.number[name] for name in partition.preserve if name in graph.number}
    made: list[Region] = []
    ends = [0, *_ends(graph, order, count), len(order)]
    for number, (start, end) in enumerate(pairwise(ends)):
        members = tuple(sorted(order[start:end], key=position.__getitem__))
        name = f"{region.name}_{number + 1}of{len(ends) - 1}"
        variables, classes = partition.variables, partition.classes
        part = region_of(graph, variables, classes, members, must_stay, name)
        made.append(replace(part, cut_from=region.name))
    return tuple(made)


def depth_first(graph: GraphIndex, members: Sequence[int]) -> list[int]:
    """`members` in an order of the graph that ends what it began: what nothing of them reads, that
    with the earliest inputs first, each after what it needs."""
    inside = set(members)
    position = {i: p for p, i in enumerate(graph.order)}
    first = min(position[i] for i in members)
    needs: dict[int, int] = {}  # when the last of a member's inputs from outside is there
    for i in sorted(members, key=position.__getitem__):
        sources = _sources(graph, i)
        needs[i] = max((needs.get(s, position[s]) for s in sources), default=0)
    sinks = [i for i in members if not any(c in inside for c, _ in graph.consumers[i])]
    order: list[int] = []
    seen: set[int] = set()
    for root in sorted(sinks, key=lambda i: (needs[i], position[i])):
        pending = [(root, iter(_sources(graph, root)))] if root not in seen else []
        seen.add(root)
        while pending:
            node, further = pending[-1]
            source = next(further, None)
            if source is None:
                pending.pop()
                if node in inside:
                    order.append(node)
            elif source not in seen and position[source] >= first:
                seen.add(source)
                pending.append((source, iter(_sources(graph, source))))
    return order


def _sources(graph: GraphIndex, i: int) -> list[int]:
    """What must have run before node i in its pass."""
    closes = graph.nodes[i].op in ("Merge", "RefMerge")
    sources = (*(tensor.node for tensor in graph.data[i]), *graph.control[i])
    forward = [s for s in sources if not (closes and graph.nodes[s].op.endswith(LOOP_BACK))]
    return [*forward, *graph.ends.get(i, ())]


def _ends(graph: GraphIndex, order: Sequence[int], count: int) -> list[int]:
    """Where to cut `order` into about `count` stretches of as many bytes: near each share, where
    the fewest bytes cross."""
    made = [_made(graph, i) for i in order]
    place = {i: p for p, i in enumerate(order)}
    crossing = [0] * (len(order) + 1)  # bytes made before a place and read after it
    for start, i in enumerate(order):
        readers = [place[c] for c, p in graph.consumers[i] if p >= 0 and c in place]
        for p in range(start + 1, max(readers, default=start) + 1):
            crossing[p] += made[start]
    before, operations = [0], [0]
    for i, size in zip(order, made, strict=True):
        before.append(before[-1] + size)
        operations.append(operations[-1] + operation_count(graph, i))
    share = before[-1] / count
    ends: list[int] = []
    last = 0
    for number in range(1, count):
        near = [
            p
            for p in range(last + 1, len(order))
            if abs(before[p] - number * share) <= share / 2
            and operations[p] - operations[last] >= 2
            and operations[-1] - operations[p] >= 2
        ]
        if near:
            last = min(near, key=lambda p: (crossing[p], abs(before[p] - number * share)))
            ends.append(last)
    return ends


def _made(graph: GraphIndex, i: int) -> int:
    """Bytes that node i computes; an assignment's are its value's."""
    outputs = [Edge(i, port) for port in range(len(graph.output_types[i]))]
    tensors = outputs or [t for t in graph.data[i] if graph.dtype(t) != "resource"]
    return sum(map(graph.byte_size, tensors))
