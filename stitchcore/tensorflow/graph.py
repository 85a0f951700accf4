"""An index over a GraphDef: edges, shapes, order, frames and deadness. Linear in the graph.

The graph is untrusted and may be damaged: whatever does not hold raises Refused(PARSE_ERROR).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tensorflow.python.framework import dtypes, op_def_registry

from stitchcore.errors import Reason, Refused
from stitchcore.inject import digest
from stitchcore.inject.structure import SWITCHES
from stitchcore.tensorflow import op_allowlist

NOMINAL_SIZE = 64
"""What an unknown dimension counts as; the planner assumes the same of its symbols."""

Predicate = tuple[int, int, int, str]
"""A branch taken: (Switch's predicate node, its port, branch, frame)."""


@dataclass(frozen=True)
class Edge:
    """A tensor: output `port` of node number `node`."""

    node: int
    port: int


@dataclass(frozen=True)
class GraphIndex:
    """Nodes by number, with what partitioning asks of them.

    `data[i]` and `control[i]` are node i's inputs, `consumers[i]` the (node, input position; -1 for
    control) that use it. `frames[i]` names the while loops around a node, "" outside. `order` is
    topological without loop-back edges; in it an Exit follows the NextIteration nodes of its loop,
    `ends[exit]`, for it fires after their last pass.
    """

    graph: Any
    nodes: Sequence[Any]
    number: dict[str, int]
    data: tuple[tuple[Edge, ...], ...]
    control: tuple[tuple[int, ...], ...]
    consumers: tuple[tuple[tuple[int, int], ...], ...]
    order: tuple[int, ...]
    ends: Mapping[int, Sequence[int]]
    frames: tuple[str, ...]

    def shape(self, tensor: Edge) -> tuple[int, ...] | None:
        """Dimensions as Grappler inferred them (negative: unknown), None for an unknown rank."""
        shapes = self.nodes[tensor.node].attr["_output_shapes"].list.shape
        if tensor.port >= len(shapes) or shapes[tensor.port].unknown_rank:
            return None
        return tuple(dim.size for dim in shapes[tensor.port].dim)

    def static_size(self, tensor: Edge) -> int:
        """Elements of a tensor, unknown dimensions taken as NOMINAL_SIZE, but no more of them than
        of the largest that it is made of; 1 for an unknown rank."""
        return self._elements.get(tensor, 1)

    def byte_size(self, tensor: Edge) -> int:
        """Bytes of a tensor of `static_size` elements."""
        name = self.dtype(tensor)
        return self.static_size(tensor) * (dtypes.as_dtype(name).size if name else 0)

    @cached_property
    def _elements(self) -> Mapping[Edge, int]:
        """Four unknown dimensions would make 16 million elements: a gradient is reshaped to a shape
        that is computed."""
        elements: dict[Edge, int] = {}
        for i in self.order:
            operation = self.nodes[i].op
            bounded = operation in op_allowlist.ALLOWED and operation not in op_allowlist.GROWING
            read = [elements[tensor] for tensor in self.data[i] if tensor in elements]
            for port in range(len(self.nodes[i].attr["_output_shapes"].list.shape)):
                shape = self.shape(Edge(i, port)) or ()
                count = math.prod(size if size >= 0 else NOMINAL_SIZE for size in shape)
                if -1 in shape and bounded:
                    count = min(count, max(read, default=count))
                elements[Edge(i, port)] = count
        return elements

    def dtype(self, tensor: Edge) -> str:
        """TensorFlow's name of the element type; "" where the operation is not registered."""
        types = self.output_types[tensor.node]
        return types[tensor.port] if tensor.port < len(types) else ""

    @cached_property
    def output_types(self) -> tuple[tuple[str, ...], ...]:
        """Element types of every node's outputs."""
        return tuple(output_types(node) for node in self.nodes)

    @cached_property
    def deadness(self) -> tuple[frozenset[Predicate], ...]:
        """The branches that must have been taken for each node to run: a Merge runs with one of its
        inputs, and waits for what control edges come from in whichever branch."""
        alive: list[frozenset[Predicate]] = [frozenset()] * len(self.nodes)
        for i in self.order:
            node = self.nodes[i]
            inputs = [self._through(e, alive) for e in self.data[i] if self._is_forward(e.node, i)]
            controls = [alive[c] for c in self.control[i]]
            if node.op in ("Merge", "RefMerge"):
                alive[i] = frozenset.intersection(*inputs) if inputs else frozenset()
            else:
                alive[i] = frozenset().union(*inputs, *controls)
            if node.op in ("Exit", "RefExit"):
                frame = max((p[3] for p in alive[i]), key=len, default="")
                alive[i] = frozenset(
                    p for p in alive[i] if p[3] != frame or frame == self.frames[i]
                )
        return tuple(alive)

    def alive(self, tensor: Edge) -> frozenset[Predicate]:
        """The branches that must have been taken for a tensor to have a value."""
        return self._through(tensor, self.deadness)

    def _through(self, tensor: Edge, alive: Sequence[frozenset[Predicate]]) -> frozenset[Predicate]:
        source = self.nodes[tensor.node]
        if source.op not in SWITCHES:
            return alive[tensor.node]
        chosen = self.data[tensor.node][1]
        while self.nodes[chosen.node].op == "Identity":  # one predicate by several names
            chosen = self.data[chosen.node][0]
        branch = (chosen.node, chosen.port, tensor.port, self.frames[tensor.node])
        return alive[tensor.node] | {branch}

    def _is_forward(self, source: int, target: int) -> bool:
        back = self.nodes[source].op.endswith(digest.LOOP_BACK)
        return not (back and self.nodes[target].op in ("Merge", "RefMerge"))


def index(graph: Any) -> GraphIndex:
    """Index a GraphDef. Raises Refused(PARSE_ERROR) for missing inputs, twins and cycles."""
    nodes = list(graph.node)
    try:
        edges = digest.edges_of(nodes)
        frames = digest.frames_of(nodes, edges, digest.topological(nodes, edges))
        ends = digest.loop_ends(nodes, edges, frames)
        order = digest.completion_order(nodes, edges, ends)
    except ValueError as error:
        raise Refused("graph", Reason.PARSE_ERROR, str(error)) from error
    return GraphIndex(
        graph,
        nodes,
        {node.name: i for i, node in enumerate(nodes)},
        tuple(tuple(Edge(source, port) for source, port in inputs) for inputs in edges.data),
        tuple(tuple(sources) for sources in edges.control),
        tuple(tuple(uses) for uses in edges.consumers),
        tuple(order),
        ends,
        tuple("/".join(stack) for stack in frames),
    )


def output_types(node: Any) -> tuple[str, ...]:
    """Element types of a node's outputs by its definition; none where it is not registered."""
    definition = op_def_registry.get(node.op)
    if definition is None:
        return ()
    types: list[str] = []
    for argument in definition.output_arg:
        if argument.type_list_attr:
            types += [dtypes.as_dtype(t).name for t in node.attr[argument.type_list_attr].list.type]
            continue
        kind = node.attr[argument.type_attr].type if argument.type_attr else argument.type
        count = int(node.attr[argument.number_attr].i) if argument.number_attr else 1
        name = dtypes.as_dtype(kind).name if kind else ""
        types += [f"{name}_ref" if argument.is_ref else name] * count
    return tuple(types)
