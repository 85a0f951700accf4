"""TensorFlow's own shape inference over a graph, for sizes of what enters it.

The graph is imported with those sizes: 7 microseconds a node where it is only asked whether they
are taken, 19 where all shapes are read (2 cores, TensorFlow 2.21, 801 nodes).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2
from tensorflow.python.client import pywrap_tf_session as c_api
from tensorflow.python.framework import c_api_util, op_def_registry

from stitchcore.tensorflow.graph import GraphIndex, output_types
from stitchcore.tensorflow.loop_shapes import ELEMENT, POP, Rewrites, written_edge
from stitchcore.tensorflow.shape_function_allowlist import is_side_effect_free

CUT, HANDED = "cut", "handed"
"""What nodes are called that give an output of another the sizes that begin there, or stand for one
that is handed in."""

ROOTS = frozenset({"IteratorGetNext", "_Arg", "Placeholder", "IteratorGetNextSync"})
TABLES = frozenset({"LookupTableFind", "LookupTableFindV2"})
"""Operations that give a value for each key. A table that comes from outside the graph tells
inference nothing, not even a rank; where its default is a scalar its values are as its keys, which
is assumed: keys may be vectors, of tables that nobody makes of strings."""
LEFT_OUT = frozenset({"_Retval", "_Send", "_HostSend", "StitchTimer"})
HANDLES = frozenset({"VarHandleOp", "IteratorV2"})
STATIC_ROOTS = HANDLES | {"ReadVariableOp", "VariableV2"}

Tensor = tuple[str, int]
"""A node's name and an output of it."""
Place = tuple[str, int, int]
"""A node, an output, a dimension."""

Roots = Mapping[Place, str]
"""(node, port, axis) of unknown dimensions that enter the graph, each with its name."""
Shape = tuple[int | None, ...] | None
Shapes = Mapping[Tensor, Shape]


Answers = dict[tuple[frozenset[int], frozenset[tuple[str, int]]], bool]
"""Whether inference takes such sizes, with the loops and lists of these nodes rewritten: also where
more sizes are looked for, which are unknown then."""


def declared_shapes(node: Any) -> Sequence[Any]:
    """A TensorShapeProto for each output, as Grappler says them."""
    shapes: Sequence[Any] = node.attr["_output_shapes"].list.shape
    return shapes


