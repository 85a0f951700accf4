"""Quotients and remainders of a row's number, counted from row to row instead of divided.

A row of [8, 28, 28, 3] is found by row // 784, row // 28 % 28 and row % 28: divisions that take
longer than a short row itself. They are the digits of the row's number in a mixed radix, and the
next row's are had by adding one and carrying (strength reduction).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from stitchcore.loop_ir import index
from stitchcore.loop_ir.index import Binary, Index, Range, Variable
from stitchcore.loop_ir.nodes import Loop
from stitchcore.loop_ir.visitor import expressions, mapped, own_indices, statements

UNROLLED = 16
"""Iterations of a loop that a compiler may write out, where divisions are folded."""


@dataclass(frozen=True)
class Digit:
    """A variable that is (row // `weight`) % `radix`, or row // `weight` where `radix` is None."""

    variable: str
    weight: int
    radix: int | None

    def of(self, number: Index) -> Index:
        quotient = index.floor_divide(number, self.weight)
        return quotient if self.radix is None else index.modulo(quotient, self.radix)

    def range(self, of_number: Range | None) -> Range | None:
        if self.radix is not None:
            return 0, self.radix - 1
        return of_number and (of_number[0] // self.weight, of_number[1] // self.weight)


@dataclass(frozen=True)
class Counted:
    """`loop` with its body in terms of `digits`, the fastest first; the last has no radix."""

    loop: Loop
    digits: tuple[Digit, ...]


def counted(loop: Loop) -> Counted | None:
    """A serial loop by digits of its variable; None where it divides by nothing that it may."""
    if isinstance(loop.begin, int) and isinstance(loop.end, int):
        if loop.end - loop.begin <= UNROLLED:
            return None
    divisions = {
        part
        for inner in statements(loop.body)
        for node in (inner, *expressions((inner,)))
        for at in own_indices(node)
        for part in _divisions(at, loop.variable)
    }
    weights = _chain(sorted(divisions, key=lambda part: (part[0], part[1] or 0)))
    if len(weights) < 2:
        return None
    radices = [high // low for low, high in pairwise(weights)]
    digits = tuple(
        Digit(f"{loop.variable}_{number}", weight, radix)
        for number, (weight, radix) in enumerate(zip(weights, [*radices, None], strict=True))
    )

    def rewritten(node: Index) -> Index:
        if not isinstance(node, Binary):
            return node
        value = _by_digits(_division(node, loop.variable), digits)
        if value is not None:
            return value
        left, right = rewritten(node.left), rewritten(node.right)
        if (left, right) == (node.left, node.right):
            return node
        return index.BUILDERS[node.operator](left, right)

    return Counted(replace(loop, body=mapped(loop.body, index=rewritten)), digits)


_Division = tuple[int, int | None]
"""(q, m): number // q % m, or number // q."""


def _divisions(node: Index, variable: str) -> Iterator[_Division]:
    if isinstance(node, Binary):
        division = _division(node, variable)
        if division is not None:
            yield division
        else:
            yield from _divisions(node.left, variable)
            yield from _divisions(node.right, variable)


def _division(node: Index, variable: str) -> _Division | None:
    """What `node` is of the variable, where it is made by dividing that by constants alone."""
    if node == Variable(variable):
        return 1, None
    if not isinstance(node, Binary) or node.operator not in ("//", "%"):
        return None
    inner, by = _division(node.left, variable), node.right
    if inner is None or not isinstance(by, int):
        return None
    weight, radix = inner
    if radix is not None and radix % by:
        return None
    if node.operator == "%":
        return weight, by
    return weight * by, None if radix is None else radix // by


def _chain(divisions: Iterable[_Division]) -> list[int]:
    """Weights of digits, each a multiple of the one before, from which as many of `divisions` as
    come first can be told; the least is 1."""
    weights = {1}
    for weight, radix in divisions:
        more = sorted(weights | {weight} | ({weight * radix} if radix is not None else set()))
        if all(high % low == 0 for low, high in pairwise(more)):
            weights = set(more)
    return sorted(weights)


def _by_digits(division: _Division | None, digits: tuple[Digit, ...]) -> Index | None:
    if division is None:
        return None
    weight, radix = division
    weights = [digit.weight for digit in digits]
    last = None if radix is None else weight * radix
    if weight not in weights or (last is not None and last not in weights):
        return None
    return index.total(
        index.multiply(Variable(digit.variable), digit.weight // weight)
        for digit in digits
        if digit.weight >= weight and (last is None or digit.weight < last)
    )
