"""Which values that are made of sizes a kernel can compute from them.

Shape arithmetic and numbers made of sizes are copied into regions, and what they hold is fitted to
the sizes at which a region is lowered (hlo/symbolic). No polynomial is a size modulo 8, or whether
it is above 100; and the smaller one of a size and 128 is the size itself wherever it was looked at.
So they are evaluated by TensorFlow, at those sizes, at large ones and at small ones: what is not
there what it seems is left to TensorFlow, whose value a kernel may take as an input. What is
something else at sizes of 1 or 0 alone, as in a sum over max(n, 1), is copied all the same, and
kernels are left to their fallbacks where a size is so small. A length after constant strides is
such a value too, but for that it is in no tensor: the operation with which it begins stays
TensorFlow's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from stitchcore.hlo.ir import dim as dims
from stitchcore.hlo.ir.dim import Dim
from stitchcore.hlo.ir.literal import from_array
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.hlo.symbolic.polynomial_fit import fit_dim, fit_scalar
from stitchcore.tensorflow.graph import Edge, GraphIndex
from stitchcore.tensorflow.node_roles import CLONE_ELEMENTS, Part
from stitchcore.tensorflow.size_points import LARGE, points
from stitchcore.tensorflow.symbolic_sizes import Sizes

Point = Mapping[str, int]
Values = Mapping[Edge, np.ndarray[Any, Any]]

SMALLEST = 2
"""Of the first symbol, where all are small; 1 broadcasts, and 0 is nothing."""

BROADCASTS = frozenset({"BroadcastGradientArgs", "BroadcastArgs"})
"""Of these nothing is asked at sizes of 1 or 0: which axes a gradient is summed over is another
thing there, and the sum over one element the same."""

OF_SHAPES = frozenset({"Shape", "ShapeN", "Size", "Rank"})

UNITS = 4
"""In the last place, by which a number may differ from the quotient that was fitted to it."""


def begin_within(graph: GraphIndex, sizes: Sizes) -> Iterator[int]:
    """Nodes with a size that is derived of others, which none of their inputs has, and none tells
    of a tensor that has it."""
    told: dict[int, frozenset[str]] = {}
    for i in graph.order if sizes.derived else ():
        outputs = [Edge(i, port) for port in range(len(graph.output_types[i]))]
        made, known = (_symbols(graph, sizes, tensors) for tensors in (outputs, graph.data[i]))
        told[i] = _told(graph, sizes, told, i)
        if made & sizes.derived - known - told[i]:
            yield i
        if made or any(graph.dtype(tensor) not in ("int32", "int64") for tensor in outputs):
            told[i] = frozenset()


def _told(
    graph: GraphIndex, sizes: Sizes, told: Mapping[int, frozenset[str]], i: int
) -> frozenset[str]:
    """Of which symbols the shapes speak that node i is computed of, its inputs being `told` of."""
    if graph.nodes[i].op in OF_SHAPES:
        return _symbols(graph, sizes, graph.data[i])
    return frozenset[str]().union(*(told.get(t.node, frozenset()) for t in graph.data[i]))


def _symbols(graph: GraphIndex, sizes: Sizes, tensors: Iterable[Edge]) -> frozenset[str]:
    known = (sizes.dim(size) for tensor in tensors for size in graph.shape(tensor) or ())
    return frozenset(name for dim in known if dim is not None for name in dims.symbols_of(dim))


@dataclass(frozen=True)
class SizeValues:
    """Clones that are `unfit`: a value of them is no polynomial of sizes, nor a quotient of two, or
    is one where sizes are neither small nor large alone; without those that are made of others. And
    by other clones, polynomials of which one is positive where the clone is `otherwise`."""

    unfit: frozenset[int] = frozenset()
    otherwise: Mapping[int, tuple[Dim, ...]] = field(default_factory=dict)


def of_sizes(graph: GraphIndex, parts: Sequence[Part], sizes: Sizes) -> SizeValues:
    """What is to be known of the values that `parts` would have copied."""
    clones = _of_sizes(graph, parts)
    if not clones:
        return SizeValues()
    near = sizes.points or points(sizes.symbols)
    # What others are derived of goes with them at the points that are known alone.
    free = {name: size for name, size in near[0].items() if name not in sizes.derived}
    alone = [name for name in free if name not in sizes.bounded]
    small = {name: SMALLEST + k for k, name in enumerate(free)}
    further = [*sizes.large, *({**free, name: LARGE[-1]} for name in alone), {**free, **small}]
    least = [{name: size} for size in (1, 0) for name in free]
    if len(free) > 1:
        least.append(dict.fromkeys(free, 1))
    few = [{**free, **sizes_} for sizes_ in least]
    made = iter(_Evaluator(graph, parts, sizes, clones).values([*near, *further, *few]))
    seen = list(itertools.islice(made, len(near)))
    beyond = list(zip(further, itertools.islice(made, len(further)), strict=True))
    smallest = list(zip(least, few, made, strict=True))
    unfit: set[int] = set()
    made_of: set[int] = set()
    broadcasts: set[int] = set()
    otherwise: dict[int, tuple[Dim, ...]] = {}
    told: dict[int, frozenset[str]] = {}
    held = _held(graph, parts, sizes, clones)
    for i in graph.order:
        if i in clones:
            told[i] = _told(graph, sizes, told, i)
        if i not in clones or graph.nodes[i].op in OF_SHAPES:
            continue
        own = [
            {name: size for name, size in at.items() if name in told[i] | held[i]} for at in near
        ]
        if any(tensor.node in unfit | made_of for tensor in graph.data[i]):
            made_of.add(i)  # no clone any more
            continue
        if graph.nodes[i].op in BROADCASTS or any(t.node in broadcasts for t in graph.data[i]):
            broadcasts.add(i)
        for port in range(len(graph.output_types[i])):
            edge = Edge(i, port)
            arrays = [values[edge] for values in seen if edge in values]
            others = [(point, values[edge]) for point, values in beyond if edge in values]
            if len(arrays) < len(near):
                continue
            try:
                if not _fits(arrays, own, others):
                    unfit.add(i)
                    break
            except _Overflow as overflow:
                beyond = [one for one in beyond if one[0] != overflow.point]
            there = [
                (least, at, values[edge])
                for least, at, values in (() if i in broadcasts else smallest)
                if edge in values
            ]
            found = _otherwise(arrays, own, there, partial(_reaches, graph, parts, sizes, i))
            if found and all(np.array_equal(array, arrays[0]) for array in arrays):
                unfit.add(i)  # no kernel would know the size that it depends on
                break
            otherwise[i] = otherwise.get(i, ()) + found
    return SizeValues(frozenset(unfit), {i: found for i, found in otherwise.items() if found})


def _held(
    graph: GraphIndex, parts: Sequence[Part], sizes: Sizes, clones: AbstractSet[int]
) -> Mapping[int, frozenset[str]]:
    """By clone, the symbols that all members have which its value goes to: a region of any of them
    knows these."""
    held: dict[int, frozenset[str]] = {}
    for i in reversed(graph.order):
        if i not in clones:
            continue
        each: list[frozenset[str]] = []
        for consumer in {consumer for consumer, position in graph.consumers[i] if position >= 0}:
            if consumer in held:
                each.append(held[consumer])
            elif parts[consumer] is Part.MEMBER:
                made = (Edge(consumer, port) for port in range(len(graph.output_types[consumer])))
                each.append(_symbols(graph, sizes, (*graph.data[consumer], *made)))
        held[i] = frozenset[str]().union(*each[:1]).intersection(*each)
    return held


def _reaches(
    graph: GraphIndex, parts: Sequence[Part], sizes: Sizes, clone: int, point: Point
) -> bool:
    """Whether a member makes any element of it at `point`: by how many a mean divides its gradient
    is another number where there is none, and divides nothing."""
    stack, seen = [clone], {clone}
    while stack:
        for consumer, _ in graph.consumers[stack.pop()]:
            if consumer in seen:
                continue
            seen.add(consumer)
            if parts[consumer] is Part.CLONE:
                stack.append(consumer)
            elif parts[consumer] is Part.MEMBER:
                outputs = range(len(graph.output_types[consumer]))
                shapes = [graph.shape(Edge(consumer, port)) for port in outputs]
                if not all(_is_empty(sizes, shape, point) for shape in shapes):
                    return True
    return False


def _is_empty(sizes: Sizes, shape: Sequence[int] | None, point: Point) -> bool:
    known = [sizes.dim(size) for size in shape or ()]
    return any(
        dims.evaluate(dim, point) == 0
        for dim in known
        if dim is not None and dims.symbols_of(dim) <= point.keys()
    )


def _otherwise(
    seen: Sequence[np.ndarray[Any, Any]],
    near: Sequence[Point],
    smallest: Sequence[tuple[Point, Point, np.ndarray[Any, Any]]],
    reaches: Callable[[Point], bool],
) -> tuple[Dim, ...]:
    """Polynomials of which one is positive where sizes are so small that the value is something
    else, and `reaches` a member. `smallest`: sizes of 1 or 0, the point that has them, and the
    value there."""
    found: list[Dim] = []
    for sizes, point, value in smallest:
        told = [dims.evaluate(dim, point) > 0 for dim in found]
        try:
            if any(told) or _fits(seen, near, [(point, value)]) or not reaches(point):
                continue
        except _Overflow:
            continue
        depends = [name for name in sizes if len(sizes) == 1 or _depends(seen, near, name)]
        total: Dim = 1
        for name in depends:
            total = total + (sizes[name] - dims.symbol(name))
        found.append(total)
    return tuple(found)


def _depends(seen: Sequence[np.ndarray[Any, Any]], near: Sequence[Point], name: str) -> bool:
    """Whether the value is another one where `name` is the only symbol of another size."""
    base, own = near[0], seen[0]
    return any(
        not np.array_equal(array, own)
        for point, array in zip(near, seen, strict=True)
        if {other for other in base if point[other] != base[other]} == {name}
    )


class _Overflow(Exception):
    """An integer is none of its type at `point`: what is made of it says nothing there."""

    def __init__(self, point: Point) -> None:
        super().__init__(point)
        self.point = point


def _of_sizes(graph: GraphIndex, parts: Sequence[Part]) -> set[int]:
    """Clones whose values depend on unknown sizes."""
    found: set[int] = set()
    for i in graph.order:
        if parts[i] is not Part.CLONE:
            continue
        if graph.nodes[i].op in OF_SHAPES:
            if any(size < 0 for tensor in graph.data[i] for size in graph.shape(tensor) or ()):
                found.add(i)
        elif any(tensor.node in found for tensor in graph.data[i]):
            found.add(i)
    return found


class _Evaluator:
    """TensorFlow's values of clones, from the sizes that they are made of: of few elements each,
    whatever these are."""

    def __init__(
        self, graph: GraphIndex, parts: Sequence[Part], sizes: Sizes, of_sizes: set[int]
    ) -> None:
        self.graph, self.sizes = graph, sizes
        needed = set(of_sizes)
        for i in reversed(graph.order):
            if i in needed and graph.nodes[i].op not in OF_SHAPES:
                sources = {tensor.node for tensor in graph.data[i]}
                needed |= {
                    n for n in sources if parts[n] is Part.CLONE or graph.nodes[n].op == "Const"
                }
        self.shapes: dict[int, None] = {}
        """Operations that say a shape: what they say is handed in."""
        self.body = graph_pb2.GraphDef()
        self.body.versions.CopyFrom(graph.graph.versions)
        added: set[int] = set()
        for i in graph.order:
            node = graph.nodes[i]
            if node.op in OF_SHAPES and i in of_sizes:
                self.shapes[i] = None
                added.add(i)
                for port, kind in enumerate(graph.output_types[i]):
                    handed = self.body.node.add(name=f"n{i}_{port}", op="Placeholder")
                    handed.attr["dtype"].type = tf.as_dtype(kind).as_datatype_enum
            elif (
                i in needed
                and self._is_small(i)
                and all(tensor.node in added for tensor in graph.data[i])
            ):
                added.add(i)
                copy = self.body.node.add(name=f"n{i}", op=node.op)
                for name, value in node.attr.items():
                    if name not in ("_output_shapes", "_class"):
                        copy.attr[name].CopyFrom(value)
                copy.input.extend(map(self._name, graph.data[i]))
        self.wanted = [
            Edge(i, port)
            for i in graph.order
            if i in added & of_sizes and i not in self.shapes
            for port in range(len(graph.output_types[i]))
        ]

    def _is_small(self, i: int) -> bool:
        outputs = [Edge(i, port) for port in range(len(self.graph.output_types[i]))]
        shapes = [self.graph.shape(edge) for edge in outputs]
        known = all(shape is not None and min(shape, default=0) >= 0 for shape in shapes)
        return known and all(self.graph.static_size(edge) <= CLONE_ELEMENTS for edge in outputs)

    def _name(self, tensor: Edge) -> str:
        if tensor.node in self.shapes:
            return f"n{tensor.node}_{tensor.port}:0"
        return f"n{tensor.node}:{tensor.port}"

    def values(self, points: Sequence[Point]) -> list[Values]:
        """At each of these, where it tells."""
        config = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
        with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
            try:
                tf.graph_util.import_graph_def(self.body, name="")
            except ValueError:
                return [{} for _ in points]
            return [self._values(session, point) for point in points]

    def _values(self, session: Any, point: Point) -> Values:
        handed: dict[str, np.ndarray[Any, Any]] = {}
        untold: set[int] = set()
        for i in self.shapes:
            for port, kind in enumerate(self.graph.output_types[i]):
                value = self._said(i, port, point)
                if value is None:
                    untold.add(i)
                    value = self._said(i, port, {})
                name = f"n{i}_{port}:0"
                handed[name] = np.asarray(value, tf.as_dtype(kind).as_numpy_dtype)
        found: dict[Edge, np.ndarray[Any, Any]] = {}
        for edge, value in self._run(session, handed).items():
            if any(tensor.node in untold for tensor in self.graph.data[edge.node]):
                untold.add(edge.node)
            else:
                found[edge] = value
        return found

    def _run(self, session: Any, handed: Mapping[str, Any]) -> Values:
        """All that is wanted, but for what an operation takes for an error, and what is made of
        that."""
        wanted, failed = self.wanted, set[str]()
        while True:
            try:
                made = session.run([self._name(edge) for edge in wanted], handed)
                return dict(zip(wanted, made, strict=True))
            except tf.errors.OpError as error:
                failed.add("" if error.op is None else error.op.name)
            left: list[Edge] = []
            for edge in wanted:
                names = {f"n{tensor.node}" for tensor in (edge, *self.graph.data[edge.node])}
                if names.isdisjoint(failed):
                    left.append(edge)
                else:
                    failed.add(f"n{edge.node}")
            if len(left) == len(wanted):
                return {}
            wanted = left

    def _said(self, i: int, port: int, point: Point) -> Any:
        """What an operation of shapes says where its symbols are so large; None where nothing tells
        that, or it is no shape, or none of its type. Without any symbols: something."""
        operation, tensor = self.graph.nodes[i].op, self.graph.data[i][port]
        known = [self.sizes.dim(size) for size in self.graph.shape(tensor) or ()]
        if not point:
            shape = [1] * len(known)
        elif any(dim is None or not dims.symbols_of(dim) <= point.keys() for dim in known):
            return None
        else:
            shape = [dims.evaluate(dim, point) for dim in known if dim is not None]
        said = {"Size": math.prod(shape), "Rank": len(shape)}.get(operation, shape)
        largest = np.iinfo(tf.as_dtype(self.graph.output_types[i][port]).as_numpy_dtype).max
        told = min(shape, default=0) >= 0 and max(np.ravel(said), default=0) <= largest
        return said if told else None


def _fits(
    seen: Sequence[np.ndarray[Any, Any]],
    near: Sequence[Point],
    further: Sequence[tuple[Point, np.ndarray[Any, Any]]],
) -> bool:
    """Whether each element is one function of sizes. Of what has more or less elements at other
    sizes, and of large tables, nothing is said here."""
    shapes = {array.shape for array in seen}
    if len(shapes) > 1 or seen[0].size > CLONE_ELEMENTS:
        return True
    others = [(point, array) for point, array in further if array.shape in shapes]
    if len(others) < len(further):
        return False
    flat = [array.reshape(-1) for array in seen]
    for place in range(seen[0].size):
        beside = [(point, array.reshape(-1)[place]) for point, array in others]
        if not _fitted([array[place] for array in flat], near, beside):
            return False
    return True


def _fitted(
    values: Sequence[Any], near: Sequence[Point], further: Sequence[tuple[Point, Any]]
) -> bool:
    if all(value == values[0] for value in (*values, *(value for _, value in further))):
        return True
    kind = np.asarray(values[0]).dtype
    if kind.kind in "iu":
        fit = fit_dim([int(value) for value in values], near)
        if fit is None:
            return False
        for point, value in further:
            if not dims.symbols_of(fit) <= point.keys():
                continue
            if not np.iinfo(kind).min <= dims.evaluate(fit, point) <= np.iinfo(kind).max:
                raise _Overflow(point)
            if dims.evaluate(fit, point) != int(value):
                return False
        return True
    dtype = next((name for name, record in DTYPES.items() if record.numpy == kind), None)
    if kind.kind not in "fV" or dtype is None:
        return False
    ratio = fit_scalar([from_array(np.asarray(value, kind), dtype) for value in values], near)
    if ratio is None:
        return False
    above, below = ratio
    unit = float(np.finfo(kind).eps) if kind.kind == "f" else 2.0**-7
    known = dims.symbols_of(above) | dims.symbols_of(below)
    return all(
        abs(float(v) * dims.evaluate(below, p) - dims.evaluate(above, p))
        <= UNITS * unit * abs(dims.evaluate(above, p))
        for p, v in further
        if known <= p.keys()
    )
