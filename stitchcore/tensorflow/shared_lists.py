"""TensorFlow 1's arrays (TensorArrayV3) and stacks (StackV2): what is put in, what is taken out.

`while_loop` in a session keeps what its gradient needs on stacks, and unstacks, stacks and writes
arrays. Neither is a value: one node makes it, all others have its handle and change what is behind
it. An array's gradient is an array of its own, the same one wherever it is asked for by the same
name (`source`). Where a handle goes to an operation that is not known here, nothing is said of what
is behind it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from stitchcore.tensorflow.graph import Edge, GraphIndex

STACK, PUSH, POP = "StackV2", "StackPushV2", "StackPopV2"
ARRAY, GRADIENT = "TensorArrayV3", "TensorArrayGradV3"
READ, GATHER, SIZE = "TensorArrayReadV3", "TensorArrayGatherV3", "TensorArraySizeV3"
WRITE, SCATTER = "TensorArrayWriteV3", "TensorArrayScatterV3"

_PUT = {PUSH: 1, WRITE: 2, SCATTER: 2}
"""The operand that is put in; of SCATTER its rows."""
_TAKEN = frozenset({POP, READ, GATHER})
_PASSED = frozenset({"Enter", "Identity", "Switch"})
_HARMLESS = frozenset({SIZE, GRADIENT, "TensorArrayCloseV3", "StackCloseV2"})

_List = tuple[int, tuple[bytes, ...]]
"""The node that makes an array, and by which gradients of gradients a list comes from it; the node
that makes a stack."""


@dataclass(frozen=True)
class Contents:
    """All that is ever put into a list: elements, and tensors whose rows are elements."""

    items: tuple[Edge, ...]
    rows: tuple[Edge, ...]


@dataclass(frozen=True)
class SharedLists:
    """Nodes by number: those that take something out of a list, with what is in it; those that ask
    for the length of an array, with the operand of its making that says it."""

    taken: Mapping[int, Contents] = field(default_factory=dict)
    lengths: Mapping[int, Edge] = field(default_factory=dict)


def of(graph: GraphIndex) -> SharedLists:
    """All arrays and stacks of a graph of which everything is known."""
    lists: dict[int, _List] = {}
    for i in graph.order:
        node = graph.nodes[i]
        if node.op in (STACK, ARRAY):
            lists[i] = i, ()
        elif node.op in _PASSED | {GRADIENT} and graph.data[i][0].node in lists:
            maker, gradients = lists[graph.data[i][0].node]
            named = (node.attr["source"].s,) if node.op == GRADIENT else ()
            lists[i] = maker, (*gradients, *named)
    if not lists:
        return SharedLists()
    put: dict[_List, dict[str, list[Edge]]] = defaultdict(lambda: defaultdict(list))
    holders: list[tuple[int, _List]] = []
    unknown: set[int] = set()  # nodes that make what others may change
    for i in graph.order:
        operation = graph.nodes[i].op
        for position, edge in enumerate(graph.data[i]):
            if edge.node not in lists or graph.dtype(edge) != "resource":
                continue
            one = lists[edge.node]
            if position or operation not in _PUT.keys() | _TAKEN | _PASSED | _HARMLESS:
                unknown.add(one[0])
            elif operation in _PUT:
                put[one][operation].append(graph.data[i][_PUT[operation]])
            elif operation in _TAKEN or operation == SIZE:
                holders.append((i, one))
    taken: dict[int, Contents] = {}
    lengths: dict[int, Edge] = {}
    for i, one in holders:
        if one[0] in unknown:
            continue
        inside = put[one]
        if graph.nodes[i].op == SIZE:
            if not graph.nodes[one[0]].attr["dynamic_size"].b:
                lengths[i] = graph.data[one[0]][0]
        elif inside:
            taken[i] = Contents((*inside[PUSH], *inside[WRITE]), tuple(inside[SCATTER]))
    return SharedLists(taken, lengths)
