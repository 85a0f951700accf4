"""Loops and tensor lists, rewritten so that shape inference sees through them.

TensorFlow's inference takes a loop's variables as of unknown shape (an import runs it once, before
the edges that close loops are there), and lists forget what was put into them. Here a loop is one
straight pass: each variable has the shape that it enters with; what is taken out of a list has the
shape of what was put in; a stack of as many elements as its list was made for has that length.
TensorFlow 1's arrays and stacks are lists that are changed where they are: who has the handle
takes out what anybody put in (shared_lists.py).
`Rewrites.wrong` then tells, by the shapes inferred so, of which this does not hold (a variable that
grows from pass to pass, elements of two shapes): those are left unknown, and all is inferred again.
What holds of one pass holds of all, by induction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

from stitchcore.inject.digest import LOOP_BACK
from stitchcore.tensorflow import shared_lists
from stitchcore.tensorflow.graph import Edge, GraphIndex

MERGE, ENTER = "Merge", "Enter"
POP, GET, STACK = "TensorListPopBack", "TensorListGetItem", "TensorListStack"
PUSH, SET = "TensorListPushBack", "TensorListSetItem"
EMPTY, RESERVE, ROWS = "EmptyTensorList", "TensorListReserve", "TensorListFromTensor"
LENGTH = "TensorListLength"
POPS = {POP: 1, shared_lists.POP: 0}
"""Operations that take an element off a list or a stack, and the output that has it."""

ELEMENT = "element"
"""What the second output of a node is called that is written as two."""

_HANDED_ON = frozenset({"Identity", "Enter", "Exit", "Switch", "NextIteration", "ZerosLike", POP})
_JOINED = frozenset({MERGE, "AddN"})
"""Operations whose output is as their first input is, or as any: a list's elements have the same
shapes."""


INDEX = tf.int32.as_datatype_enum

Shape = tuple[int | None, ...] | None


@dataclass(frozen=True)
class _List:
    """What was put into a list: tensors, and tensors whose rows are its elements; `length` is the
    operand of its making that says how many there are, or a tensor with as many rows. None where
    that may change or is not known. A `stacked` one has been pushed onto and nothing else."""

    items: tuple[Edge, ...]
    rows: tuple[Edge, ...]
    length: Edge | None
    stacked: bool


@dataclass(frozen=True)
class Rewrites:
    """Nodes, by number, that are written otherwise for inference: loops' variables with what enters
    them, what takes elements out of lists with the list, lengths of arrays with what they are."""

    graph: GraphIndex
    variables: Mapping[int, Edge]
    taken: Mapping[int, _List]
    lengths: Mapping[int, Edge]

    def covers(self, i: int) -> bool:
        written = (self.variables, self.taken, self.lengths)
        return self.graph.nodes[i].op == ENTER or any(i in mapping for mapping in written)

    def all(self) -> set[int]:
        return {*self.variables, *self.taken, *self.lengths}

    def without(self, numbers: Iterable[int]) -> Rewrites:
        left = set(numbers)
        return Rewrites(
            self.graph,
            {i: edge for i, edge in self.variables.items() if i not in left},
            {i: made for i, made in self.taken.items() if i not in left},
            {i: edge for i, edge in self.lengths.items() if i not in left},
        )

    def nodes(self, i: int, name: str) -> list[node_def_pb2.NodeDef] | None:
        """What stands for node `i` as `name`; None where it is imported as it is. Inputs are edges
        of the graph, written "number:port"."""
        graph = self.graph
        write = _Writer(graph)
        if graph.nodes[i].op == ENTER:
            return [write.same(name, graph.data[i][0])]
        if i in self.variables:
            return [write.variable(name, self.variables[i])]
        if i in self.lengths:
            return [write.same(name, self.lengths[i])]
        made = self.taken.get(i)
        if made is None:
            return None
        if graph.nodes[i].op == POP:
            handle = write.same(name, graph.data[i][0])
            return [handle, *write.element(made, f"{name}_{ELEMENT}")]
        whole = graph.nodes[i].op in (STACK, shared_lists.GATHER)
        return (write.stack if whole else write.element)(made, name)

    def wrong(self, shapes: Mapping[tuple[str, int], Shape]) -> set[int]:
        """Rewritten nodes that these shapes contradict."""
        graph = self.graph

        def shape(edge: Edge) -> Shape:
            return shapes.get((graph.nodes[edge.node].name, edge.port))

        contradicted = {
            i
            for i, first in self.variables.items()
            if graph.dtype(first) not in ("resource", "variant")
            and any(shape(edge) != shape(first) for edge in graph.data[i])
        }
        return contradicted | {
            i for i, made in self.taken.items() if len(set(_elements(made, shape))) > 1
        }


def _elements(made: _List, shape: Callable[[Edge], Shape]) -> Iterator[Shape]:
    for item in made.items:
        yield shape(item)
    for whole in made.rows:
        sizes = shape(whole)
        yield None if sizes is None else sizes[1:]


def written_edge(edge: Edge) -> str:
    """An input of a node that is written for inference, by the graph's numbers."""
    return f"{edge.node}:{edge.port}"


