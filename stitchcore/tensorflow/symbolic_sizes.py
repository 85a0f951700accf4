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

Relations are sought with at most MOST_NODES / (nodes of the graph) runs, 1000 at most and 64 at
least; fitting takes 12 runs at most (another for each number at which a size is cut, and where
large sizes are refused up to 6 for each symbol), once again for each symbol that is given up, and 2
more where symbols are derived; all of it once again for each of at most MOST_ROUNDS where sizes
begin within the graph; MOST_OTHERWISE bounds what is asked beside that where sizes are assumed to
be equal, and in graphs with stacks.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any

from tensorflow.core.framework import graph_pb2
from tensorflow.python.framework import op_def_registry

from stitchcore.errors import Reason, Refusal
from stitchcore.hlo.ir import dim as dims
from stitchcore.hlo.ir.dim import Dim
from stitchcore.hlo.symbolic.polynomial_fit import fit_dim
from stitchcore.tensorflow import equal_sizes
from stitchcore.tensorflow.graph import NOMINAL_SIZE, Edge, index
from stitchcore.tensorflow.loop_shapes import POPS, rewrites
from stitchcore.tensorflow.op_allowlist import ANY
from stitchcore.tensorflow.shapes_at_sizes import (
    ROOTS,
    Answers,
    Inference,
    Place,
    Roots,
    Shapes,
    Tensor,
    declared_shapes,
    is_replaced,
)
from stitchcore.tensorflow.size_points import (
    FACTORS,
    SMALL,
    Inferred,
    at_points,
    points,
    short_places,
    times,
    values_of,
)

JUDGED_SIZE = 32
"""What symbols are where regions are judged and timed, if others are derived of them."""

MOST_SYMBOLS = 24
"""A region is lowered at as many points, and some more, as it has symbols."""

MOST_NODES, MOST_RUNS, LEAST_RUNS = 3_000_000, 1000, 64
"""Bounds of the search for relations: nodes inferred in all, and runs of inference."""

MOST_OTHERWISE = 100_000
"""Nodes inferred in all to learn what holds where sizes that are assumed to be equal are not."""

MOST_ROUNDS = 3
"""How often sizes that begin within the graph are looked for: each time past those found before."""

SYMBOLIC = -1000
"""Rewritten dimensions are SYMBOLIC - k; `Sizes.dims[k]` is the polynomial."""

NEVER_CUT = frozenset({"BroadcastGradientArgs", "ReadVariableOp", "VariableV2", "Merge"})
"""Operations whose unknown sizes are of no use: of few integers, or of a variable that changes its
shape; and a loop's variable that changes its own."""


