"""Unknown sizes as polynomials of a few symbols.

Grappler numbers unknown dimensions where it cannot prove them equal. Here the dimensions that enter
the graph (iterator elements, arguments, placeholders) are symbols; TensorFlow's own shape inference
runs at several values of them, and every other dimension is fitted to what it says there. Two of
them are one symbol only where Grappler says so or inference refuses them to differ (ties.py): each
kernel checks the shapes of its inputs at run time, and must not fail where TensorFlow would not.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.python.ops import handle_data_util

from stitchcore.errors import Reason, Refused
from stitchcore.hlo.dim import Dim
from stitchcore.hlo.fit import fit_dim
from stitchcore.tensorflow import ties
from stitchcore.tensorflow.graph import output_types
from stitchcore.tensorflow.inert import is_inert

SIZES = (24, 40, 56)
"""Sizes of the first symbol at the points where shapes are inferred; later symbols differ."""

MOST_SYMBOLS = 8
"""Pairs of monomials are tried for each dimension: their number grows with the sixth power."""

SYMBOLIC = -1000
"""Rewritten dimensions are SYMBOLIC - k; `Sizes.dims[k]` is the polynomial."""

ROOTS = frozenset({"IteratorGetNext", "_Arg", "Placeholder", "IteratorGetNextSync"})
LEFT_OUT = frozenset({"_Retval", "_Send", "_HostSend", "StitchTimer"})
HANDLES = frozenset({"VarHandleOp", "IteratorV2"})
STATIC_ROOTS = HANDLES | {"ReadVariableOp", "VariableV2"}


@dataclass(frozen=True)
class Sizes:
    """`graph` is the request's graph with fitted dimensions; `symbols` in order of appearance."""

    graph: Any
    symbols: tuple[str, ...]
    dims: tuple[Dim, ...]

    def dim(self, size: int) -> Dim | None:
        """The dimension behind an integer of `_output_shapes`, None when it is not known."""
        if size >= 0:
            return size
        number = SYMBOLIC - size
        return self.dims[number] if 0 <= number < len(self.dims) else None


def points(symbols: tuple[str, ...]) -> tuple[dict[str, int], ...]:
    """A base, each symbol changed, and all changed together (the check)."""
    if not symbols:
        return ({},)
    base = {name: SIZES[0] + 6 * k for k, name in enumerate(symbols)}
    found = [base]
    found += [{**base, name: SIZES[1] + 10 * k} for k, name in enumerate(symbols)]
    found.append({name: SIZES[2] + 14 * k for k, name in enumerate(symbols)})
    if len(symbols) > 1:
        found.append({name: 2 * SIZES[2] + 22 * k for k, name in enumerate(symbols)})
    return tuple(found)


def resolve(graph: Any) -> Sizes:
    """Fit every unknown dimension of `graph`. Raises Refused(PARSE_ERROR) where inference fails,
    STEP_LIMIT for more independent sizes than can be fitted in time."""
    roots = _root_symbols(graph)
    symbols = tuple(dict.fromkeys(roots.values()))
    if not symbols:
        return Sizes(graph, (), ())
    found = _inferred(graph, roots, symbols)
    result = graph_pb2.GraphDef()
    result.CopyFrom(graph)
    table: dict[Dim, int] = {}
    for node in result.node:
        for port, shape in enumerate(node.attr["_output_shapes"].list.shape):
            seen = [shapes.get((node.name, port)) for shapes in found.shapes]
            _rewrite(shape, seen, found.points, table)
    return Sizes(result, found.symbols, tuple(table))


Roots = Mapping[tuple[str, int, int], str]
Shapes = Mapping[tuple[str, int], tuple[int | None, ...] | None]


@dataclass(frozen=True)
class _Inferred:
    """Shapes of all tensors at each of `points`, which bind `symbols`."""

    symbols: tuple[str, ...]
    points: tuple[dict[str, int], ...]
    shapes: list[Shapes]


def _inferred(graph: Any, roots: Roots, symbols: tuple[str, ...]) -> _Inferred:
    """Infers with each symbol of its own size; where that is refused, with those tied that must be.

    Raises Refused(PARSE_ERROR) where inference fails with all sizes equal too, GUARD_FAILED, or
    STEP_LIMIT.
    """
    known: dict[tuple[int | None, ...], Shapes | None] = {}

    def shapes(point: Mapping[str, int]) -> Shapes | None:
        key = tuple(point.get(name) for name in symbols)
        if key not in known:
            try:
                known[key] = _infer(graph, roots, point)
            except Refused:
                known[key] = None
        return known[key]

    distinct = points(symbols)
    if len(symbols) == 1:
        return _Inferred(symbols, distinct, [_infer(graph, roots, point) for point in distinct])
    if shapes(distinct[0]) is not None:
        _limited(symbols)
    found = [shapes(point) for point in itertools.takewhile(shapes, distinct)]
    if len(found) == len(distinct):
        return _Inferred(symbols, distinct, [one for one in found if one is not None])
    _infer(graph, roots, dict.fromkeys(symbols, ties.BASE))  # says why, where nothing is accepted
    tied = ties.tie(symbols, lambda point: shapes(point) is not None)
    leaders = tuple(dict.fromkeys(tied.leader.values()))
    _limited(leaders)
    named = {root: tied.leader[name] for root, name in roots.items()}
    bindings = ties.points(leaders, tied.broadcast)
    return _Inferred(leaders, bindings, [_infer(graph, named, point) for point in bindings])


