"""Shapes that come off a stack, or into a loop, computed again where they are used.

The gradient of a loop pops the shapes of its forward loop's tensors off stacks (of TensorFlow 1) or
lists: axes to sum over, sizes to reshape to. Where sizes are unknown until a step runs, these are
values of another loop, and whatever needs them would stay TensorFlow's. But a popped shape is that
of a tensor whose sizes are known as polynomials (symbolic_sizes.py), and for each that is no number
there is mostly a tensor at hand, in the loop that pops it, with a dimension of that size. So what
is popped is replaced by those sizes packed into a vector: shape arithmetic like any other, in the
copy of the graph that is cut into regions. The job's own graph keeps its stacks. What falls back
relies on this too, so the sizes are to be the same where what is assumed of them does not hold,
either.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from stitchcore.hlo.ir import dim as dims
from stitchcore.inject.digest import parse_reference
from stitchcore.inject.structure import MERGES
from stitchcore.tensorflow.graph import Edge, GraphIndex, index
from stitchcore.tensorflow.loop_shapes import INDEX, POPS, Rewrites, rewrites
from stitchcore.tensorflow.op_allowlist import ANY
from stitchcore.tensorflow.symbolic_sizes import Sizes

ENTER = "Enter"
_HANDED_ON = frozenset({ENTER, "Identity"})
_PREFIX = "stitch_shape"

Size = tuple[int | None, ...]
"""Of one dimension: as `_output_shapes` has it once sizes are fitted, where a negative one stands
for a polynomial, and each that it has where what is assumed does not hold."""
Shape = tuple[Size, ...]

Array = np.ndarray[Any, np.dtype[Any]]
Place = tuple[Edge, int]
"""A tensor and a dimension of it."""


def recompute(sizes: Sizes) -> tuple[GraphIndex, Mapping[int, Edge]]:
    """The index of a copy of the graph of `sizes`, to which nodes are added at the end, and inputs
    rewired to them; and the tensor for which each of these stands in. Linear in the graph. Raises
    Refused(PARSE_ERROR) for a damaged graph."""
    graph = index(sizes.graph)
    carried = {} if sizes.otherwise is None else _carried(graph, sizes)
    if not carried:
        return graph, {}
    result = graph_pb2.GraphDef()
    result.CopyFrom(sizes.graph)
    at_hand = _at_hand(graph, carried, sizes)
    prefix = _PREFIX
    while any(node.name.startswith(prefix) for node in graph.nodes):
        prefix += "_"
    stands_for: dict[int, Edge] = {}
    for tensor, shape in carried.items():
        parts = [_part(graph, tensor, size, at_hand) for size in shape]
        known = [part for part in parts if part is not None]
        if len(known) == len(parts):
            begin, waited_for = len(result.node), _waited_for(graph, tensor, known)
            _Writer(graph, result, tensor, waited_for, prefix).replace(known)
            stands_for |= dict.fromkeys(range(begin, len(result.node)), tensor)
    return index(result), stands_for


def _part(
    graph: GraphIndex, tensor: Edge, size: Size, at_hand: Mapping[tuple[str, Size], list[Place]]
) -> int | Place | None:
    """What a size is: a number, or as large as the first dimension at hand of a tensor that has a
    value when `tensor` has, or else of one that has whenever `tensor` has."""
    first = size[0]
    if first is not None and first >= 0 and len(set(size)) == 1:
        return first
    places = at_hand.get((graph.frames[tensor.node], size), [])
    lives = graph.deadness[tensor.node]
    alive = [place for place in places if graph.alive(place[0]) <= lives]
    same = [place for place in alive if graph.alive(place[0]) == lives]
    return next(iter((*same, *alive)), None)


def _waited_for(graph: GraphIndex, tensor: Edge, parts: Sequence[int | Place]) -> int:
    """The node that what replaces `tensor` waits for, to be in its loop and in its branches: one
    that is computed from anyway, if that will do."""
    sources = [part[0] for part in parts if not isinstance(part, int)]
    if sources and all(graph.alive(source) == graph.deadness[tensor.node] for source in sources):
        return sources[0].node
    return tensor.node


class _Writer:
    """Writes into a copy of the graph what replaces a tensor; each node waits for `waited_for`."""

    def __init__(
        self, graph: GraphIndex, result: Any, tensor: Edge, waited_for: int, prefix: str
    ) -> None:
        self._graph, self._result = graph, result
        self._tensor, self._prefix = tensor, prefix
        self._node, self._waited_for = graph.nodes[tensor.node], graph.nodes[waited_for].name
        self._kind = tf.as_dtype(graph.dtype(tensor)).as_datatype_enum
        self._dtype = tf.as_dtype(self._kind).as_numpy_dtype

    def replace(self, parts: Sequence[int | Place]) -> None:
        numbers: dict[int | Place, str] = {}
        for part in parts:
            if part not in numbers:
                numbers[part] = self._number(part) if isinstance(part, int) else self._size(*part)
        vector = self._packed([numbers[part] for part in parts])
        made = (self._node.name, self._tensor.port)
        for consumer, position in self._graph.consumers[self._tensor.node]:
            inputs = self._result.node[consumer].input
            if parse_reference(inputs[position]) == made:
                inputs[position] = vector

    def _packed(self, numbers: Sequence[str]) -> str:
        if not numbers:
            return self._constant(np.zeros(0, self._dtype))
        node = self._add("Pack", numbers, (len(numbers),), T=self._kind)
        node.attr["N"].i = len(numbers)
        return str(node.name)

    def _number(self, number: int) -> str:
        return self._constant(np.asarray(number, self._dtype))

    def _size(self, tensor: Edge, axis: int) -> str:
        source, rank = self._graph.nodes[tensor.node].name, len(self._graph.shape(tensor) or ())
        dtype = tf.as_dtype(self._graph.dtype(tensor)).as_datatype_enum
        shape = self._add(
            "Shape", [f"{source}:{tensor.port}"], (rank,), T=dtype, out_type=self._kind
        )
        places = [self._constant(np.array([n], np.int32)) for n in (axis, axis + 1, 1)]
        number = self._add("StridedSlice", [shape.name, *places], (), T=self._kind, Index=INDEX)
        number.attr["shrink_axis_mask"].i = 1
        return str(number.name)

    def _constant(self, value: Array) -> str:
        kind = tf.as_dtype(value.dtype).as_datatype_enum
        node = self._add("Const", [], value.shape, dtype=kind)
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))
        return str(node.name)

    def _add(
        self, operation: str, inputs: Sequence[str], shape: Sequence[int], **types: int
    ) -> Any:
        name = f"{self._prefix}{len(self._result.node)}"
        node = self._result.node.add(name=name, op=operation, device=self._node.device)
        node.input.extend([*inputs, f"^{self._waited_for}"])
        for attribute, kind in types.items():
            node.attr[attribute].type = kind
        declared = node.attr["_output_shapes"].list.shape.add()
        for size in shape:
            declared.dim.add(size=size)
        return node


def _carried(graph: GraphIndex, sizes: Sizes) -> dict[Edge, Shape]:
    """Shapes that are handed on as vectors of integers, by what pops or enters them: each of one
    tensor, of which all is certain."""
    through = rewrites(graph)
    found = {}
    for i, node in enumerate(graph.nodes):
        if node.op in POPS and i in through.taken:
            tensor = Edge(i, POPS[node.op])
        elif node.op == ENTER and _in_every_pass(node):
            tensor = Edge(i, 0)
        else:
            continue
        is_vector = len(graph.shape(tensor) or ()) == 1
        if is_vector and graph.dtype(tensor) in ("int32", "int64"):
            shapes = _shape_behind(through, i, sizes)
            if shapes is not None:
                found[tensor] = shapes
    return found


def _in_every_pass(enter: Any) -> bool:
    """Whether what enters a loop is a constant of it, not a variable's first value."""
    return bool(enter.attr["is_constant"].b)