@dataclass(frozen=True)
class Sizes:
    """`graph` is the request's graph with fitted dimensions; `symbols` in order of appearance.

    Symbols in `assumed` stand for sizes of which TensorFlow does not itself demand that they go
    together; `supposed` are tensors that have a dimension which is a number on that account, and of
    these `numbered` such as have one by a size that is itself taken for a number. What relies on
    either must check at run time the shapes of all tensors from which it knows them.
    Symbols in `derived`, assumed too, have the sizes that `points` bind beside the others', and at
    `large`, where all that was fitted at `points` holds too, and at `judged` and `nominal` where
    those are JUDGED_SIZE and NOMINAL_SIZE, those in `enlarged` as many times larger as it takes, or
    small if they are `bounded`. `refusals` tell which sizes are left unknown, and why. `otherwise`
    are the shapes of all tensors where sizes that are assumed to be equal are not, in each way that
    inference takes; asked for where sizes are assumed to be equal, and in graphs with stacks
    (recomputed_shapes.py); None where that cannot be told.
    `fitted` are tensors with a dimension that is a number wherever it was looked at, and of which
    inference does not say so (of a batch the first 24 rows, of which a smaller one has less):
    checked at run time too.
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
    fitted: frozenset[Tensor] = frozenset()

    def are_alike_otherwise(self, first: Tensor, second: Tensor) -> bool:
        """Whether two tensors of one shape are that also where sizes that are assumed to be equal
        are not."""
        if not self.supposed and self.assumed <= self.unrelated:
            return True
        if self.otherwise is None:
            return False
        shapes = ((known.get(first), known.get(second)) for known in self.otherwise)
        return all(one is not None and one == other for one, other in shapes)

    def dim(self, size: int) -> Dim | None:
        """The dimension behind an integer of `_output_shapes`, None when it is not known."""
        if size >= 0:
            return size
        number = SYMBOLIC - size
        return self.dims[number] if 0 <= number < len(self.dims) else None


def resolve(graph: Any) -> Sizes:
    """Fit every unknown dimension of `graph` that can be."""
    if not any(_is_unknown(shape) for node in graph.node for shape in declared_shapes(node)):
        return Sizes(graph, (), ())
    entering, answers = _root_names(graph), Answers()
    inference, inferred = _consistent(graph, entering, answers)
    for _ in range(MOST_ROUNDS):
        further = _beginning(inference, inferred)
        if not further:
            break
        cut, of_cut = _consistent(graph, {**inference.roots, **further}, answers)
        if not all(of_cut.shapes):
            break
        inference, inferred = cut, of_cut
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
    stacks, assumed = any(n.op in POPS for n in graph.node), inferred.constraints.assumed
    return Sizes(
        result,
        (*inferred.constraints.symbols, *derived),
        tuple(table),
        assumed | unrelated,
        _supposed(inference, inferred.constraints, resolved),
        tuple(_left_unknown(entering, inferred, inference.refused)),
        frozenset(derived),
        inferred.points[: inferred.near],
        inferred.points[inferred.near :],
        judged,
        nominal,
        inferred.factors,
        _otherwise(inference, inferred.constraints) if stacks or assumed else None,
        unrelated,
        _numbered(inference, inferred.constraints, resolved),
        inferred.constraints.bounded,
        _different(resolved, inference.shapes({}) or {}),
    )


def _is_unknown(shape: Any) -> bool:
    return bool(shape.unknown_rank) or any(dim.size < 0 for dim in shape.dim)


def _symbols_of(
    tensors: AbstractSet[Tensor], graph: Any, table: Mapping[Dim, int]
) -> Iterator[str]:
    """The symbols that sizes of `tensors` depend on."""
    known = list(table)
    for node in graph.node:
        for port, shape in enumerate(declared_shapes(node)):
            if (node.name, port) in tensors:
                numbers = (SYMBOLIC - dim.size for dim in shape.dim)
                for number in numbers:
                    if 0 <= number < len(known):
                        yield from dims.symbols_of(known[number])


def _beginning(inference: Inference, inferred: Inferred) -> Roots:
    """Names for sizes that begin within the graph: unknown though the operation's inputs are known
    (how many values are unique, where a mask is true), or the shape of what is not inferred."""
    shapes, graph = inferred.shapes[0], inference.rewritten.graph
    number = len(inference.names)
    names: dict[object, str] = {}
    roots: dict[Place, str] = {}
    rankless: set[Edge] = set()
    """Of no rank that anything says, whichever sizes are named."""

    def is_known(edge: Edge) -> bool:
        shape = shapes.get((graph.nodes[edge.node].name, edge.port))
        known = graph.dtype(edge) not in ANY or (shape is not None and None not in shape)
        return known or edge in rankless

    for i in graph.order:
        node = graph.nodes[i]
        if node.op in NEVER_CUT or inference.rewritten.covers(i):
            continue
        if not is_replaced(node) and not all(map(is_known, graph.data[i])):
            continue
        ports = range(len(declared_shapes(node)))
        rankless.update(Edge(i, port) for port in ports if shapes.get((node.name, port)) is None)
        places_in_lists = _places_in_lists(node)
        for port, declared in enumerate(declared_shapes(node)):
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


def _derived(graph: Any, inferred: Inferred) -> tuple[Inferred, Sources]:
    """Points that bind a symbol for each unknown dimension that is no polynomial of others, the
    smallest first: the larger ones may be polynomials of these."""
    places: dict[tuple[int, ...], Place] = {}
    for node in graph.node:
        for port, shape in enumerate(node.attr["_output_shapes"].list.shape):
            seen = [shapes.get((node.name, port)) for shapes in inferred.shapes]
            for axis, dim in enumerate(shape.dim):
                values = values_of(seen, axis)
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
    inference: Inference, inferred: Inferred, derived: Sources, size: int
) -> Mapping[str, int]:
    """What all symbols are where those that are not derived are `size`, those in `factors` so many
    times larger as leaves nothing short that need not be; nothing where there are neither."""
    bounded = inferred.constraints.bounded
    if not derived and not inferred.factors and not bounded:
        return {}
    sizes = dict.fromkeys(inferred.constraints.symbols, size) | dict.fromkeys(bounded, SMALL[1])
    always = short_places(inference, inferred.shapes[0])
    largest = max(inferred.factors.values(), default=1)
    for factor in (1, 2, 4, *FACTORS):
        point = times(sizes, dict.fromkeys(inferred.factors, factor))
        shapes = inference.shapes(inferred.constraints.sizes(point)) or {}
        if factor >= largest or (shapes and short_places(inference, shapes) <= always):
            break
    for name, (node, port, axis) in derived.items():
        value = values_of([shapes.get((node, port))], axis)
        if value is None:
            return inferred.points[0]
        point[name] = value[0]
    return point


def _consistent(graph: Any, roots: Roots, answers: Answers) -> tuple[Inference, Inferred]:
    """Shapes at every point, with as much of the loops and lists rewritten as they bear out."""
    rewritten = rewrites(index(graph))
    while True:
        inference = Inference(graph, roots, rewritten, answers=answers)
        inferred = _inferred(inference)
        wrong = {i for shapes in inferred.shapes for i in rewritten.wrong(shapes)}
        if not any(inferred.shapes):
            wrong = rewritten.all()
        if not wrong:
            return inference, inferred
        rewritten = rewritten.without(wrong)


def _inferred(inference: Inference) -> Inferred:
    """With each name a symbol of its own; where that is refused, with the relations that hold."""
    names = inference.names
    constraints = equal_sizes.SizeConstraints(
        {name: dims.symbol(name) for name in names}, frozenset(), {}
    )
    inferred = at_points(inference, constraints, names) if len(names) <= MOST_SYMBOLS else None
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
        inferred = at_points(inference, constraints, constraints.symbols)
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
    shapes = (shape for node in graph.node for shape in declared_shapes(node))
    count = Counter(dim.size for shape in shapes for dim in shape.dim if dim.size > 1)
    return [size for size, _ in count.most_common()]


def _refused_one(inference: Inference, constraints: equal_sizes.SizeConstraints) -> str:
    """A symbol to take for a small one, or to give up, where the sizes of some point are refused,
    and those of the search were not: one that is refused alone, else the last."""
    tried = points(constraints.symbols, bounded=constraints.bounded)
    for symbol in constraints.symbols:
        largest = max(point[symbol] for point in tried)
        if not inference.accepts(constraints.sizes({**constraints.point, symbol: largest})):
            return symbol
    return constraints.symbols[-1]


def _uses(inference: Inference, constraints: equal_sizes.SizeConstraints) -> dict[str, int]:
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
    inference: Inference,
    constraints: equal_sizes.SizeConstraints,
    resolved: Mapping[Tensor, tuple[int, ...]],
) -> frozenset[Tensor]:
    """Of tensors with dimensions that became numbers those that have other ones, or none, once
    what is assumed is left open."""
    proven = constraints.proven()
    if proven == constraints.sizes(constraints.point) and not inference.tables:
        return frozenset()
    if inference.tables:
        inference = Inference(inference.graph, inference.roots, inference.rewritten, tables=False)
    return _different(resolved, inference.shapes(proven) or {})


def _numbered(
    inference: Inference,
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
    inference: Inference, constraints: equal_sizes.SizeConstraints
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
            inference = Inference(inference.graph, inference.roots, left)
        if shapes is not None:
            found.append(shapes)
    return tuple(found)


def _subsets(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """But for the empty one."""
    for count in range(1, len(names) + 1):
        yield from itertools.combinations(names, count)


def _left_unknown(roots: Roots, inferred: Inferred, error: str) -> Iterator[Refusal]:
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
        values = values_of(inferred, axis)
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
