"""Shapes that Grappler leaves open and the graph itself proves.

A stack of tensors pushed in a loop and popped in its gradient's loop loses its shape; so does all
that is computed from it. Here a popped tensor gets the shape of what was pushed, where every push
onto its list has one static shape; a loop variable keeps the shape it enters with, where the loop's
end gives that shape back (assumed, propagated, then checked: what fails is withdrawn and all is
done again without it). `VariableShape` of a variable of known shape becomes a constant. The last
output of a fused batch normalization is a workspace of its library, which nothing here reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from stitchcore.tensorflow.graph import Edge, GraphIndex, index
from stitchcore.tensorflow.variables import resolve, variable_shape

Shape = tuple[int, ...]

PASS = frozenset(
    {"Identity", "Enter", "Exit", "Switch", "NextIteration", "StopGradient", "Snapshot"}
)
MERGE = "Merge"
PUSH, POP, EMPTY = "TensorListPushBack", "TensorListPopBack", "EmptyTensorList"
ELEMENTWISE = frozenset(
    """
    Add AddV2 Sub Mul RealDiv Maximum Minimum AddN Neg Tanh TanhGrad Sigmoid SigmoidGrad Relu
    ReluGrad Exp Log Sqrt Rsqrt Square SquaredDifference ZerosLike OnesLike Cast _MklSwish
    """.split()
)
"""The output has the inputs' broadcast shape."""

WORKSPACES = {"FusedBatchNormV3": 5, "_FusedBatchNormEx": 5}
"""Outputs whose contents the CPU kernels of the gradient ignore (reserve_space_3): empty for us."""


def _product(node: Any, last: Any, inputs: Sequence[Shape | None]) -> Shape | None:
    """MatMul."""
    left, right = inputs
    if left is None or right is None or len(left) != 2 or len(right) != 2:
        return None
    rows = left[1] if node.attr["transpose_a"].b else left[0]
    return (rows, right[0] if node.attr["transpose_b"].b else right[1])


def _channels(node: Any, last: Any, inputs: Sequence[Shape | None]) -> Shape | None:
    """BiasAddGrad."""
    if inputs[0] is None or node.attr["data_format"].s == b"NCHW":
        return None
    return inputs[0][-1:]


def _joined(node: Any, last: Any, inputs: Sequence[Shape | None]) -> Shape | None:
    """ConcatV2 along a constant axis."""
    parts = [shape for shape in inputs[:-1] if shape is not None]
    ranks = {len(shape) for shape in parts}
    if last.op != "Const" or len(parts) != len(inputs) - 1 or len(ranks) != 1 or ranks == {0}:
        return None
    place = tf.make_ndarray(last.attr["value"].tensor)
    if place.ndim != 0:
        return None
    axis = int(place) % len(parts[0])
    total = sum(shape[axis] for shape in parts)
    return (*parts[0][:axis], total, *parts[0][axis + 1 :])


SHAPED: dict[str, Callable[[Any, Any, Sequence[Shape | None]], Shape | None]] = {
    "MatMul": _product,
    "BiasAddGrad": _channels,
    "ConcatV2": _joined,
}
"""(node, last operand's node, input shapes) -> output shape, of what a cell's gradient needs."""


def infer_shapes(graph: Any) -> Any:
    """A copy of a GraphDef with more known `_output_shapes`; node names and order are the same."""
    result = graph_pb2.GraphDef()
    result.CopyFrom(graph)
    indexed = index(result)
    _fix_variable_shapes(indexed)
    for node in result.node:
        if node.op in WORKSPACES:
            _set_shape(node, WORKSPACES[node.op], (0,))
    if not any(node.op in (POP, "Fill") for node in result.node):
        return result
    for (node, port), shape in _proved(index(result)).items():
        _set_shape(result.node[node], port, shape)
    return result


def _set_shape(node: Any, port: int, shape: Shape) -> None:
    declared = node.attr["_output_shapes"].list.shape[port]
    declared.unknown_rank = False
    del declared.dim[:]
    for size in shape:
        declared.dim.add(size=size)


def _fix_variable_shapes(graph: GraphIndex) -> None:
    """VariableShape nodes whose variable's shape is known become constants, in place. They keep
    waiting for what they waited for: it says in which loop they run."""
    for i, node in enumerate(graph.nodes):
        if node.op != "VariableShape":
            continue
        shape = variable_shape(graph, resolve(graph, graph.data[i][0]))
        if shape is None:
            continue
        handle = graph.nodes[graph.data[i][0].node].name
        waits = {
            f"^{handle}",
            *(reference for reference in node.input if reference.startswith("^")),
        }
        dtype = tf.as_dtype(node.attr["out_type"].type or tf.int32.as_datatype_enum)
        output_shapes = type(node.attr["_output_shapes"])()
        output_shapes.CopyFrom(node.attr["_output_shapes"])
        node.op = "Const"
        del node.input[:]
        node.input.extend(sorted(waits))
        node.attr.clear()
        node.attr["_output_shapes"].CopyFrom(output_shapes)
        node.attr["dtype"].type = dtype.as_datatype_enum
        value = np.array(shape, dtype.as_numpy_dtype)
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))


