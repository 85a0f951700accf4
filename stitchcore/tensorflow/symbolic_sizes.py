"""Unknown sizes as polynomials of a few symbols.

Grappler numbers unknown dimensions where it cannot prove them equal. Here the dimensions that enter
the graph (iterator elements, arguments, placeholders) are symbols; TensorFlow's own shape inference
runs at several values of them, through loops and lists too (loop_shapes.py), and every other
dimension is fitted to what it says there. What is no polynomial (the length after a convolution
with strides) becomes a symbol too, *derived*: known at those points alone. So does what begins
within the graph (how many values are unique, how many elements an iterator has left). Where
inference refuses sizes that differ, relations among them are found (equal_sizes.py), some of them
assumed: kernels check at run time what they rely on. A size that may be small alone (places in a
table of positions) is *bounded*, and tried where it is. One that fits no relation, and one too
many, stays unknown, and so does what depends on it: the graph is never refused for its sizes.

Inference costs 20 to 30 microseconds a node (2 cores, TensorFlow 2.21). Relations are sought with
at most MOST_NODES / (nodes of the graph) runs, 400 at most and 24 at least; fitting takes 12 runs
at most (another for each number at which a size is cut, and where large sizes are refused up to 6
for each symbol), once again for each symbol that is given up, and 2 more where symbols are derived;
all of it once again for each of at most MOST_ROUNDS where sizes begin within the graph;
MOST_OTHERWISE bounds what is asked beside that in graphs with stacks.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2
from tensorflow.python.framework import op_def_registry

from stitchcore.errors import Reason, Refusal
from stitchcore.hlo.ir import dim as dims
from stitchcore.hlo.ir.dim import Dim
from stitchcore.hlo.symbolic.polynomial_fit import fit_dim
from stitchcore.tensorflow import equal_sizes
from stitchcore.tensorflow.graph import NOMINAL_SIZE, Edge, GraphIndex, index, output_types
from stitchcore.tensorflow.loop_shapes import ELEMENT, POP, POPS, Rewrites, rewrites, written_edge
from stitchcore.tensorflow.op_allowlist import ANY
from stitchcore.tensorflow.shape_function_allowlist import is_side_effect_free

SIZES = (23, 40, 57)
"""Sizes of the first symbol at the points where shapes are inferred and regions lowered; later
symbols differ. With other remainders each, so that a size, that size rounded up and the same
rounded down are three."""

LARGE = (131, 263, 521, 1031, 2053, 4099)
"""Sizes at which it is asked whether what was found holds at larger ones: of a sequence that is cut
at 128 tokens nothing else tells that."""

SMALL = (9, 12, 13, 11)
"""Sizes of symbols that may be small alone: at the base, where one is changed, where all are
together, and once again."""

FACTORS = (9, 65, 513)
"""By how much the sizes of a symbol are larger where something has no or one element at them (the
frames of a short wave): what is computed of so few is another program. They leave the remainders of
8, 64 and 512 as they are."""

JUDGED_SIZE = 32
"""What symbols are where regions are judged and timed, if others are derived of them."""

MOST_SYMBOLS = 8
"""Pairs of monomials are tried for each dimension: their number grows with the sixth power."""

MOST_NODES, MOST_RUNS, LEAST_RUNS = 1_000_000, 400, 24
"""Bounds of the search for relations: nodes inferred in all, and runs of inference."""

MOST_OTHERWISE = 100_000
"""Nodes inferred in all to learn what holds where sizes that are assumed to be equal are not."""

MOST_ROUNDS = 3
"""How often sizes that begin within the graph are looked for: each time past those found before."""

CUT, HANDED = "cut", "handed"
"""What nodes are called that give an output of another the sizes that begin there, or stand for one
that is handed in."""

SYMBOLIC = -1000
"""Rewritten dimensions are SYMBOLIC - k; `Sizes.dims[k]` is the polynomial."""

ROOTS = frozenset({"IteratorGetNext", "_Arg", "Placeholder", "IteratorGetNextSync"})
NEVER_CUT = frozenset({"BroadcastGradientArgs", "ReadVariableOp", "VariableV2", "Merge"})
"""Operations whose unknown sizes are of no use: of few integers, or of a variable that changes its
shape; and a loop's variable that changes its own."""
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


