"""Shapes that come off a stack, or into a loop, computed again where they are used.

The gradient of a loop pops the shapes of its forward loop's tensors off stacks (of TensorFlow 1) or
lists: axes to sum over, sizes to reshape to. Where sizes are unknown until a step runs, these are
values of another loop, and whatever needs them would stay TensorFlow's. But a popped shape is that
of a tensor whose sizes are known as polynomials (symbolic_sizes.py), and a tensor with the same
ones is mostly at hand in the loop that pops it. So what is popped is replaced by a `Shape` of that
one: shape arithmetic like any other, in the copy of the graph that is cut into regions. The job's
own graph keeps its stacks. What falls back relies on this too, so the two are to have the same
shape where what is assumed of sizes does not hold, either.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from stitchcore.inject.digest import parse_reference
from stitchcore.inject.structure import MERGES
from stitchcore.tensorflow.graph import Edge, GraphIndex, index
from stitchcore.tensorflow.loop_shapes import POPS, rewrites
from stitchcore.tensorflow.op_allowlist import ANY
from stitchcore.tensorflow.symbolic_sizes import Sizes

ENTER = "Enter"
_HANDED_ON = frozenset({ENTER, "Identity"})
_PREFIX = "stitch_shape"

Shapes = tuple[tuple[int | None, ...], ...]
"""Of one tensor: as `_output_shapes` has it once sizes are fitted, where negative ones stand for
polynomials, and each that it has where what is assumed does not hold."""


def recompute(sizes: Sizes) -> GraphIndex:
    """The index of the graph of `sizes`, to which nodes are added at the end, and inputs rewired to
    them, in place. Linear in the graph."""
    graph = index(sizes.graph)
    if sizes.otherwise is None:
        return graph
    like = _like(graph, _carried(graph, sizes), sizes)
    if not like:
        return graph
    name = _PREFIX
    while any(node.name.startswith(name) for node in graph.nodes):
        name += "_"
    for number, (carried, tensor) in enumerate(like.items()):
        node, source = graph.nodes[carried.node], graph.nodes[tensor.node].name
        shape = sizes.graph.node.add(name=f"{name}{number}", op="Shape", device=node.device)
        shape.input.extend([f"{source}:{tensor.port}", f"^{node.name}"])
        shape.attr["T"].type = tf.as_dtype(graph.dtype(tensor)).as_datatype_enum
        shape.attr["out_type"].type = tf.as_dtype(graph.dtype(carried)).as_datatype_enum
        declared = node.attr["_output_shapes"].list.shape[carried.port]
        shape.attr["_output_shapes"].list.shape.add().CopyFrom(declared)
        for consumer, position in graph.consumers[carried.node]:
            inputs = graph.nodes[consumer].input
            if parse_reference(inputs[position]) == (node.name, carried.port):
                inputs[position] = shape.name
    return index(sizes.graph)


def _carried(graph: GraphIndex, sizes: Sizes) -> dict[Edge, Shapes]:
    """Shapes that are handed on as vectors of integers, by what pops or enters them: each of one
    tensor, of which all is certain."""
    taken = rewrites(graph).taken
    found = {}
    for i, node in enumerate(graph.nodes):
        if node.op in POPS and i in taken:
            tensor = Edge(i, POPS[node.op])
        elif node.op == ENTER and _in_every_pass(node):
            tensor = Edge(i, 0)
        else:
            continue
        is_vector = len(graph.shape(tensor) or ()) == 1
        if is_vector and graph.dtype(tensor) in ("int32", "int64"):
            shapes = _shape_behind(graph, i, taken, sizes)
            if shapes is not None:
                found[tensor] = shapes
    return found


def _in_every_pass(enter: Any) -> bool:
    """Whether what enters a loop is a constant of it, not a variable's first value."""
    return bool(enter.attr["is_constant"].b)


def _shape_behind(
    graph: GraphIndex, i: int, taken: Mapping[int, Any], sizes: Sizes
) -> Shapes | None:
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
        elif node.op in POPS and n in taken and not taken[n].rows:
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


def _like(graph: GraphIndex, carried: Mapping[Edge, Shapes], sizes: Sizes) -> dict[Edge, Edge]:
    """For each a tensor of these shapes: of its loop, there whenever it is, and computed from none
    of them. The first in order is there soonest."""
    wanted = {(graph.frames[tensor.node], shapes) for tensor, shapes in carried.items()}
    found: defaultdict[tuple[str, Shapes], list[Edge]] = defaultdict(list)
    carriers = {tensor.node for tensor in carried}
    waiting: set[int] = set()
    entering: set[int] = set()  # there in a loop's first pass alone
    for i in graph.order:
        node = graph.nodes[i]
        sources = {*(tensor.node for tensor in graph.data[i]), *graph.control[i]}
        joined = node.op in MERGES
        if (node.op == ENTER and not _in_every_pass(node)) or (sources & entering and not joined):
            entering.add(i)
        if i in carriers or sources & waiting:  # computed from them, in one pass of a loop
            waiting.add(i)
        if i in waiting or i in entering:
            continue
        for port, dtype in enumerate(graph.output_types[i]):
            tensor = Edge(i, port)
            shapes = _certain(graph, tensor, sizes) if dtype in ANY else None
            if shapes is not None and (graph.frames[i], shapes) in wanted:
                found[graph.frames[i], shapes].append(tensor)
    return {
        tensor: other
        for tensor, shapes in carried.items()
        for other in [_alive(graph, tensor.node, found[graph.frames[tensor.node], shapes])]
        if other is not None
    }


def _alive(graph: GraphIndex, i: int, tensors: list[Edge]) -> Edge | None:
    """The first that has a value whenever node i runs."""
    return next((t for t in tensors if graph.alive(t) <= graph.deadness[i]), None)