def _proved(graph: GraphIndex) -> dict[tuple[int, int], Shape]:
    """Static shapes of tensors that have none yet."""
    withdrawn: set[int] = set()
    while True:
        known, assumed = _propagate(graph, withdrawn)
        wrong = {i for i in assumed if not _consistent(graph, known, i)}
        if not wrong:
            return known
        withdrawn |= wrong


def _propagate(
    graph: GraphIndex, withdrawn: set[int]
) -> tuple[dict[tuple[int, int], Shape], set[int]]:
    """Shapes by one pass in order, and the loop variables whose shape was assumed."""
    known: dict[tuple[int, int], Shape] = {}
    assumed: set[int] = set()
    for i in graph.order:
        node = graph.nodes[i]
        inputs = [_shape(graph, known, tensor) for tensor in graph.data[i]]
        if node.op == POP:
            shape = _pushed(graph, known, graph.data[i][0])
            if shape is not None and _shape(graph, known, Edge(i, 1)) is None:
                known[i, 1] = shape
            continue
        if node.op == MERGE:
            ends = [s for t, s in zip(graph.data[i], inputs, strict=True) if _is_back(graph, t)]
            starts = [
                s for t, s in zip(graph.data[i], inputs, strict=True) if not _is_back(graph, t)
            ]
            if not ends or len(set(starts)) != 1 or i in withdrawn:
                continue
            shape = starts[0]
            if shape is not None:
                assumed.add(i)
        elif node.op in PASS:
            shape = inputs[0] if inputs else None
        elif node.op in ELEMENTWISE:
            shape = _broadcast(inputs)
        elif node.op == "Fill":
            shape = _filled(graph.nodes[graph.data[i][0].node])
        elif node.op in SHAPED:
            shape = SHAPED[node.op](node, graph.nodes[graph.data[i][-1].node], inputs)
        else:
            continue
        for port, dtype in enumerate(graph.output_types[i]):
            tensor = Edge(i, port)
            is_value = dtype not in ("resource", "variant") and (node.op != MERGE or port == 0)
            if shape is not None and is_value and _shape(graph, known, tensor) is None:
                known[i, port] = shape
    return known, assumed


def _consistent(graph: GraphIndex, known: Mapping[tuple[int, int], Shape], merge: int) -> bool:
    """Whether every pass of the loop gives back the shape it began with."""
    shapes = {_shape(graph, known, tensor) for tensor in graph.data[merge]}
    return len(shapes) == 1 and None not in shapes


def _is_back(graph: GraphIndex, tensor: Edge) -> bool:
    return bool(graph.nodes[tensor.node].op == "NextIteration")


def _shape(graph: GraphIndex, known: Mapping[tuple[int, int], Shape], tensor: Edge) -> Shape | None:
    """Static dimensions; None where one is unknown."""
    shape = known.get((tensor.node, tensor.port), graph.shape(tensor))
    return None if shape is None or any(size < 0 for size in shape) else shape


def _broadcast(shapes: Sequence[Shape | None]) -> Shape | None:
    if any(shape is None for shape in shapes) or not shapes:
        return None
    try:
        return tuple(int(n) for n in np.broadcast_shapes(*(s for s in shapes if s is not None)))
    except ValueError:
        return None


def _filled(dims: Any) -> Shape | None:
    """The shape that a constant operand of Fill gives; None for one that Fill will not take."""
    if dims.op != "Const":
        return None
    sizes = tf.make_ndarray(dims.attr["value"].tensor)
    return tuple(int(size) for size in sizes) if sizes.ndim == 1 else None


def _pushed(
    graph: GraphIndex, known: Mapping[tuple[int, int], Shape], handle: Edge
) -> Shape | None:
    """The one static shape of everything pushed onto a list, followed back to its creation."""
    shapes: set[Shape | None] = set()
    seen: set[int] = set()
    stack = [handle.node]
    while stack:
        i = stack.pop()
        if i in seen:
            continue
        seen.add(i)
        node = graph.nodes[i]
        if node.op in PASS or node.op == POP:
            stack.append(graph.data[i][0].node)
        elif node.op == MERGE:
            stack.extend(tensor.node for tensor in graph.data[i])
        elif node.op == PUSH:
            shapes.add(_shape(graph, known, graph.data[i][1]))
            stack.append(graph.data[i][0].node)
        elif node.op != EMPTY:
            return None
    return shapes.pop() if len(shapes) == 1 else None