@dataclass(frozen=True)
class _Writer:
    """Writes what has the shape of a loop's variable, of an element, of a stack: the nodes, the one
    with the name first. Inference computes what decides shapes, so what has another value in each
    pass goes through a Merge, at which it stops."""

    graph: GraphIndex

    def node(self, name: str, operation: str, *inputs: str, **types: Edge | int) -> Any:
        node = node_def_pb2.NodeDef(name=name, op=operation, input=inputs)
        for attribute, kind in types.items():
            if isinstance(kind, Edge):
                kind = tf.as_dtype(self.graph.dtype(kind)).as_datatype_enum
            node.attr[attribute].type = kind
        return node

    def zero(self, name: str) -> Any:
        node = self.node(name, "Const", dtype=INDEX)
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(0, tf.int32))
        return node

    def same(self, name: str, source: Edge) -> Any:
        return self.node(name, "Identity", written_edge(source), T=source)

    def variable(self, name: str, source: Edge) -> Any:
        if self.graph.dtype(source) == "resource":  # what is behind it, a Merge does not tell
            return self.same(name, source)
        return self.merge(name, written_edge(source), source)

    def merge(self, name: str, source: str, kind: Edge) -> Any:
        node = self.node(name, MERGE, source, T=kind)
        node.attr["N"].i = 1
        return node

    def element(self, made: _List, name: str) -> list[Any]:
        if made.stacked and len(made.items) == 1:  # of one value, if it is one that is computed
            return [self.same(name, made.items[0])]
        if made.items:
            return [self.variable(name, made.items[0])]
        whole, zero = made.rows[0], self.zero(f"{name}_zero")
        inputs = (written_edge(whole), zero.name, zero.name)
        types = {"Tparams": whole, "Tindices": INDEX, "Taxis": INDEX}
        row = self.node(f"{name}_row", "GatherV2", *inputs, **types)
        return [self.merge(name, row.name, whole), row, zero]

    def stack(self, made: _List, name: str) -> list[Any]:
        """An empty tensor of the shape [length, *element]."""
        assert made.length is not None
        element = self.element(made, f"{name}_item")
        kind = element[0].attr["T"].type
        shape = self.node(f"{name}_shape", "Shape", element[0].name, T=kind, out_type=INDEX)
        zero = self.zero(f"{name}_axis")
        count = self.node(f"{name}_count", "Pack", written_edge(made.length), T=INDEX)
        count.attr["N"].i = 1
        counted = [count]
        if made.length in made.rows or self.graph.shape(made.length):
            sizes = self.node(
                f"{name}_rows", "Shape", written_edge(made.length), T=made.length, out_type=INDEX
            )
            first = self.node(f"{name}_first", "GatherV2", sizes.name, zero.name, zero.name)
            for attribute in ("Tparams", "Tindices", "Taxis"):
                first.attr[attribute].type = INDEX
            count.input[0] = first.name
            counted += [sizes, first]
        joined = self.node(f"{name}_sizes", "ConcatV2", count.name, shape.name, zero.name)
        joined.attr["T"].type, joined.attr["Tidx"].type, joined.attr["N"].i = INDEX, INDEX, 2
        stack = self.node(name, "Empty", joined.name, dtype=kind)
        return [stack, joined, *counted, zero, shape, *element]


