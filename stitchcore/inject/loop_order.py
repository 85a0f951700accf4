"""What order a loop's passes need: control edges that keep none are left out.

Grappler, and a patch, tie the nodes of a pass together by control edges: to a pivot that says that
the loop goes on, through NoOps and Identities. Where nothing with an effect comes before such an
edge, and its consumer is dead in the last pass without it too, it only delays, and what it came
from may be for nothing.
"""

from __future__ import annotations

from typing import Any, Dict, FrozenSet, List, Sequence, Set, Tuple

from . import graphs
from .contract import FUSION, FUSIONS
from .digest import LOOP_BACK
from .structure import (
    CONTROL_FLOW,
    EFFECTS,
    ENTERS,
    EXITS,
    Original,
    input_text,
    staying,
)

READ = "ReadVariableOp"
READERS = frozenset({READ, "VariableShape"})
"""What takes a variable's handle and does not write it."""


QUIET = CONTROL_FLOW | frozenset(
    """
    LoopCond NextIteration RefNextIteration Identity NoOp Const Placeholder MatMul _FusedMatMul
    BatchMatMul BatchMatMulV2 Add AddV2 Sub Mul Less LogicalAnd AddN
    """.split()
)
"""Operations that have no effect and fail on no data."""


def effects(original: Original) -> List[bool]:
    """Whether each node has an effect."""
    known = dict.fromkeys(READERS | CONTROL_FLOW | {FUSION}, False)
    return [graphs.has_effect(operation, known) for operation in original.read.operations]


def frames_with(original: Original, marked: Sequence[bool]) -> Set[int]:
    """Loops in which a node is marked, or in a loop of which."""
    frames: Set[int] = set()
    for i, mark in enumerate(marked):
        frame = original.inner[i]
        while mark and frame:
            frames.add(frame)
            frame = original.frames.parents[frame]
    return frames


def failing(original: Original) -> List[bool]:
    """Whether each node is a patch's that fails as an operation of the user's would have."""
    read = original.read
    return [op in EFFECTS and _fails(node) for node, op in zip(read.nodes, read.operations)]


def _fails(node: Any) -> bool:
    """Whether an operation of a patch may fail on data."""
    return node.op not in FUSIONS or bool(node.attr["errors"].list.s)


def after(original: Original, marked: Sequence[bool]) -> List[bool]:
    """Whether each node is marked, or comes after one that is in its own pass."""
    read, late = original.read, list(marked)
    frames = frames_with(original, marked)
    for i in read.order({}):
        if read.operations[i] in EXITS:
            late[i] = original.inner[i] in frames
        elif not late[i] and read.operations[i] not in ENTERS:  # all passes come after those
            late[i] = any(
                late[s] and original.outer[s] == original.inner[i]
                for s, _ in read.edges[i]
                if not read.operations[s].endswith(LOOP_BACK)
            )
    return late


def without_needless(original: Original, preserve: FrozenSet[str]) -> Tuple[Any, int]:
    """The graph without control edges in loops that keep no order, the Identities that are then no
    more than another name, and what nothing uses; and how many nodes that leaves out."""
    made = _Needless(original, preserve)
    made.drop()
    return made.result(), len(made.removed)


class _Needless:
    def __init__(self, original: Original, preserve: FrozenSet[str]) -> None:
        self.original, self.read = original, original.read
        self.kept = {i for i, name in enumerate(self.read.names) if name in preserve}
        self.effect = effects(original)
        self.left = frames_with(original, self.effect)
        ordered = [
            node.op not in QUIET and (node.op not in FUSIONS or _fails(node))
            for node in self.read.nodes
        ]
        self.ordered = after(original, ordered)
        self.edges: Dict[int, List[Tuple[int, int]]] = {}
        """Inputs of nodes that have others than before."""
        self.removed: Set[int] = set()

    def _inputs(self, i: int) -> Sequence[Tuple[int, int]]:
        return self.edges.get(i, self.read.edges[i])

    def drop(self) -> None:
        order = self.read.order({})
        inside = [i for i in order if self.original.inner[i] and self._is_free(i)]
        for i in inside:
            self._without_controls(i)
        names: Dict[Tuple[int, int], Tuple[int, int]] = {}
        for i in inside:
            if self._is_name(i):
                source = self._inputs(i)[0]
                names[i, 0] = names.get(source, source)
        for i in range(len(self.read.nodes)):
            if any(edge in names for edge in self._inputs(i)):
                self.edges[i] = [names.get(edge, edge) for edge in self._inputs(i)]
        self._without_unused(inside)

    def _is_free(self, i: int) -> bool:
        quiet = self.original.inner[i] not in self.left
        return quiet and self.read.operations[i] not in CONTROL_FLOW

    def _without_controls(self, i: int) -> None:
        controls = [edge for edge in self.read.edges[i] if edge[1] < 0]
        if not controls:
            return
        needed = [edge for edge in self.read.edges[i] if edge[1] >= 0 or self.ordered[edge[0]]]
        if not needed:
            needed = controls[:1]  # it tells in which frame the node is
        alive = self._alive(needed)
        for edge in controls:
            more = self._alive([*needed, edge])
            if alive != self.original.alive[i] and edge not in needed and more != alive:
                needed.append(edge)
                alive = more
        if alive == self.original.alive[i] and len(needed) < len(self.read.edges[i]):
            self.edges[i] = needed

    def _alive(self, edges: Sequence[Tuple[int, int]]) -> int:
        alive = 0
        for source, port in edges:
            alive = self.original.branches.both(alive, self.original.alive_at(source, port))
        return alive

    def _is_name(self, i: int) -> bool:
        """Whether a node is another name of its input."""
        if self.read.operations[i] != "Identity" or len(self._inputs(i)) != 1:
            return False
        source, port = self._inputs(i)[0]
        operation = self.read.operations[source]
        same = self.original.alive_at(source, port) == self.original.alive[i]
        placed = self.read.nodes[source].device == self.read.nodes[i].device
        return same and placed and not operation.startswith(("Ref", "Variable"))

    def _without_unused(self, inside: Sequence[int]) -> None:
        uses = [0] * len(self.read.nodes)
        for i in range(len(self.read.nodes)):
            for source, _ in self._inputs(i):
                uses[source] += 1
        constants = [
            i
            for i, operation in enumerate(self.read.operations)
            if operation == "Enter" and self.read.nodes[i].attr["is_constant"].b
        ]
        for i in (*reversed(inside), *constants):
            if uses[i] or self.effect[i] or i in self.kept:
                continue
            self.removed.add(i)
            for source, _ in self._inputs(i):
                uses[source] -= 1

    def result(self) -> Any:
        graph, copies = staying(self.original, self.removed)
        for i, edges in self.edges.items():
            if i in copies:
                del copies[i].input[:]
                copies[i].input.extend(input_text(self.read.names[s], port) for s, port in edges)
        return graph
