"""The sizes at which shapes are inferred, and what is inferred there.

Symbols are small at most points, for regions are lowered at these. Where something has no or one
element at them they are larger; and what fits must fit at large sizes too.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any

from stitchcore.hlo.ir import dim as dims
from stitchcore.hlo.symbolic.polynomial_fit import fit_dim
from stitchcore.tensorflow import equal_sizes
from stitchcore.tensorflow.shapes_at_sizes import Inference, Place, Shape, Shapes, declared_shapes

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

LESS_SMALL = (15, 16, 17, 29, 47, 71, *LARGE)
"""Sizes of the same beside large ones of others, as far as inference takes them: what is a number
at all of SMALL (rounded down to 8) need be none."""

FACTORS = (9, 65, 513)
"""By how much the sizes of a symbol are larger where something has no or one element at them (the
frames of a short wave): what is computed of so few is another program. They leave the remainders of
8, 64 and 512 as they are."""


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
    return tuple(times(point, factors or {}) for point in bindings)


def times(point: Mapping[str, int], factors: Mapping[str, int]) -> dict[str, int]:
    """The sizes of a point, times the factors of those that have one."""
    return {name: size * factors.get(name, 1) for name, size in point.items()}


@dataclass(frozen=True)
class Inferred:
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


def at_points(
    inference: Inference, constraints: equal_sizes.SizeConstraints, symbols: tuple[str, ...]
) -> Inferred | None:
    """The shapes at every point, None where one of them is refused."""
    inferred = _with_factors(inference, constraints, symbols, {})
    if inferred is None:
        return None
    return _with_large(inference, _with_longer(inference, inferred))


def _with_longer(inference: Inference, inferred: Inferred) -> Inferred:
    """At larger sizes, where something has no element at these, or one."""
    constraints, symbols = inferred.constraints, tuple(inferred.points[0])
    if not (short := short_places(inference, inferred.shapes[0])):
        return inferred

    def short_at(factors: Mapping[str, int]) -> set[Place] | None:
        larger = times(inferred.points[0], factors)
        shapes = inference.shapes(constraints.sizes(larger))
        return None if shapes is None else short_places(inference, shapes)

    to_blame = {}
    for symbol in symbols:
        left = short_at({symbol: FACTORS[-1]})
        if left is not None and len(left) < len(short):
            to_blame[symbol] = FACTORS[-1]
    if constraints.bounded and not to_blame:  # by others, which have to be larger too
        together = (dict.fromkeys(symbols, factor) for factor in reversed(FACTORS))
        larger = next((one for one in together if short_at(one) is not None), {})
        if len(short_at(larger) or ()) < len(short):
            to_blame = larger
    always = short_at(to_blame) or set()
    for factor in FACTORS if to_blame else ():
        factors = dict.fromkeys(to_blame, factor)
        enlarged = _with_factors(inference, constraints, symbols, factors)
        if enlarged is None:
            break
        inferred = enlarged
        if all(short_places(inference, shapes) <= always for shapes in inferred.shapes):
            break
    return inferred


def _with_factors(
    inference: Inference,
    constraints: equal_sizes.SizeConstraints,
    symbols: tuple[str, ...],
    factors: Mapping[str, int],
) -> Inferred | None:
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
    return Inferred(at_base, bindings, shapes_at, factors=factors, near=len(bindings))


def _with_large(inference: Inference, inferred: Inferred) -> Inferred:
    """With a point of large sizes, as far as inference takes them, and with points between where
    what fits at all others does not fit there: a size that is cut at some number. These are of
    those where regions are lowered."""
    constraints, base = inferred.constraints, inferred.points[0]
    free = [name for name in base if name not in constraints.bounded]

    def at(largest: Mapping[str, int]) -> tuple[dict[str, int], Shapes | None]:
        sizes = {n: size + 6 * free.index(n) if n in free else size for n, size in largest.items()}
        point = base | times(sizes, inferred.factors)
        return point, inference.shapes(constraints.sizes(point))

    def most(name: str, beside: Mapping[str, int], sizes: Sequence[int]) -> dict[str, int]:
        taken = ({name: n} for n in reversed(sizes) if at({**beside, name: n})[1] is not None)
        return next(taken, {})

    largest = dict.fromkeys(free, LARGE[-1])
    if at(largest)[1] is None:
        largest = dict(ChainMap(*(most(name, {}, LARGE) for name in free)))
    for name in sorted(constraints.bounded):
        largest |= most(name, largest, LESS_SMALL)
    large, shapes = at(largest)
    if shapes is None or not largest:
        return inferred
    while _is_cut(inference.graph, inferred, large, shapes):
        for size in LARGE:
            point, between = at({name: min(size, end) for name, end in largest.items()})
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


def _is_cut(graph: Any, inferred: Inferred, point: Mapping[str, int], shapes: Shapes) -> bool:
    """Whether a size that fits at all points so far is another than that at `point`."""
    known: dict[tuple[int, ...], set[int]] = {}
    for node in graph.node:
        for port, shape in enumerate(declared_shapes(node)):
            seen = [each.get((node.name, port)) for each in inferred.shapes]
            for axis, dim in enumerate(shape.dim):
                values = values_of(seen, axis) if dim.size < 0 else None
                found = values_of([shapes.get((node.name, port))], axis)
                if values is not None and found is not None and all(values):
                    known.setdefault(values, set()).add(found[0])
    fits = ((fit_dim(values, inferred.points), sizes) for values, sizes in known.items())
    return any(
        len(sizes) > 1 or (fit is not None and dims.evaluate(fit, point) not in sizes)
        for fit, sizes in fits
    )


def short_places(inference: Inference, shapes: Shapes) -> set[Place]:
    """Where a size that the graph does not know is 0 or 1."""
    found = set()
    for node in inference.graph.node:
        for port, declared in enumerate(declared_shapes(node)):
            sizes = shapes.get((node.name, port)) or ()
            known = [dim.size >= 0 for dim in declared.dim] or [False] * len(sizes)
            for axis, (size, told) in enumerate(zip(sizes, known, strict=False)):
                if size is not None and size <= 1 and not told:
                    found.add((node.name, port, axis))
    return found


def values_of(seen: Sequence[Shape], axis: int) -> tuple[int, ...] | None:
    """The sizes that a dimension has at each point; None where they are not all known."""
    ranks = {None if sizes is None else len(sizes) for sizes in seen}
    if None in ranks or len(ranks) != 1 or axis >= min(r for r in ranks if r is not None):
        return None
    values = tuple(size for sizes in seen if sizes and (size := sizes[axis]) is not None)
    return values if len(values) == len(seen) else None