def rewrites(graph: GraphIndex) -> Rewrites:
    """All that can be: elements of a list are those that are put in before they are taken out."""
    position = {i: p for p, i in enumerate(graph.order)}
    variables: dict[int, Edge] = {}
    taken: dict[int, _List] = {}
    lengths: dict[int, Edge] = {}
    shared = shared_lists.of(graph)
    for i in graph.order:
        operation = graph.nodes[i].op
        if operation == MERGE:
            entering = [edge for edge in graph.data[i] if not _is_back(graph, edge)]
            if len(entering) == 1 and len(graph.data[i]) > 1:
                variables[i] = entering[0]
        elif operation in (POP, GET, STACK):
            made = _made(graph, graph.data[i][0])
            if made is not None and (operation != STACK or made.length is not None):
                taken[i] = made
        elif i in shared.taken:
            its = shared.taken[i]
            length = graph.data[i][1] if operation == shared_lists.GATHER else None
            taken[i] = _List(its.items, its.rows, length, operation == shared_lists.POP)
        elif i in shared.lengths:
            lengths[i] = shared.lengths[i]

    def is_later(i: int, source: Edge | None) -> bool:
        return source is not None and position[source.node] > position[i]

    for i, made in list(taken.items()):
        if any(is_later(i, source) for source in (*made.items, *made.rows, made.length)):
            del taken[i]
    return Rewrites(graph, variables, taken, lengths)


def _is_back(graph: GraphIndex, edge: Edge) -> bool:
    return str(graph.nodes[edge.node].op).endswith(LOOP_BACK)


def _made(graph: GraphIndex, handle: Edge, depth: int = 4) -> _List | None:
    """What was put into a list, followed back to its making; None where it is not all known. A list
    may be as long as another, to some depth."""
    items: list[Edge] = []
    rows: list[Edge] = []
    lengths: set[Edge | None] = set()
    stacked = True
    for i in _history(graph, handle):
        node = graph.nodes[i]
        stacked = stacked and node.op not in (SET, RESERVE, ROWS, "ZerosLike", "AddN")
        if node.op == PUSH:
            items.append(graph.data[i][1])
            lengths.add(None)
        elif node.op == SET:
            items.append(graph.data[i][2])
            if node.attr["resize_if_index_out_of_bounds"].b:
                lengths.add(None)
        elif node.op == RESERVE:
            lengths.add(_count(graph, graph.data[i][1], depth - 1))
        elif node.op == ROWS:
            rows.append(graph.data[i][0])
            lengths.add(graph.data[i][0])
        elif node.op == POP:
            lengths.add(None)
        elif node.op not in (*_HANDED_ON, *_JOINED, EMPTY):
            return None
    if not items and not rows:
        return None
    length = lengths.pop() if len(lengths) == 1 else None
    return _List(tuple(items), tuple(rows), length, stacked)


def _count(graph: GraphIndex, number: Edge, depth: int) -> Edge | None:
    """A number of elements that a list is made for, through what it was handed on by: as many as
    another list has, where it is that."""
    operation = graph.nodes[number.node].op
    if operation not in (LENGTH, POP):
        return number
    other = _made(graph, graph.data[number.node][0], depth) if depth else None
    if other is None or operation == LENGTH:
        return None if other is None else other.length
    return _count(graph, other.items[0], depth - 1) if len(other.items) == 1 else None


def _history(graph: GraphIndex, handle: Edge) -> Iterator[int]:
    """Nodes that a list came through, once each."""
    seen: set[int] = set()
    pending = [handle.node]
    while pending:
        i = pending.pop()
        if i in seen:
            continue
        seen.add(i)
        yield i
        if graph.nodes[i].op in _JOINED:
            pending += [edge.node for edge in graph.data[i]]
        elif graph.nodes[i].op in _HANDED_ON | {PUSH, SET}:
            pending.append(graph.data[i][0].node)