class Inference:
    """TensorFlow's shape inference over one graph, for sizes of its roots. Nodes get names of our
    own: Grappler gives some that an import refuses."""

    def __init__(
        self,
        graph: Any,
        roots: Roots,
        rewritten: Rewrites,
        tables: bool = True,
        answers: Answers | None = None,
    ) -> None:
        self.graph, self.roots, self.rewritten = graph, roots, rewritten
        self.nodes = max(len(graph.node), 1)
        self.names = tuple(dict.fromkeys(roots.values()))
        self.refused = ""
        self._answers: Answers = {} if answers is None else answers
        self._covered = frozenset(rewritten.all())
        self._replaced: list[Any] = []
        self._fed: dict[Tensor, Any] = {}
        self._body = graph_pb2.GraphDef()
        self._body.versions.CopyFrom(graph.versions)
        self._body.library.CopyFrom(graph.library)
        self._original: dict[str, Tensor] = {}
        self._cuts: dict[Tensor, Any] = {}
        self._declared: dict[Tensor, Any] = {}
        numbers = range(len(graph.node)) if tables else ()
        self.tables = frozenset(i for i in numbers if _finds(rewritten.graph, i))
        dropped: dict[int, Any] = {}
        for number, node in enumerate(graph.node):
            if not rewritten.covers(number) and is_replaced(node) and number not in self.tables:
                dropped[number] = node
        self._replaced = list(dropped.values())
        handed_in = {node.name for node in self._replaced}
        begun = {(name, port) for name, port, _ in roots if name not in handed_in}
        for number, node in enumerate(graph.node):
            if number not in dropped:
                self._add(number, node, dropped, begun)

    def _add(
        self, number: int, node: Any, dropped: Mapping[int, Any], begun: AbstractSet[Tensor]
    ) -> None:
        """The node as it is imported, or what is written for it; and what gives the sizes that
        begin there."""
        name = f"n{number}"
        written = self.rewritten.nodes(number, name)
        if number in self.tables:
            written = [_as_keys(self.rewritten.graph, number, name)]
        if written is None:
            copy = node_def_pb2.NodeDef()
            copy.CopyFrom(node)
            copy.name, copy.device = name, ""
            copy.attr.pop("_output_shapes", None)
            copy.attr.pop("_class", None)
            del copy.input[:]
            copy.input.extend(map(written_edge, self.rewritten.graph.data[number]))
            written = [copy]
        for source in self.rewritten.graph.control[number]:
            if source not in dropped:
                written[0].input.append(f"^n{source}")
        for added in written:
            port = 1 if added.name == f"{name}_{ELEMENT}" else 0
            if port or added.name == name:
                self._original[added.name] = node.name, port
            for position, reference in enumerate(added.input):
                source, _, output = reference.partition(":")
                if source.isdigit():
                    added.input[position] = self._renamed(int(source), int(output), dropped, begun)
            self._body.node.add().CopyFrom(added)
        for port, kind in enumerate(self.rewritten.graph.output_types[number]):
            if (node.name, port) in begun:
                cut = self._body.node.add(name=f"{name}_{CUT}{port}", op="EnsureShape")
                cut.input.append(f"{name}:{port}")
                cut.attr["T"].type = tf.as_dtype(kind).as_datatype_enum
                self._cuts[node.name, port] = cut
                self._declared[node.name, port] = declared_shapes(node)[port]
                self._original[cut.name] = node.name, port

    def _renamed(
        self, source: int, port: int, dropped: Mapping[int, Any], begun: AbstractSet[Tensor]
    ) -> str:
        """How an output of a node is called in the body."""
        if (self.graph.node[source].name, port) in begun:
            return f"n{source}_{CUT}{port}:0"
        covered = self.rewritten.covers(source)
        if port and covered and self.graph.node[source].op == POP:
            return f"n{source}_{ELEMENT}"
        if source in dropped or (port and covered):
            return self._handed(source, port)
        return f"n{source}:{port}"

    def _handed(self, source: int, port: int) -> str:
        """What stands in the body for an output that is handed in; in place of a variable's handle
        one that tells the shape behind it, from which a lookup's rank follows."""
        node, name = self.graph.node[source], f"n{source}_{HANDED}{port}"
        if (node.name, port) not in self._fed:
            kind = tf.as_dtype(_dtype(node, port))
            variable = _variable(node) if kind == tf.resource else None
            fed = self._fed[node.name, port] = self._body.node.add(name=name)
            fed.op, fed.attr["dtype"].type = "Placeholder", kind.as_datatype_enum
            if variable is not None:
                fed.op, fed.attr["dtype"].type = "VarHandleOp", variable[0]
                fed.attr["shape"].shape.CopyFrom(variable[1])
        return f"{name}:0"

    def accepts(self, sizes: Mapping[str, int]) -> bool:
        """Whether inference takes these sizes of the roots (unknown where none is given)."""
        key = self._covered, frozenset(sizes.items())
        if key not in self._answers:
            self._answers[key] = self._imported(sizes) is not None
        return self._answers[key]

    def shapes(self, sizes: Mapping[str, int]) -> Shapes | None:
        """Shapes of all tensors with these sizes; None where inference refuses them, which
        `refused` then explains."""
        target = self._imported(sizes)
        if target is None:
            return None
        shapes = self._handed_in(sizes)
        for operation in target._add_new_tf_operations(compute_devices=False):
            original = self._original.get(operation.name)
            if original is None:
                continue
            for port, tensor in enumerate(operation.outputs, original[1]):
                shape = tensor.shape
                shapes[original[0], port] = None if shape.rank is None else tuple(shape.as_list())
        return shapes

    def _handed_in(self, sizes: Mapping[str, int]) -> dict[Tensor, Shape]:
        return {
            (node.name, port): shape
            for node in self._replaced
            for port, shape in enumerate(_root_shapes(node, self.roots, sizes))
        }

    def _imported(self, sizes: Mapping[str, int]) -> Any:
        """The graph with these sizes, None where inference refuses them. `import_graph_def` would
        make each node one of Python's, with its device and defaults: 29 microseconds a node."""
        root_shapes = self._handed_in(sizes)
        for (name, port), cut in self._cuts.items():
            shape = cut.attr["shape"].shape
            del shape.dim[:]
            for axis, dim in enumerate(self._declared[name, port].dim):
                begins = self.roots.get((name, port, axis), "")
                shape.dim.add(size=sizes.get(begins, max(dim.size, -1)))
        for tensor, fed in self._fed.items():
            if fed.op == "Placeholder":
                fed.attr["shape"].shape.CopyFrom(tf.TensorShape(root_shapes.get(tensor)).as_proto())
        target = tf.Graph()
        options = c_api_util.ScopedTFImportGraphDefOptions()
        try:
            with (
                c_api_util.tf_buffer(self._body.SerializeToString()) as data,
                target._c_graph.get() as graph,
            ):
                results = c_api.TF_GraphImportGraphDefWithResults(graph, data, options.options)
            c_api_util.ScopedTFImportGraphDefResults(results)
        except tf.errors.OpError as error:
            self.refused = str(error)[:300]
            return None
        return target


