"""A best set packing by branch and bound, where set_packing_bound.py leaves a small gap.

The parts of a plan that prices leave open have a few dozen sets, and the gap is mostly that of the
relaxation: of three sets that share elements in pairs one can be taken, and half of each counts.
Starting a solver for such a part takes half a second, a few branches take microseconds.

Prices that cover the value of every set bound all packings by their sum. A packing falls short of
it by exactly the price of every element that it leaves alone and what the elements of a chosen set
cost beyond its value. Elements are decided one by one, dearest first: left alone, or covered by a
set that holds none decided before. A branch that has lost the whole gap is not followed. The work
is bounded by a number of branches, not by time: how busy a machine is does not change a plan.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

BRANCHES = 20_000
"""Most branches of one packing: a few tens of milliseconds. Beyond, a solver is faster."""

TOLERANCE = 1e-9
"""Relative difference from which a packing counts as better than another."""


@dataclass(frozen=True)
class _Option:
    """A set: its number, its elements as bits, and what choosing it loses."""

    number: int
    bits: int
    lost: float


@dataclass(frozen=True)
class _Branch:
    """A packing of which the elements before `at` are decided; `covered` are bits of elements."""

    at: int
    covered: int
    lost: float
    chosen: frozenset[int]


def best(
    sets: Sequence[frozenset[int]],
    values: Sequence[float],
    forbidden: Collection[frozenset[int]],
    known: frozenset[int],
    prices: Mapping[int, float],
) -> frozenset[int] | None:
    """A best packing of `sets` worth `values` without all of a `forbidden` combination, `known`
    where none is better; None where BRANCHES did not suffice. `prices` are of all elements and at
    least 0; the closer to the optimal dual ones, the fewer branches."""
    prices = _raised(sets, values, prices)
    elements = sorted(prices, key=lambda e: (-prices[e], e))
    options = _options(sets, values, prices, elements)
    limit, top = sum(prices.values()), known
    gap = limit - sum(values[n] for n in known) - TOLERANCE * limit
    pending = [_Branch(0, 0, 0.0, frozenset())]
    for _ in range(BRANCHES):
        if not pending:
            return top
        branch = pending.pop()
        if branch.lost >= gap:
            continue
        at = branch.at
        while at < len(elements) and branch.covered >> at & 1:
            at += 1
        if at == len(elements):
            top, gap = branch.chosen, branch.lost - TOLERANCE * limit
            continue
        alone = branch.lost + prices[elements[at]]
        pending.append(_Branch(at + 1, branch.covered, alone, branch.chosen))
        for option in options[at]:
            chosen = branch.chosen | {option.number}
            if option.bits & branch.covered or any(
                combination <= chosen for combination in forbidden
            ):
                continue
            covered = branch.covered | option.bits
            pending.append(_Branch(at + 1, covered, branch.lost + option.lost, chosen))
    return None


def _raised(
    sets: Sequence[frozenset[int]], values: Sequence[float], prices: Mapping[int, float]
) -> dict[int, float]:
    """Prices that cover the value of every set; their sum is no more than what `prices` and the
    sets' values beyond them bound."""
    raised = dict(prices)
    for members, value in zip(sets, values, strict=True):
        missing = value - sum(raised[e] for e in members)
        if missing > 0:
            for e in members:
                raised[e] += missing / len(members)
    return raised


def _options(
    sets: Sequence[frozenset[int]],
    values: Sequence[float],
    prices: Mapping[int, float],
    elements: Sequence[int],
) -> list[list[_Option]]:
    """Of each element the sets that hold it and none before it, those that lose least last."""
    place = {e: n for n, e in enumerate(elements)}
    options: list[list[_Option]] = [[] for _ in elements]
    for n, members in enumerate(sets):
        lost = max(0.0, sum(prices[e] for e in members) - values[n])
        bits = sum(1 << place[e] for e in members)
        options[min(place[e] for e in members)].append(_Option(n, bits, lost))
    for some in options:
        some.sort(key=lambda option: (-option.lost, option.number))
    return options
