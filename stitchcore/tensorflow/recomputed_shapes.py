"""Shapes that come off a stack, or into a loop, computed again where they are used.

The gradient of a TensorFlow 1 loop pops the shapes of its forward loop's tensors off stacks: axes
to sum over, sizes to reshape to. Where sizes are unknown until a step runs, these are values of
another loop, and whatever needs them would stay TensorFlow's. But a popped shape is that of a
tensor whose sizes are known as polynomials (symbolic_sizes.py), and a tensor with the same ones is
mostly at hand in the loop that pops it. So the node that pops becomes a `Shape` of that one: shape
arithmetic like any other, in the copy of the graph that is cut into regions. The job's own graph
keeps its stacks. What falls back relies on this too, so the two are to have the same shape where
what is assumed of sizes does not hold, either.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from stitchcore.inject.structure import MERGES
from stitchcore.tensorflow import shared_lists
from stitchcore.tensorflow.graph import Edge, GraphIndex, Predicate, index
from stitchcore.tensorflow.op_allowlist import ANY
from stitchcore.tensorflow.symbolic_sizes import Sizes

ENTER = "Enter"
_HANDED_ON = frozenset({ENTER, "Identity"})

Shapes = tuple[tuple[int | None, ...], ...]
"""Of one tensor: as `_output_shapes` has it once sizes are fitted, where negative ones stand for
polynomials, and each that it has where what is assumed does not hold."""


def recompute(sizes: Sizes) -> GraphIndex:
    """The index of the graph of `sizes`, of which nodes are rewritten in place: names and order
    stay, and what each output is. Linear in the graph."""
    graph = index(sizes.graph)
    if sizes.otherwise is None:
        return graph
    taken = shared_lists.of(graph).taken
    carried = {
        i: shapes
        for i, node in enumerate(graph.nodes)
        if (_in_every_pass(node) if node.op == ENTER else node.op == shared_lists.POP)
        and (shapes := _carried(graph, i, taken, sizes)) is not None
    }
    like = _like(graph, carried, sizes)
    for i, tensor in like.items():
        node = graph.nodes[i]
        declared, kind = node.attr["_output_shapes"], tf.as_dtype(graph.dtype(Edge(i, 0)))
        source = graph.nodes[tensor.node].name
        waits = [reference for reference in node.input if reference.startswith("^")]
        kept = type(declared)()
        kept.CopyFrom(declared)
        node.op = "Shape"
        del node.input[:]
        node.input.extend([f"{source}:{tensor.port}" if tensor.port else source, *waits])
        node.attr.clear()
        node.attr["_output_shapes"].CopyFrom(kept)
        node.attr["T"].type = tf.as_dtype(graph.dtype(tensor)).as_datatype_enum
        node.attr["out_type"].type = kind.as_datatype_enum
    return index(sizes.graph) if like else graph


def _in_every_pass(enter: Any) -> bool:
    """Whether what enters a loop is a constant of it, not a variable's first value."""
    return bool(enter.attr["is_constant"].b)


def _carried(
    graph: GraphIndex, i: int, taken: Mapping[int, shared_lists.Contents], sizes: Sizes
) -> Shapes | None:
    """The shapes that node i hands on as a vector of integers; None where it is no shape of one
    tensor, or one that is not certain."""
    if graph.dtype(Edge(i, 0)) not in ("int32", "int64") or len(graph.shape(Edge(i, 0)) or ()) != 1:
        return None
    found: set[Shapes | None] = set()
    seen: set[int] = set()
    pending = [i]
    while pending:
        n = pending.pop()
        if n in seen:
            continue
        seen.add(n)
        node = graph.nodes[n]
        if node.op == "Shape":
            found.add(_certain(graph, graph.data[n][0], sizes))
        elif node.op in _HANDED_ON:
            pending.append(graph.data[n][0].node)
        elif node.op == shared_lists.POP and n in taken:
            pending += (item.node for item in taken[n].items)
        else:
            return None
    return found.pop() if len(found) == 1 else None


def _certain(graph: GraphIndex, tensor: Edge, sizes: Sizes) -> Shapes | None:
    """The shapes of a tensor, if all is known of them."""
    name, shape = (graph.nodes[tensor.node].name, tensor.port), graph.shape(tensor)
    if shape is None or any(sizes.dim(size) is None for size in shape):
        return None
    found: list[tuple[int | None, ...]] = [shape]
    for shapes in sizes.otherwise or ():
        other = shapes.get(name)
        if other is None or None in other:
            return None
        found.append(other)
    return tuple(found)


def _like(graph: GraphIndex, carried: Mapping[int, Shapes], sizes: Sizes) -> dict[int, Edge]:
    """For each node a tensor of these shapes: of its loop, there when the node is, and computed
    from none of these nodes. The first in order is there soonest."""
    wanted = {(graph.frames[i], shapes) for i, shapes in carried.items()}
    found: defaultdict[tuple[str, Shapes], list[Edge]] = defaultdict(list)
    waiting: set[int] = set()
    entering: set[int] = set()  # there in a loop's first pass alone
    for i in graph.order:
        node = graph.nodes[i]
        sources = {*(tensor.node for tensor in graph.data[i]), *graph.control[i]}
        joined = node.op in MERGES
        if (node.op == ENTER and not _in_every_pass(node)) or (sources & entering and not joined):
            entering.add(i)
        if i in carried or sources & waiting:  # computed from these nodes, in one pass of a loop
            waiting.add(i)
        if i in waiting or i in entering:
            continue
        for port, dtype in enumerate(graph.output_types[i]):
            tensor = Edge(i, port)
            shapes = _certain(graph, tensor, sizes) if dtype in ANY else None
            if shapes is not None and (graph.frames[i], shapes) in wanted:
                found[graph.frames[i], shapes].append(tensor)
    return {
        i: tensor
        for i, shapes in carried.items()
        for tensor in [_alive(graph, i, found[graph.frames[i], shapes])]
        if tensor is not None
    }


def _alive(graph: GraphIndex, i: int, tensors: list[Edge]) -> Edge | None:
    """The first with which node i runs when it does now: it keeps what it waits for."""
    waits = frozenset[Predicate]().union(*(graph.deadness[source] for source in graph.control[i]))
    alive = (tensor for tensor in tensors if graph.alive(tensor) | waits == graph.deadness[i])
    return next(alive, None)