@dataclass(frozen=True)
class Sizes:
    """`graph` is the request's graph with fitted dimensions; `symbols` in order of appearance.

    Symbols in `assumed` stand for sizes of which TensorFlow does not itself demand that they go
    together; `supposed` are tensors that have a dimension which is a number on that account, and of
    these `numbered` such as have one by a size that is itself taken for a number. What relies on
    either must check at run time the shapes of all tensors from which it knows them.
    Symbols in `derived`, assumed too, have the sizes that `points` bind beside the others', and at
    `large`, where all that was fitted at `points` holds too, and at
    `judged` and `nominal` where those are JUDGED_SIZE and NOMINAL_SIZE, times their factor in
    `enlarged`, or small if they are `bounded`. `refusals` tell which sizes are left unknown, and
    why. `otherwise` are the shapes of all tensors where sizes that are assumed to be equal are not,
    in each way that inference takes; asked for in graphs with stacks alone (recomputed_shapes.py),
    None where that cannot be told.
    `unrelated` are the symbols in `assumed` that rest on no equality: derived ones, those of sizes
    that begin within the graph, and of tables.
    """

    graph: Any
    symbols: tuple[str, ...]
    dims: tuple[Dim, ...]
    assumed: frozenset[str] = frozenset()
    supposed: frozenset[Tensor] = frozenset()
    refusals: tuple[Refusal, ...] = ()
    derived: frozenset[str] = frozenset()
    points: tuple[Mapping[str, int], ...] = ()
    large: tuple[Mapping[str, int], ...] = ()
    judged: Mapping[str, int] = field(default_factory=dict)
    nominal: Mapping[str, int] = field(default_factory=dict)
    enlarged: Mapping[str, int] = field(default_factory=dict)
    otherwise: tuple[Shapes, ...] | None = None
    unrelated: frozenset[str] = frozenset()
    numbered: frozenset[Tensor] = frozenset()
    bounded: frozenset[str] = frozenset()

    def dim(self, size: int) -> Dim | None:
        """The dimension behind an integer of `_output_shapes`, None when it is not known."""
        if size >= 0:
            return size
        number = SYMBOLIC - size
        return self.dims[number] if 0 <= number < len(self.dims) else None


def points(
    symbols: tuple[str, ...],
    factors: Mapping[str, int] | None = None,
    bounded: AbstractSet[str] = frozenset(),
) -> tuple[dict[str, int], ...]:
    """A base, each symbol changed, and all changed together (the check); sizes of symbols times
    their factors."""
    if not symbols:
        return ({},)
    small = [dict.fromkeys(bounded, size) for size in SMALL]
    base = {name: SIZES[0] + 6 * k for k, name in enumerate(symbols)} | small[0]
    bindings = [base]
    for k, name in enumerate(symbols):
        bindings.append(base | {name: SMALL[1] if name in bounded else SIZES[1] + 10 * k})
    bindings.append({name: SIZES[2] + 14 * k for k, name in enumerate(symbols)} | small[2])
    if len(symbols) > 1:
        another = {name: 2 * SIZES[2] + 22 * k for k, name in enumerate(symbols)}
        bindings.append(another | small[3])
    return tuple(_times(point, factors or {}) for point in bindings)


def _times(point: Mapping[str, int], factors: Mapping[str, int]) -> dict[str, int]:
    return {name: size * factors.get(name, 1) for name, size in point.items()}