def _limited(symbols: tuple[str, ...]) -> None:
    if len(symbols) > MOST_SYMBOLS:
        detail = f"{len(symbols)} independent unknown sizes, at most {MOST_SYMBOLS}"
        raise Refused("graph", Reason.STEP_LIMIT, detail)


def _rewrite(
    shape: Any,
    found: list[tuple[int | None, ...] | None],
    bindings: tuple[dict[str, int], ...],
    table: dict[Dim, int],
) -> None:
    for dim in shape.dim:
        if dim.size <= SYMBOLIC:
            dim.size = -1  # Grappler's own number, which is none of the table's
    known = [dims for dims in found if dims is not None]
    if len(known) != len(found) or len({len(dims) for dims in known}) != 1:
        return
    if shape.unknown_rank:
        if any(size is None for dims in known for size in dims):
            return
        shape.unknown_rank = False
        del shape.dim[:]
        for _ in known[0]:
            shape.dim.add(size=-1)
    if len(shape.dim) != len(known[0]):
        return  # the graph claims another rank than its operations give
    for axis, dim in enumerate(shape.dim):
        values = [dims[axis] for dims in known]
        if dim.size >= 0 or any(value is None for value in values):
            continue
        fitted = fit_dim([value for value in values if value is not None], bindings)
        if fitted is None:
            dim.size = -1
        elif isinstance(fitted, int):
            dim.size = fitted
        else:
            dim.size = SYMBOLIC - table.setdefault(fitted, len(table))


def _root_symbols(graph: Any) -> dict[tuple[str, int, int], str]:
    """(node, port, axis) of unknown root dimensions, each with its symbol."""
    names: dict[object, str] = {}
    found: dict[tuple[str, int, int], str] = {}
    for node in graph.node:
        if node.op not in ROOTS:
            continue
        for port, shape in enumerate(node.attr["_output_shapes"].list.shape):
            for axis, dim in enumerate(shape.dim):
                if dim.size >= 0 or shape.unknown_rank:
                    continue
                identity: object = (node.name, port, axis) if dim.size == -1 else dim.size
                found[node.name, port, axis] = names.setdefault(identity, f"s{len(names)}")
    return found


def _infer(
    graph: Any, roots: Roots, point: Mapping[str, int]
) -> dict[tuple[str, int], tuple[int | None, ...] | None]:
    """Shapes of all tensors with the roots' symbols at `point`, by TensorFlow's inference."""
    body = graph_pb2.GraphDef()
    body.versions.CopyFrom(graph.versions)
    body.library.CopyFrom(graph.library)
    given: dict[tuple[str, int], Any] = {}
    target = tf.Graph()
    with target.as_default():
        by_name = {node.name: node for node in graph.node}
        dropped = {node.name for node in graph.node if _replaced(node)}
        mapping: dict[str, Any] = {}
        for node in graph.node:
            if node.name in dropped:
                for port, shape in enumerate(_root_shapes(node, roots, point)):
                    given[node.name, port] = shape
                continue
            copy = body.node.add()
            copy.CopyFrom(node)
            copy.device = ""
            copy.attr.pop("_output_shapes", None)
            copy.attr.pop("_class", None)
            kept = [i for i in node.input if not (i[0] == "^" and i[1:] in dropped)]
            del copy.input[:]
            copy.input.extend(kept)
            for reference in kept:
                name, _, port = reference.partition(":")
                if name in dropped and reference not in mapping:
                    dtype = _dtype(by_name[name], int(port or 0))
                    shape = given.get((name, int(port or 0)))
                    root = tf.compat.v1.placeholder(dtype, shape)
                    _describe(root, by_name[name])
                    mapping[f"{name}:{port or 0}"] = root
        try:
            tf.graph_util.import_graph_def(body, input_map=mapping, name="")
        except (ValueError, KeyError) as error:
            raise Refused("graph", Reason.PARSE_ERROR, str(error)[:300]) from error
    for operation in target.get_operations():
        for port, tensor in enumerate(operation.outputs):
            shape = tensor.shape
            dims = None if shape.rank is None else tuple(shape.as_list())
            given.setdefault((operation.name, port), dims)
    return given


def _replaced(node: Any) -> bool:
    if node.op in ROOTS | LEFT_OUT | STATIC_ROOTS:
        return True
    return not is_inert(node.op)  # inference may run it


def _root_shapes(
    node: Any, roots: Mapping[tuple[str, int, int], str], point: Mapping[str, int]
) -> list[tuple[int | None, ...] | None]:
    shapes: list[tuple[int | None, ...] | None] = []
    for port, shape in enumerate(node.attr["_output_shapes"].list.shape):
        if shape.unknown_rank:
            shapes.append(None)
            continue
        sizes: list[int | None] = []
        for axis, dim in enumerate(shape.dim):
            name = roots.get((node.name, port, axis))
            value = point.get(name, -1) if name is not None else dim.size
            sizes.append(value if value >= 0 else None)
        shapes.append(tuple(sizes))
    return shapes


def _describe(root: Any, node: Any) -> None:
    """Tell inference the shape behind a variable's handle: a lookup's rank follows from it."""
    if root.dtype != tf.resource:
        return
    if "_handle_shapes" in node.attr:
        shapes = node.attr["_handle_shapes"].list.shape
        types = node.attr["_handle_dtypes"].list.type
    elif node.op == "VarHandleOp":
        shapes, types = [node.attr["shape"].shape], [node.attr["dtype"].type]
    else:
        return
    if len(shapes) == 1:
        data = handle_data_util.create_handle_data(tf.TensorShape(shapes[0]), tf.as_dtype(types[0]))
        handle_data_util.set_handle_data(root, data)


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
