"""Dimensions: integers or polynomials over named symbols (docs/decisions.md 15).

A polynomial whose value is constant is always the int itself, so `isinstance(dim, int)` tells
static from symbolic. Polynomials are immutable, hashable, and compare by value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

_TERM = re.compile(r"[+-]?[^+-]+")

Monomial = tuple[tuple[str, int], ...]
"""Sorted (symbol, power) pairs; the empty tuple is the constant monomial."""


@dataclass(frozen=True)
class Polynomial:
    """Sum of integer coefficients times monomials; at least one monomial is not constant."""

    terms: tuple[tuple[Monomial, int], ...]

    def __add__(self, other: Dim) -> Dim:
        return _make(_merge(_terms(self), _terms(other)))

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim) -> Dim:
        return self + other * -1

    def __rsub__(self, other: Dim) -> Dim:
        return self * -1 + other

    def __mul__(self, other: Dim) -> Dim:
        product: dict[Monomial, int] = {}
        for left, a in self.terms:
            for right, b in _terms(other).items():
                powers = dict(left)
                for symbol, power in right:
                    powers[symbol] = powers.get(symbol, 0) + power
                monomial = tuple(sorted(powers.items()))
                product[monomial] = product.get(monomial, 0) + a * b
        return _make(product)

    __rmul__ = __mul__

    def __str__(self) -> str:
        return "+".join(_term_text(m, c) for m, c in self.terms).replace("+-", "-")


Dim = int | Polynomial


def symbol(name: str) -> Dim:
    """The dimension that is the symbol `name` itself."""
    return Polynomial(((((name, 1),), 1),))


def evaluate(dim: Dim, bindings: Mapping[str, int]) -> int:
    """Value of `dim` under `bindings`. Raises KeyError for an unbound symbol."""
    if isinstance(dim, int):
        return dim
    total = 0
    for monomial, coefficient in dim.terms:
        value = coefficient
        for name, power in monomial:
            value *= bindings[name] ** power
        total += value
    return total


def substitute(dim: Dim, values: Mapping[str, Dim]) -> Dim:
    """`dim` with `values` in place of their symbols; the others stay."""
    if isinstance(dim, int):
        return dim
    total: Dim = 0
    for monomial, coefficient in dim.terms:
        product: Dim = coefficient
        for name, power in monomial:
            for _ in range(power):
                product = product * values.get(name, symbol(name))
        total = total + product
    return total


def symbols_of(dim: Dim) -> frozenset[str]:
    """Names of the symbols that `dim` depends on."""
    if isinstance(dim, int):
        return frozenset()
    return frozenset(name for monomial, _ in dim.terms for name, _ in monomial)


def primitive(dim: Dim) -> tuple[Dim, int, int]:
    """(p, scale, offset) with `dim` = scale * p + offset: p has no constant term and no common
    factor, and its last coefficient is positive. p is 0 for an integer."""
    if isinstance(dim, int):
        return 0, 0, dim
    terms = {monomial: c for monomial, c in dim.terms if monomial}
    scale = math.gcd(*terms.values()) * (1 if dim.terms[-1][1] > 0 else -1)
    offset = _terms(dim).get((), 0)
    return _make({monomial: c // scale for monomial, c in terms.items()}), scale, offset


def exact_divide(dim: Dim, divisor: Dim) -> Dim | None:
    """`dim / divisor` when the division is exact for every value of the symbols, else None."""
    if isinstance(divisor, int):
        if divisor == 0:
            return None
        terms = _terms(dim)
        if any(c % divisor for c in terms.values()):
            return None
        return _make({m: c // divisor for m, c in terms.items()})
    if dim == 0:
        return 0
    quotient: Dim = 0
    remainder = dim
    lead_monomial, lead = divisor.terms[-1]
    for _ in range(64):
        if remainder == 0:
            return quotient
        monomial, coefficient = max(_terms(remainder).items(), key=lambda t: _order(t[0]))
        powers = dict(monomial)
        for name, power in lead_monomial:
            powers[name] = powers.get(name, 0) - power
        if coefficient % lead or any(p < 0 for p in powers.values()):
            return None
        factor = _make({tuple(sorted((n, p) for n, p in powers.items() if p)): coefficient // lead})
        quotient = factor + quotient
        remainder = remainder - factor * divisor
    return None


def parse(text: str) -> Dim:
    """The dimension that `str` wrote as `text`. Raises ValueError when it is not one."""
    try:
        return int(text)
    except ValueError:
        pass
    total: Dim = 0
    for term in _TERM.findall(text):
        product: Dim = -1 if term.startswith("-") else 1
        for factor in term.lstrip("+-").split("*"):
            name, _, power = factor.partition("^")
            if name.isdigit():
                product = product * int(name)
            elif name.isidentifier():
                for _ in range(int(power or 1)):
                    product = product * symbol(name)
            else:
                raise ValueError(f"not a dimension: {text!r}")
        total = total + product
    return total


def _order(monomial: Monomial) -> tuple[int, Monomial]:
    return (sum(p for _, p in monomial), monomial)


def _terms(dim: Dim) -> dict[Monomial, int]:
    if isinstance(dim, int):
        return {(): dim} if dim else {}
    return dict(dim.terms)


def _merge(left: dict[Monomial, int], right: dict[Monomial, int]) -> dict[Monomial, int]:
    for monomial, coefficient in right.items():
        left[monomial] = left.get(monomial, 0) + coefficient
    return left


def _make(terms: dict[Monomial, int]) -> Dim:
    nonzero = {m: c for m, c in terms.items() if c}
    if not nonzero:
        return 0
    if set(nonzero) == {()}:
        return nonzero[()]
    return Polynomial(tuple(sorted(nonzero.items(), key=lambda t: _order(t[0]))))


def _term_text(monomial: Monomial, coefficient: int) -> str:
    factors = [name if power == 1 else f"{name}^{power}" for name, power in monomial]
    if not factors:
        return str(coefficient)
    return "*".join(([] if coefficient == 1 else [str(coefficient)]) + factors)