def is_replaced(node: Any) -> bool:
    """Whether a node's shapes are taken as handed in. A placeholder cannot stand for what takes a
    reference, and inference may run what has side effects."""
    if node.op in ROOTS | LEFT_OUT | STATIC_ROOTS or not is_side_effect_free(node.op):
        return True
    definition = op_def_registry.get(node.op)
    return any(argument.is_ref for argument in (*definition.input_arg, *definition.output_arg))


def _finds(graph: GraphIndex, i: int) -> bool:
    """Whether node i gives a scalar for each key."""
    return graph.nodes[i].op in TABLES and graph.shape(graph.data[i][2]) == ()


def _as_keys(graph: GraphIndex, i: int, name: str) -> node_def_pb2.NodeDef:
    """What has the shape of the keys of table lookup i, and the type of its values."""
    node = node_def_pb2.NodeDef(name=name, op="Cast", input=[written_edge(graph.data[i][1])])
    node.attr["SrcT"].type = graph.nodes[i].attr["Tin"].type
    node.attr["DstT"].type = graph.nodes[i].attr["Tout"].type
    return node


def _root_shapes(node: Any, roots: Roots, values: Mapping[str, int]) -> list[Shape]:
    shapes: list[Shape] = []
    for port, shape in enumerate(node.attr["_output_shapes"].list.shape):
        if shape.unknown_rank:
            shapes.append(None)
            continue
        sizes: list[int | None] = []
        for axis, dim in enumerate(shape.dim):
            name = roots.get((node.name, port, axis))
            value = values.get(name, -1) if name is not None else dim.size
            sizes.append(value if value >= 0 else None)
        shapes.append(tuple(sizes))
    return shapes


def _variable(node: Any) -> tuple[int, Any] | None:
    """Type and shape of the variable behind a handle, where the node tells them."""
    if node.op == "VarHandleOp":
        return node.attr["dtype"].type, node.attr["shape"].shape
    if "_handle_shapes" not in node.attr:
        return None
    shapes, types = node.attr["_handle_shapes"].list.shape, node.attr["_handle_dtypes"].list.type
    return (types[0], shapes[0]) if len(shapes) == len(types) == 1 else None


def _dtype(node: Any, port: int) -> Any:
    """Element type of a root's output."""
    if node.op in HANDLES:
        return tf.resource
    types = output_types(node)
    if port < len(types) and types[port]:
        return tf.as_dtype(types[port].removesuffix("_ref"))
    for attribute in ("output_types", "T", "dtype"):
        if attribute in node.attr:
            value = node.attr[attribute]
            return value.list.type[port] if value.list.type else value.type
    return tf.resource
