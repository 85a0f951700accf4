"""A request's graph as it was handed over, untrusted: limited before and after it is parsed.

What is cheap to send may be dear to hold: two bytes make a node, a short list of numbers a tensor
of any size, a chain of functions a deep recursion. Bytes and nodes are counted before the parser
allocates anything, the rest before any other code looks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError
from tensorflow.core.framework import graph_pb2

from stitchcore.errors import Reason, Refused
from stitchcore.tensorflow.validate import validate


@dataclass(frozen=True)
class GraphLimits:
    """Most that a graph may have. `nodes` counts functions' nodes too; `inputs`, `attributes` and
    `attribute_bytes` are per node, `constant_bytes` what all constants hold once expanded,
    `nesting` how deep functions call functions, `elements` of one tensor by `_output_shapes`.
    `validated` graphs are held against the definitions of their operations (validate.py)."""

    total_bytes: int = 512 * 2**20
    nodes: int = 1_000_000
    functions: int = 20_000
    inputs: int = 65_536
    attributes: int = 256
    attribute_bytes: int = 512 * 2**20
    constant_bytes: int = 512 * 2**20
    nesting: int = 64
    elements: int = 2**40
    validated: bool = False


OWN = GraphLimits()
"""For graphs of a user's own jobs (`stitch run`)."""

STRANGERS = GraphLimits(
    total_bytes=64 * 2**20,
    nodes=200_000,
    functions=4_000,
    attribute_bytes=2**20,
    constant_bytes=16 * 2**20,
    elements=2**36,
    validated=True,
)
"""For graphs that come over a network: structure only (docs/contracts.md section 4)."""

_GRAPH_NODE, _GRAPH_LIBRARY, _LIBRARY_FUNCTION, _FUNCTION_NODE = 1, 2, 1, 3


def read_graph(data: bytes, limits: GraphLimits = OWN) -> Any:
    """The GraphDef in `data`. Raises Refused(PARSE_ERROR, GRAPH_TOO_LARGE)."""
    _within("bytes", len(data), limits.total_bytes)
    _count(data, limits)
    try:
        graph = graph_pb2.GraphDef.FromString(data)
    except (DecodeError, RecursionError) as error:
        raise Refused("graph.pb", Reason.PARSE_ERROR, str(error)) from error
    _within("functions", len(graph.library.function), limits.functions)
    constants = 0
    for node in _nodes(graph):
        constants += _check_node(node, limits)
        _within("bytes of constants", constants, limits.constant_bytes)
    _check_nesting(graph, limits)
    if limits.validated:
        validate(graph)
    return graph


def _within(counted: str, count: int, limit: int) -> None:
    if count > limit:
        raise Refused("graph", Reason.GRAPH_TOO_LARGE, f"{count} {counted}, at most {limit}")


def _nodes(graph: Any) -> Iterator[Any]:
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def


# ---- before parsing ----------------------------------------------------------------------------
def _count(data: bytes, limits: GraphLimits) -> None:
    """Nodes of the graph and its functions, from the wire format alone. All fields are counted, so
    that reading them takes bounded time."""
    nodes = functions = fields = 0
    for field, start, end in _fields(data, 0, len(data)):
        fields += 1
        nodes += field == _GRAPH_NODE
        if field == _GRAPH_LIBRARY:
            for inner, first, last in _fields(data, start, end):
                fields += 1
                functions += inner == _LIBRARY_FUNCTION
                if inner == _LIBRARY_FUNCTION:
                    kinds = [inner_field for inner_field, _, _ in _fields(data, first, last)]
                    fields += len(kinds)
                    nodes += kinds.count(_FUNCTION_NODE)
                _within("functions", functions, limits.functions)
                _within("nodes", nodes, limits.nodes)
                _within("fields", fields, 4 * limits.nodes)
        _within("nodes", nodes, limits.nodes)
        _within("fields", fields, 4 * limits.nodes)


def _fields(data: bytes, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """(number, first byte, end) of each field of a message (protobuf.dev, "Encoding").

    Raises Refused(PARSE_ERROR) where the bytes are no message. Groups, which GraphDef has none of,
    are skipped by their parts, as fields of their own.
    """
    while start < end:
        tag, start = _varint(data, start, end)
        kind = tag & 7
        if kind == 0:
            first = start
            _, start = _varint(data, start, end)
        elif kind in (1, 5):
            first, start = start, start + (8 if kind == 1 else 4)
        elif kind == 2:
            length, first = _varint(data, start, end)
            start = first + length
        elif kind in (3, 4):
            first = start
        else:
            raise Refused("graph.pb", Reason.PARSE_ERROR, f"wire type {kind}")
        if start > end:
            raise Refused("graph.pb", Reason.PARSE_ERROR, "cut short")
        yield tag >> 3, first, start


def _varint(data: bytes, start: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while start < end and shift < 70:
        byte = data[start]
        value |= (byte & 127) << shift
        start, shift = start + 1, shift + 7
        if byte < 128:
            return value, start
    raise Refused("graph.pb", Reason.PARSE_ERROR, "a number is cut short")


# ---- before anything else looks ----------------------------------------------------------------
def _check_node(node: Any, limits: GraphLimits) -> int:
    """Bytes that the node's constants have when expanded. Raises Refused(GRAPH_TOO_LARGE)."""
    _within("inputs of a node", len(node.input), limits.inputs)
    _within("attributes of a node", len(node.attr), limits.attributes)
    constants = 0
    for name, value in node.attr.items():
        _within("bytes of an attribute", value.ByteSize(), limits.attribute_bytes)
        for tensor in _tensors(value):
            size = _elements(tensor.tensor_shape)
            _within("elements of a constant", size, limits.constant_bytes)
            constants += 8 * size
        if name == "_output_shapes":
            for shape in value.list.shape:
                _within("elements of a tensor", _elements(shape), limits.elements)
    return constants


def _tensors(value: Any) -> Iterable[Any]:
    kind = value.WhichOneof("value")
    if kind == "tensor":
        return (value.tensor,)
    return tuple(value.list.tensor) if kind == "list" else ()


def _elements(shape: Any) -> int:
    """Elements of a shape, unknown dimensions counted as one."""
    total = 1
    for dim in shape.dim:
        total *= dim.size if dim.size >= 0 else 1
    return total


def _check_nesting(graph: Any, limits: GraphLimits) -> None:
    """Functions that call functions: no deeper than the limit, and not in a circle."""
    calls = {
        function.signature.name: {
            name
            for node in function.node_def
            for value in node.attr.values()
            for name in function_names(value)
        }
        for function in graph.library.function
    }
    depth: dict[str, int] = {}
    pending = {name: {c for c in called if c in calls} for name, called in calls.items()}
    _within("functions of one name", len(graph.library.function) - len(calls), 0)
    while pending:
        known = [name for name, called in pending.items() if called <= depth.keys()]
        if not known:
            raise Refused("graph", Reason.GRAPH_TOO_LARGE, "functions call each other in a circle")
        for name in known:
            depth[name] = 1 + max((depth[c] for c in pending[name]), default=0)
            _within("functions within functions", depth[name], limits.nesting)
        for name in known:
            del pending[name]


def function_names(value: Any) -> Mapping[str, None]:
    """Names of library functions that an attribute refers to, nested ones too."""
    names: dict[str, None] = {}
    pending = [value]
    while pending:
        attribute = pending.pop()
        kind = attribute.WhichOneof("value")
        functions = (
            (attribute.func,)
            if kind == "func"
            else tuple(attribute.list.func)
            if kind == "list"
            else ()
        )
        for function in functions:
            names[function.name] = None
            pending.extend(function.attr.values())
    return names