def resolve(graph: Any) -> Sizes:
    """Fit every unknown dimension of `graph` that can be."""
    if not any(_is_unknown(shape) for node in graph.node for shape in _shapes(node)):
        return Sizes(graph, (), ())
    entering, answers = _root_names(graph), _Answers()
    inference, inferred = _consistent(graph, entering, answers)
    for _ in range(MOST_ROUNDS):
        further = _beginning(inference, inferred)
        if not further:
            break
        cut, at_points = _consistent(graph, {**inference.roots, **further}, answers)
        if not all(at_points.shapes):
            break
        inference, inferred = cut, at_points
    begun = frozenset(inferred.constraints.symbols) - frozenset(entering.values())
    inferred, derived = _derived(graph, inferred)
    judged, nominal = (
        _sized(inference, inferred, derived, size) for size in (JUDGED_SIZE, NOMINAL_SIZE)
    )
    result = graph_pb2.GraphDef()
    result.CopyFrom(graph)
    table: dict[Dim, int] = {}
    fits: dict[tuple[int, ...], Dim | None] = {}
    resolved: dict[Tensor, tuple[int, ...]] = {}
    for node in result.node:
        for port, shape in enumerate(node.attr["_output_shapes"].list.shape):
            seen = [shapes.get((node.name, port)) for shapes in inferred.shapes]
            if _rewrite(shape, seen, inferred.points, table, fits):
                resolved[node.name, port] = tuple(dim.size for dim in shape.dim)
    found = {(graph.node[i].name, 0) for i in inference.tables}
    unrelated = begun.union(derived, _symbols_of(found, result, table))
    stacks = any(node.op in POPS for node in graph.node)
    return Sizes(
        result,
        (*inferred.constraints.symbols, *derived),
        tuple(table),
        inferred.constraints.assumed | unrelated,
        _supposed(inference, inferred.constraints, resolved),
        tuple(_left_unknown(entering, inferred, inference.refused)),
        frozenset(derived),
        inferred.points[: inferred.near],
        inferred.points[inferred.near :],
        judged,
        nominal,
        inferred.factors,
        _otherwise(inference, inferred.constraints) if stacks else None,
        unrelated,
        _numbered(inference, inferred.constraints, resolved),
        inferred.constraints.bounded,
    )


def _shapes(node: Any) -> Sequence[Any]:
    shapes: Sequence[Any] = node.attr["_output_shapes"].list.shape
    return shapes


def _is_unknown(shape: Any) -> bool:
    return bool(shape.unknown_rank) or any(dim.size < 0 for dim in shape.dim)


def _symbols_of(
    tensors: AbstractSet[Tensor], graph: Any, table: Mapping[Dim, int]
) -> Iterator[str]:
    """The symbols that sizes of `tensors` depend on."""
    known = list(table)
    for node in graph.node:
        for port, shape in enumerate(_shapes(node)):
            if (node.name, port) in tensors:
                numbers = (SYMBOLIC - dim.size for dim in shape.dim)
                for number in numbers:
                    if 0 <= number < len(known):
                        yield from dims.symbols_of(known[number])


def _beginning(inference: _Inference, inferred: _Inferred) -> Roots:
    """Names for sizes that begin within the graph: unknown though the operation's inputs are known
    (how many values are unique, where a mask is true), or the shape of what is not inferred."""
    shapes, graph = inferred.shapes[0], inference.rewritten.graph
    number = len(inference.names)
    names: dict[object, str] = {}
    roots: dict[Place, str] = {}

    def is_known(edge: Edge) -> bool:
        shape = shapes.get((graph.nodes[edge.node].name, edge.port))
        return graph.dtype(edge) not in ANY or (shape is not None and None not in shape)

    for i in graph.order:
        node = graph.nodes[i]
        if node.op in NEVER_CUT or inference.rewritten.covers(i):
            continue
        if not _replaced(node) and not all(map(is_known, graph.data[i])):
            continue
        places_in_lists = _places_in_lists(node)
        for port, declared in enumerate(_shapes(node)):
            shape = shapes.get((node.name, port))
            if shape is None or graph.dtype(Edge(i, port)) not in ANY:
                continue
            for axis, size in enumerate(shape):
                place = node.name, port, axis
                if size is not None or place in inference.roots or len(names) >= MOST_SYMBOLS:
                    continue
                numbered = axis < len(declared.dim) and declared.dim[axis].size < -1
                identity: object = place
                if numbered:
                    identity = declared.dim[axis].size, places_in_lists.get(port, 0)
                roots[place] = names.setdefault(identity, f"s{number + len(names)}")
    return roots


