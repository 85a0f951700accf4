"""Levels: between which opaque nodes each node can run; what makes cutting acyclic.

Along every edge the level does not fall, and it rises where a region would be left; what leaves a
loop comes after all that its passes compute. So two members of one level and one kind have no path
between them that leaves their level: any set of them is convex, and a circle of regions is one of
members of one level and kind, clones and reads (partition.py joins those). The indices of a lookup
come from before its region, which runs once they are verified (lookups.py). One pass forward gives
the earliest levels; one pass backward moves members later where that holds fewer bytes.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from stitchcore.inject import collectives
from stitchcore.tensorflow import lookups
from stitchcore.tensorflow.graph import Edge, GraphIndex
from stitchcore.tensorflow.node_roles import Classes, Part
from stitchcore.tensorflow.op_allowlist import DRAWN
from stitchcore.tensorflow.variables import Variables

Kind = Hashable
"""What members of one region share: device, frame, deadness, whether they are small, and which
collectives wait for them. A collective that waited for one member would else wait for all: its
input would be postponed, and collectives could wait for each other that did not before."""


@dataclass(frozen=True)
class Levels:
    """`level[i]` of every node; `kind[i]` of members."""

    level: tuple[int, ...]
    kind: tuple[Kind, ...]


def assign(graph: GraphIndex, classes: Classes, variables: Variables) -> Levels:
    """Levels and kinds of all nodes. Linear in edges.

    A read of what a member wrote is a copy of that value: like a clone, it raises no level.
    """
    fed = _fed(graph)
    kind = tuple(
        (node.device, graph.frames[i], graph.deadness[i], classes.small[i], fed[i])
        for i, node in enumerate(graph.nodes)
    )
    level = _earliest(graph, classes, variables, kind)
    _later(graph, classes, kind, level)
    return Levels(tuple(level), kind)


def _fed(graph: GraphIndex) -> list[int]:
    """The collectives that wait for each node, as bits of a number."""
    collective_nodes = [i for i, node in enumerate(graph.nodes) if collectives.is_one(node)]
    bit = {i: 1 << n for n, i in enumerate(collective_nodes)}
    fed = [0] * len(graph.nodes)
    for i in reversed(graph.order) if collective_nodes else ():
        for consumer, _ in graph.consumers[i]:
            fed[i] |= fed[consumer] | bit.get(consumer, 0)
    return fed


def _earliest(
    graph: GraphIndex, classes: Classes, variables: Variables, kind: tuple[Kind, ...]
) -> list[int]:
    level = [0] * len(graph.nodes)
    visited = [False] * len(graph.nodes)
    origin: list[Kind | None] = [None] * len(graph.nodes)
    for i in graph.order:
        sources = [tensor.node for tensor in graph.data[i]] + list(graph.control[i])
        sources += graph.ends.get(i, ())
        part = classes.parts[i]
        written = variables.before.get(i) if part is Part.READ else None
        early = lookups.from_before(graph, i).values() if part is Part.MEMBER else ()
        before = {tensor.node for tensor in early}
        for source in sources:
            if not visited[source]:
                continue  # a loop's back edge
            step = _step(classes.parts[source], part, origin[source], kind[i])
            if source in before and origin[source] is not None:
                step = 1
            level[i] = max(level[i], level[source] + (0 if source == written else step))
        if written is not None and classes.parts[written] is Part.MEMBER:
            rises = level[i] > level[written]
            origin[i] = "mixed" if rises else kind[written]
        elif part is Part.MEMBER:
            origin[i] = kind[i]
        elif part is Part.CLONE:
            kinds = {origin[s] for s in sources if visited[s] and origin[s] is not None}
            origin[i] = kinds.pop() if len(kinds) == 1 else ("mixed" if kinds else None)
        visited[i] = True
    return level


def _step(source: Part, target: Part, origin: Kind | None, kind: Kind) -> int:
    """How much the level rises along an edge.

    A clone carries the kind of the members it was computed from: only members of that kind can
    hold both it and them.
    """
    if source is Part.MEMBER or (source is not Part.OPAQUE and origin is not None):
        if target is Part.CLONE:
            return 0
        return 0 if target is Part.MEMBER and origin == kind else 1
    return 0


def _later(graph: GraphIndex, classes: Classes, kind: tuple[Kind, ...], level: list[int]) -> None:
    """Move members to the level of their first use where they would only be kept until then."""
    for i in reversed(graph.order):
        if classes.parts[i] is not Part.MEMBER or not graph.consumers[i]:
            continue
        latest = None
        for consumer, position in graph.consumers[i]:
            part = classes.parts[consumer]
            if part in (Part.CLONE, Part.READ):
                latest = None
                break
            inside = part is Part.MEMBER and kind[consumer] == kind[i]
            inside = inside and position not in lookups.from_before(graph, consumer)
            bound = level[consumer] - (0 if inside else 1)
            latest = bound if latest is None else min(latest, bound)
        if (
            latest is not None
            and latest > level[i]
            and _holds_less(graph, classes, i, level, latest)
        ):
            level[i] = latest


def _holds_less(graph: GraphIndex, classes: Classes, i: int, level: list[int], latest: int) -> bool:
    """Whether keeping node i's inputs until `latest` holds no more bytes than its outputs. Random
    numbers that are drawn for it alone come along: a mask is made of them, and they of a key."""
    input_bytes = 0
    pending = set(graph.data[i])
    while pending:
        tensor = pending.pop()
        source = tensor.node
        if classes.parts[source] is Part.CLONE:
            continue
        if classes.parts[source] is Part.READ:
            return False
        if classes.parts[source] is Part.MEMBER and graph.nodes[source].op in DRAWN:
            if all(consumer == i for consumer, _ in graph.consumers[source]):
                pending |= set(graph.data[source])
                continue
        used = any(c != i and level[c] >= latest for c, _ in graph.consumers[source])
        input_bytes += 0 if used else graph.byte_size(tensor)
    output_bytes = sum(graph.byte_size(Edge(i, p)) for p in range(len(graph.output_types[i])))
    return input_bytes <= output_bytes