def _shape_behind(through: Rewrites, i: int, sizes: Sizes) -> Shape | None:
    """What node i hands on as a vector, if it is the certain shape of one tensor, or the same one
    of several."""
    graph, taken = through.graph, through.taken
    found: set[Shape | None] = set()
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


def _certain(graph: GraphIndex, tensor: Edge, sizes: Sizes) -> Shape | None:
    """The shape of a tensor, if all is known of it."""
    name, shape = (graph.nodes[tensor.node].name, tensor.port), graph.shape(tensor)
    if shape is None or (sizes.unrelated and name in sizes.supposed):
        return None
    for dim in map(sizes.dim, shape):
        if dim is None or not sizes.unrelated.isdisjoint(dims.symbols_of(dim)):
            return None
    others = [shapes.get(name) for shapes in sizes.otherwise or ()]
    if any(other is None or len(other) != len(shape) or None in other for other in others):
        return None
    return tuple(zip(shape, *(other for other in others if other is not None), strict=True))


def _at_hand(
    graph: GraphIndex, carried: Mapping[Edge, Shape], sizes: Sizes
) -> Mapping[tuple[str, Size], list[Place]]:
    """For each loop and size of `carried` the dimensions of that size, in order, of tensors that
    are there in every pass and computed from none of these vectors."""
    wanted = {(graph.frames[tensor.node], s) for tensor, shape in carried.items() for s in shape}
    found: defaultdict[tuple[str, Size], list[Place]] = defaultdict(list)
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
            shape = _certain(graph, Edge(i, port), sizes) if dtype in ANY else None
            for axis, size in enumerate(shape or ()):
                if (graph.frames[i], size) in wanted:
                    found[graph.frames[i], size].append((Edge(i, port), axis))
    return found