def _places_in_lists(node: Any) -> dict[int, int]:
    """Each output's place among those of one name. Shape functions give all tensors of a list the
    same unknown size (DynamicPartition, SplitV), Grappler takes it for one, and it is none."""
    definition = op_def_registry.get(node.op)
    places: list[int] = []
    for argument in definition.output_arg if definition is not None else ():
        if argument.type_list_attr:
            places += [0] * len(node.attr[argument.type_list_attr].list.type)
        else:
            places += range(node.attr[argument.number_attr].i if argument.number_attr else 1)
    return dict(enumerate(places))


Sources = Mapping[str, Place]
"""Derived symbols, each with a node, an output and a dimension of it that is as large."""


def _derived(graph: Any, inferred: _Inferred) -> tuple[_Inferred, Sources]:
    """Points that bind a symbol for each unknown dimension that is no polynomial of others, the
    smallest first: the larger ones may be polynomials of these."""
    places: dict[tuple[int, ...], Place] = {}
    for node in graph.node:
        for port, shape in enumerate(node.attr["_output_shapes"].list.shape):
            seen = [shapes.get((node.name, port)) for shapes in inferred.shapes]
            for axis, dim in enumerate(shape.dim):
                values = _values(seen, axis)
                if dim.size < 0 and values is not None and all(values):
                    places.setdefault(values, (node.name, port, axis))
    derived: dict[str, Place] = {}
    while len(inferred.points[0]) < MOST_SYMBOLS:
        places = {v: p for v, p in places.items() if fit_dim(v, inferred.points) is None}
        if not places:
            break
        sizes = min(places)
        name = f"derived{len(derived)}"
        derived[name] = places.pop(sizes)
        points_ = ({**p, name: size} for p, size in zip(inferred.points, sizes, strict=True))
        inferred = replace(inferred, points=tuple(points_))
    return inferred, derived


def _sized(
    inference: _Inference, inferred: _Inferred, derived: Sources, size: int
) -> Mapping[str, int]:
    """What all symbols are where those that are not derived are `size`, times their factor; nothing
    where there are neither."""
    bounded = inferred.constraints.bounded
    if not derived and not inferred.factors and not bounded:
        return {}
    point = _times(dict.fromkeys(inferred.constraints.symbols, size), inferred.factors)
    point |= dict.fromkeys(bounded, SMALL[1])
    shapes = inference.shapes(inferred.constraints.sizes(point)) or {}
    for name, (node, port, axis) in derived.items():
        value = _values([shapes.get((node, port))], axis)
        if value is None:
            return inferred.points[0]
        point[name] = value[0]
    return point


_Answers = dict[tuple[frozenset[int], frozenset[tuple[str, int]]], bool]
"""Whether inference takes such sizes, with the loops and lists of these nodes rewritten: also where
more sizes are looked for, which are unknown then."""


def _consistent(graph: Any, roots: Roots, answers: _Answers) -> tuple[_Inference, _Inferred]:
    """Shapes at every point, with as much of the loops and lists rewritten as they bear out."""
    rewritten = rewrites(index(graph))
    while True:
        inference = _Inference(graph, roots, rewritten, answers=answers)
        inferred = _inferred(inference)
        wrong = {i for shapes in inferred.shapes for i in rewritten.wrong(shapes)}
        if not any(inferred.shapes):
            wrong = rewritten.all()
        if not wrong:
            return inference, inferred
        rewritten = rewritten.without(wrong)


@dataclass(frozen=True)
class _Inferred:
    """Shapes of all tensors at each of `points`, which bind the symbols of `constraints`; `dropped`
    are names that inference accepts as they are, too many to be fitted. The sizes of symbols in
    `factors` are so many times larger than others. The first `near` points are those at which
    regions are lowered."""

    constraints: equal_sizes.SizeConstraints
    points: tuple[dict[str, int], ...]
    shapes: list[Shapes]
    dropped: frozenset[str] = frozenset()
    factors: Mapping[str, int] = field(default_factory=dict)
    near: int = 0


