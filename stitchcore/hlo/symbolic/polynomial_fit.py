"""Integers and scalars seen at several sizes, as functions of those sizes.

A fit must reproduce every point exactly. Candidates go from simple to less so (constant, one
monomial times an integer, linear, multilinear) and the first that reproduces all points wins: the
more points, the fewer coincidences, which is why unification asks for one point more than it needs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

import numpy as np

from stitchcore.hlo.ir import dim as dims
from stitchcore.hlo.ir.dim import Dim
from stitchcore.hlo.ir.literal import Literal
from stitchcore.hlo.ir.rewrite import quotient

Bindings = Sequence[Mapping[str, int]]

_MAXIMUM_DEGREE = 3
_LARGEST_DENOMINATOR = 4096
_LARGEST_SCALE = 2**40
"""Times a size of millions it is still an integer of 64 bits."""


def monomials(symbols: Sequence[str]) -> list[Dim]:
    """Products of symbols, by degree: B, S, B*B, B*S, S*S, ..."""
    products: list[Dim] = []
    for degree in range(1, _MAXIMUM_DEGREE + 1):
        for names in itertools.combinations_with_replacement(symbols, degree):
            product: Dim = 1
            for name in names:
                product = product * dims.symbol(name)
            products.append(product)
    return products


def fit_dim(values: Sequence[int], bindings: Bindings) -> Dim | None:
    """The Dim that is `values[k]` at `bindings[k]` for every k, or None."""
    if len(set(values)) == 1:
        return values[0]
    for candidate in _candidates(values, bindings):
        at_points = (dims.evaluate(candidate, point) for point in bindings)
        if all(fitted == value for fitted, value in zip(at_points, values, strict=True)):
            return candidate
    return None


def _moving(values: Sequence[int], bindings: Bindings) -> list[str]:
    """The symbols that values may depend on: all but those that are another at some point, where
    all else is as at the first, and the value is the same."""
    idle: set[str] = set()
    for value, point in zip(values, bindings, strict=True):
        changed = [name for name, size in bindings[0].items() if point[name] != size]
        if value == values[0] and len(changed) == 1:
            idle.update(changed)
    return [name for name in bindings[0] if name not in idle]


def _candidates(values: Sequence[int], bindings: Bindings) -> Iterator[Dim]:
    products = monomials(_moving(values, bindings))
    sizes = [[dims.evaluate(product, point) for point in bindings] for product in products]
    for product, at in zip(products, sizes, strict=True):
        if values[0] % at[0] == 0:
            yield product * (values[0] // at[0])
    for product, at in zip(products, sizes, strict=True):
        other = next((k for k in range(1, len(at)) if at[k] != at[0]), None)
        if other is None:
            continue
        slope, remainder = divmod(values[other] - values[0], at[other] - at[0])
        if remainder == 0:
            yield product * slope + (values[0] - slope * at[0])
    for (p, at_p), (q, at_q) in itertools.combinations(zip(products, sizes, strict=True), 2):
        yield from _two_terms(values, (p, at_p), (q, at_q))


def _two_terms(
    values: Sequence[int], first: tuple[Dim, list[int]], second: tuple[Dim, list[int]]
) -> Iterator[Dim]:
    """a * p + b * q + c through three points, where those determine it."""
    (p, at_p), (q, at_q) = first, second
    if len(values) < 4:
        return
    for i, j in itertools.combinations(range(1, len(values)), 2):
        dp_i, dp_j = at_p[i] - at_p[0], at_p[j] - at_p[0]
        dq_i, dq_j = at_q[i] - at_q[0], at_q[j] - at_q[0]
        determinant = dp_i * dq_j - dp_j * dq_i
        if determinant == 0:
            continue
        dv_i, dv_j = values[i] - values[0], values[j] - values[0]
        a = Fraction(dv_i * dq_j - dv_j * dq_i, determinant)
        b = Fraction(dp_i * dv_j - dp_j * dv_i, determinant)
        if a.denominator == b.denominator == 1:
            constant = values[0] - int(a) * at_p[0] - int(b) * at_q[0]
            yield p * int(a) + q * int(b) + constant
        return


def fit_scalar(literals: Sequence[Literal], bindings: Bindings) -> tuple[Dim, Dim] | None:
    """(numerator, denominator) whose quotient has exactly the bits of every literal, or None. What
    is in proportion to a size, or to 1 over it, by no small fraction (a loss's weight, 0.001, over
    the batch) is rounded more than once where it comes from: at other sizes the quotient is within
    a unit in the last place."""
    dtype = literals[0].dtype
    values = [literal.scalar for literal in literals]
    if dtype == "pred" or any(value != value or abs(value) == float("inf") for value in values):
        return None
    if all(value == int(value) for value in values):
        integer = fit_dim([int(value) for value in values], bindings)
        if integer is not None and _same_bits(integer, 1, literals, bindings):
            return integer, 1
    for product in monomials(list(bindings[0])):
        scale = Fraction(values[0]) * dims.evaluate(product, bindings[0])
        near = scale.limit_denominator(_LARGEST_DENOMINATOR)
        ratio = (near.numerator, product * near.denominator)
        if near and _same_bits(*ratio, literals, bindings):
            return ratio
    if dtype not in ("f32", "f64"):
        return None
    for product in monomials(list(bindings[0])):
        sizes = [dims.evaluate(product, point) for point in bindings]
        for inverse in (True, False):
            scales = [Fraction(size) if inverse else Fraction(1, size) for size in sizes]
            factor = _common(literals, scales)
            if factor is None or factor.denominator >= _LARGEST_SCALE:
                continue
            above, below = (1, product) if inverse else (product, 1)
            fitted = (above * factor.numerator, below * factor.denominator)
            if _same_bits(*fitted, literals, bindings):
                return fitted
    return None


def _common(literals: Sequence[Literal], scales: Sequence[Fraction]) -> Fraction | None:
    """The simplest number that is each literal times its scale, to half a unit in the last place;
    None where there is none."""
    low, high = Fraction(0), None
    negative = literals[0].scalar < 0
    for literal, scale in zip(literals, scales, strict=True):
        value = literal.array.reshape(-1)[0]
        if (value < 0) != negative or value == 0 or abs(value) == np.finfo(value.dtype).max:
            return None
        value = abs(value)
        ends = [Fraction(float(np.nextafter(value, value.dtype.type(end)))) for end in (0, np.inf)]
        below, above = ((Fraction(float(value)) + end) / 2 * scale for end in ends)
        low, high = max(low, below), above if high is None else min(high, above)
    if high is None or low > high:
        return None
    edge = (high - low) / 1024  # where two numbers are as near, and the even one is taken
    found = _simplest(low + edge, high - edge)
    return -found if negative else found


def _simplest(low: Fraction, high: Fraction) -> Fraction:
    """The fraction of least denominator from `low` to `high`, both positive: the way down the
    Stern-Brocot tree."""
    whole = low.numerator // low.denominator
    if whole == low:
        return Fraction(whole)
    if whole + 1 <= high:
        return Fraction(whole + 1)
    return whole + 1 / _simplest(1 / (high - whole), 1 / (low - whole))


def _same_bits(
    numerator: Dim, denominator: Dim, literals: Sequence[Literal], bindings: Bindings
) -> bool:
    for literal, point in zip(literals, bindings, strict=True):
        below = dims.evaluate(denominator, point)
        above = dims.evaluate(numerator, point)
        if not isinstance(literal.scalar, float) and above % below:
            return False
        if quotient(above, below, literal.dtype).tobytes() != literal.data:
            return False
    return True