def _inferred(inference: _Inference) -> _Inferred:
    """With each name a symbol of its own; where that is refused, with the relations that hold."""
    names = inference.names
    constraints = equal_sizes.SizeConstraints(
        {name: dims.symbol(name) for name in names}, frozenset(), {}
    )
    inferred = _at_points(inference, constraints, names) if len(names) <= MOST_SYMBOLS else None
    if inferred is not None:
        return inferred
    most = min(max(MOST_NODES // inference.nodes, LEAST_RUNS), MOST_RUNS)
    constraints = equal_sizes.infer(names, inference.accepts, most, _numbers(inference.graph))
    used = _uses(inference, constraints)
    dropped = sorted(constraints.symbols, key=lambda symbol: -used[symbol])[MOST_SYMBOLS:]
    known = frozenset(constraints.dims)
    for symbol in dropped:
        constraints = constraints.without(symbol)
    too_many = known - frozenset(constraints.dims)
    while True:
        inferred = _at_points(inference, constraints, constraints.symbols)
        if inferred is not None:
            return replace(inferred, dropped=too_many)
        refused = frozenset({_refused_one(inference, constraints)})
        if refused <= constraints.bounded:
            constraints = constraints.without(*refused)
        else:
            constraints = replace(constraints, bounded=constraints.bounded | refused)


def _numbers(graph: Any) -> list[int]:
    """Known sizes of `graph`, those that most dimensions have first; without 1, which meets any
    other: that inference takes it says nothing."""
    shapes = (shape for node in graph.node for shape in _shapes(node))
    count = Counter(dim.size for shape in shapes for dim in shape.dim if dim.size > 1)
    return [size for size, _ in count.most_common()]


def _at_points(
    inference: _Inference, constraints: equal_sizes.SizeConstraints, symbols: tuple[str, ...]
) -> _Inferred | None:
    """The shapes at every point, None where one of them is refused."""
    inferred = _with_factors(inference, constraints, symbols, {})
    if inferred is None:
        return None
    return _with_large(inference, _with_longer(inference, inferred))


def _with_longer(inference: _Inference, inferred: _Inferred) -> _Inferred:
    """At larger sizes, where something has no element at these, or one."""
    constraints, symbols = inferred.constraints, tuple(inferred.points[0])
    if not (short := _short(inference, inferred.shapes[0])):
        return inferred

    def short_at(factors: Mapping[str, int]) -> set[Place] | None:
        larger = _times(inferred.points[0], factors)
        shapes = inference.shapes(constraints.sizes(larger))
        return None if shapes is None else _short(inference, shapes)

    to_blame = {}
    for symbol in symbols:
        left = short_at({symbol: FACTORS[-1]})
        if left is not None and len(left) < len(short):
            to_blame[symbol] = FACTORS[-1]
    always = short_at(to_blame) or set()
    for factor in FACTORS if to_blame else ():
        factors = dict.fromkeys(to_blame, factor)
        enlarged = _with_factors(inference, constraints, symbols, factors)
        if enlarged is None:
            break
        inferred = enlarged
        if all(_short(inference, shapes) <= always for shapes in inferred.shapes):
            break
    return inferred


def _with_factors(
    inference: _Inference,
    constraints: equal_sizes.SizeConstraints,
    symbols: tuple[str, ...],
    factors: Mapping[str, int],
) -> _Inferred | None:
    """The shapes at every point, the sizes of some symbols times their factors; None where one of
    them is refused."""
    bindings = points(symbols, factors, constraints.bounded)
    shapes_at = []
    for point in bindings:
        shapes = inference.shapes(constraints.sizes(point))
        if shapes is None and symbols:
            return None
        shapes_at.append(shapes or {})  # an import that always fails: none is fitted
    at_base = replace(constraints, point=bindings[0])
    return _Inferred(at_base, bindings, shapes_at, factors=factors, near=len(bindings))


def _with_large(inference: _Inference, inferred: _Inferred) -> _Inferred:
    """With a point of large sizes, as far as inference takes them, and with points between where
    what fits at all others does not fit there: a size that is cut at some number. These are of
    those where regions are lowered."""
    constraints, base = inferred.constraints, inferred.points[0]
    free = [name for name in base if name not in constraints.bounded]

    def at(largest: Mapping[str, int]) -> tuple[dict[str, int], Shapes | None]:
        sizes = {name: size + 6 * free.index(name) for name, size in largest.items()}
        point = base | _times(sizes, inferred.factors)
        return point, inference.shapes(constraints.sizes(point))

    largest = dict.fromkeys(free, LARGE[-1])
    large, shapes = at(largest)
    if shapes is None:
        taken = ((s, (n for n in LARGE[::-1] if at({s: n})[1] is not None)) for s in free)
        largest = {symbol: size for symbol, sizes in taken for size in itertools.islice(sizes, 1)}
        large, shapes = at(largest)
    if shapes is None or not largest:
        return inferred
    while _is_cut(inference.graph, inferred, large, shapes):
        for size in LARGE:
            point, between = at({name: min(size, most) for name, most in largest.items()})
            if between is not None and _is_cut(inference.graph, inferred, point, between):
                break
        else:
            return inferred
        inferred = replace(
            inferred,
            points=(*inferred.points, point),
            shapes=[*inferred.shapes, between],
            near=inferred.near + 1,
        )
        if point == large:
            return inferred
    return replace(inferred, points=(*inferred.points, large), shapes=[*inferred.shapes, shapes])


def _is_cut(graph: Any, inferred: _Inferred, point: Mapping[str, int], shapes: Shapes) -> bool:
    """Whether a size that fits at all points so far is another than that at `point`."""
    known: dict[tuple[int, ...], set[int]] = {}
    for node in graph.node:
        for port, shape in enumerate(_shapes(node)):
            seen = [each.get((node.name, port)) for each in inferred.shapes]
            for axis, dim in enumerate(shape.dim):
                values = _values(seen, axis) if dim.size < 0 else None
                found = _values([shapes.get((node.name, port))], axis)
                if values is not None and found is not None and all(values):
                    known.setdefault(values, set()).add(found[0])
    fits = ((fit_dim(values, inferred.points), sizes) for values, sizes in known.items())
    return any(
        len(sizes) > 1 or (fit is not None and dims.evaluate(fit, point) not in sizes)
        for fit, sizes in fits
    )


def _short(inference: _Inference, shapes: Shapes) -> set[Place]:
    """Where a size that the graph does not know is 0 or 1."""
    found = set()
    for node in inference.graph.node:
        for port, declared in enumerate(_shapes(node)):
            sizes = shapes.get((node.name, port)) or ()
            known = [dim.size >= 0 for dim in declared.dim] or [False] * len(sizes)
            for axis, (size, told) in enumerate(zip(sizes, known, strict=False)):
                if size is not None and size <= 1 and not told:
                    found.add((node.name, port, axis))
    return found


def _refused_one(inference: _Inference, constraints: equal_sizes.SizeConstraints) -> str:
    """A symbol to take for a small one, or to give up, where the sizes of some point are refused,
    and those of the search were not: one that is refused alone, else the last."""
    tried = points(constraints.symbols, bounded=constraints.bounded)
    for symbol in constraints.symbols:
        largest = max(point[symbol] for point in tried)
        if not inference.accepts(constraints.sizes({**constraints.point, symbol: largest})):
            return symbol
    return constraints.symbols[-1]


def _uses(inference: _Inference, constraints: equal_sizes.SizeConstraints) -> dict[str, int]:
    """How many unknown dimensions of the graph are multiples of each symbol, whose size at
    `constraints.point` divides no other's, or of a size that depends on it."""
    used = dict.fromkeys(constraints.symbols, 0)
    if len(used) <= MOST_SYMBOLS:
        return used
    known = constraints.sizes(constraints.point)
    of_symbol = {symbol: {prime} for symbol, prime in constraints.point.items()}
    for name, depending in known.items():
        for symbol in dims.symbols_of(constraints.dims[name]):
            of_symbol[symbol].add(depending)
    shapes = inference.shapes(known) or {}
    for node in inference.graph.node:
        for port, shape in enumerate(node.attr["_output_shapes"].list.shape):
            inferred = shapes.get((node.name, port)) or ()
            for dim, size in zip(shape.dim, inferred, strict=False):
                if dim.size < 0 and size:
                    for symbol, own in of_symbol.items():
                        used[symbol] += any(size % one == 0 for one in own)
    return used


def _supposed(
    inference: _Inference,
    constraints: equal_sizes.SizeConstraints,
    resolved: Mapping[Tensor, tuple[int, ...]],
) -> frozenset[Tensor]:
    """Of tensors with dimensions that became numbers those that have other ones, or none, once
    what is assumed is left open."""
    proven = constraints.proven()
    if proven == constraints.sizes(constraints.point) and not inference.tables:
        return frozenset()
    if inference.tables:
        inference = _Inference(inference.graph, inference.roots, inference.rewritten, tables=False)
    return _different(resolved, inference.shapes(proven) or {})


def _numbered(
    inference: _Inference,
    constraints: equal_sizes.SizeConstraints,
    resolved: Mapping[Tensor, tuple[int, ...]],
) -> frozenset[Tensor]:
    """The same once sizes that are taken for numbers are left open."""
    sizes = constraints.sizes(constraints.point)
    others = {n: size for n, size in sizes.items() if not isinstance(constraints.dims[n], int)}
    if len(others) == len(sizes):
        return frozenset()
    return _different(resolved, inference.shapes(others) or {})


def _different(resolved: Mapping[Tensor, tuple[int, ...]], shapes: Shapes) -> frozenset[Tensor]:
    """Tensors that have not the same numbers by `shapes`."""

    def differs(tensor: Tensor, sizes: tuple[int, ...]) -> bool:
        inferred = shapes.get(tensor)
        return inferred is None or any(
            size >= 0 and size != other for size, other in zip(sizes, inferred, strict=False)
        )

    return frozenset(tensor for tensor, sizes in resolved.items() if differs(tensor, sizes))


def _otherwise(
    inference: _Inference, constraints: equal_sizes.SizeConstraints
) -> tuple[Shapes, ...] | None:
    """The shapes where some of the sizes that are assumed to be equal are 1, and broadcast against
    the others: any of those of one symbol or number, as far as inference takes it. None where it is
    something else that is assumed, or too many are."""
    equal: defaultdict[Dim, list[str]] = defaultdict(list)
    assumed = {dims.symbol(symbol) for symbol in constraints.assumed}
    for name, dim in constraints.dims.items():
        if isinstance(dim, int) or dim in assumed:
            equal[dim].append(name)
        elif not constraints.assumed.isdisjoint(dims.symbols_of(dim)):
            return None
    runs = sum(2 ** len(names) - 1 for names in equal.values())
    if runs * inference.nodes > MOST_OTHERWISE:
        return None
    sizes = constraints.sizes(constraints.point)
    found = []
    for ones in itertools.chain.from_iterable(map(_subsets, equal.values())):
        while True:
            shapes = inference.shapes({**sizes, **dict.fromkeys(ones, 1)})
            wrong = inference.rewritten.wrong(shapes) if shapes is not None else set()
            if not wrong:
                break
            # A loop's variable changes its shape then: from here on it is unknown.
            left = inference.rewritten.without(wrong)
            inference = _Inference(inference.graph, inference.roots, left)
        if shapes is not None:
            found.append(shapes)
    return tuple(found)


def _subsets(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """But for the empty one."""
    for count in range(1, len(names) + 1):
        yield from itertools.combinations(names, count)


def _left_unknown(roots: Roots, inferred: _Inferred, error: str) -> Iterator[Refusal]:
    reported: set[str] = set()
    for (node, _, axis), name in roots.items():
        if name in inferred.constraints.dims or name in reported:
            continue
        reported.add(name)
        if name in inferred.dropped:
            detail = f"size {axis}: more than {MOST_SYMBOLS} independent unknown sizes"
            yield Refusal(node, Reason.STEP_LIMIT, detail)
        else:
            detail = f"size {axis} depends on others in a way that was not found ({error})"
            yield Refusal(node, Reason.DOES_NOT_UNIFY, detail)


def _rewrite(
    shape: Any,
    inferred: list[tuple[int | None, ...] | None],
    bindings: tuple[dict[str, int], ...],
    table: dict[Dim, int],
    fits: dict[tuple[int, ...], Dim | None],
) -> bool:
    """Fit the unknown dimensions of one tensor; whether some became a number. Grappler's own
    numbers of those that remain go: nothing stands for them."""
    for dim in shape.dim:
        if dim.size < 0:
            dim.size = -1
    known = [sizes for sizes in inferred if sizes is not None]
    if len(known) != len(inferred) or len({len(sizes) for sizes in known}) != 1:
        return False
    if shape.unknown_rank:
        if any(size is None for sizes in known for size in sizes):
            return False
        shape.unknown_rank = False
        del shape.dim[:]
        for _ in known[0]:
            shape.dim.add(size=-1)
    if len(shape.dim) != len(known[0]):
        return False  # the graph claims another rank than its operations give
    resolved = False
    for axis, dim in enumerate(shape.dim):
        if dim.size >= 0:
            continue
        values = _values(inferred, axis)
        if values is None or not any(values):  # nothing is known of what is always empty
            continue
        if values not in fits:
            fits[values] = fit_dim(values, bindings)
        fitted = fits[values]
        if isinstance(fitted, int):
            dim.size = fitted
            resolved = True
        elif fitted is not None:
            dim.size = SYMBOLIC - table.setdefault(fitted, len(table))
    return resolved


def _values(seen: Sequence[Shape], axis: int) -> tuple[int, ...] | None:
    """The sizes that a dimension has at each point; None where they are not all known."""
    ranks = {None if sizes is None else len(sizes) for sizes in seen}
    if None in ranks or len(ranks) != 1 or axis >= min(r for r in ranks if r is not None):
        return None
    values = tuple(size for sizes in seen if sizes and (size := sizes[axis]) is not None)
    return values if len(values) == len(seen) else None


def _root_names(graph: Any) -> dict[Place, str]:
    """Names of the unknown dimensions that enter; one name where Grappler says they are equal."""
    names: dict[object, str] = {}
    roots: dict[Place, str] = {}
    for node in graph.node:
        if node.op not in ROOTS:
            continue
        for port, shape in enumerate(node.attr["_output_shapes"].list.shape):
            for axis, dim in enumerate(shape.dim):
                if dim.size >= 0 or shape.unknown_rank:
                    continue
                identity: object = (node.name, port, axis) if dim.size == -1 else dim.size
                roots[node.name, port, axis] = names.setdefault(identity, f"s{len(names)}")
    return roots


class _Inference:
    """TensorFlow's shape inference over one graph, for sizes of its roots. Nodes get names of our
    own: Grappler gives some that an import refuses."""

    def __init__(
        self,
        graph: Any,
        roots: Roots,
        rewritten: Rewrites,
        tables: bool = True,
        answers: _Answers | None = None,
    ) -> None:
        self.graph, self.roots, self.rewritten = graph, roots, rewritten
        self.nodes = max(len(graph.node), 1)
        self.names = tuple(dict.fromkeys(roots.values()))
        self.refused = ""
        self._answers: _Answers = {} if answers is None else answers
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
            if not rewritten.covers(number) and _replaced(node) and number not in self.tables:
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
                self._declared[node.name, port] = _shapes(node)[port]
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
        for operation in target.get_operations():
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
        """The graph with these sizes, None where inference refuses them."""
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
        with target.as_default():
            try:
                tf.graph_util.import_graph_def(self._body, name="")
            except (ValueError, KeyError) as error:
                self.refused = str(error)[:300]
                return None
        return target


def _replaced(node: Any) -> bool:
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
