"""How much a set packing can be worth at most, without a solver: weak duality.

Sets with values are to be chosen so that no two share an element. Give every element a price of at
least 0. A chosen set is then worth the prices of its elements plus what it is worth beyond them,
so all prices plus the positive excess of every set bound every packing. Prices close to the optimal
dual ones make the bound tight, and where it meets the value of a packing that packing is optimal.

The sweep is a relaxation: sets worth more than their elements raise their prices, too far on
purpose (OVERSHOOT), the known packing's sets take theirs back to their value, and elements that it
leaves alone to nothing. For sets of a plan's size that mostly closes within milliseconds. What it
leaves open (the packing is not optimal, or the relaxation has a gap) is lowered by steps along the
subgradient, shorter and shorter.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

ROUNDS = 60
"""Sweeps before giving up; most close within ten."""

OVERSHOOT = 1.5
"""By how much more than needed prices rise; 1 creeps, 2 swings for ever."""

STEPS = 60
"""Steps along the subgradient, each SHORTER than the one before."""

SHORTER = 0.93

TOLERANCE = 1e-9
"""Relative difference up to which a bound and a value are equal."""


@dataclass(frozen=True)
class Priced:
    """The least bound found, and the prices of all elements that give it."""

    limit: float
    prices: Mapping[int, float]


def bound(
    sets: Sequence[frozenset[int]], values: Sequence[float], known: Collection[int]
) -> Priced:
    """A limit of at least the value of every packing. `known` are the sets of a good packing, where
    the search for prices starts; the bound holds whatever they are."""
    target = sum(values[n] for n in known)
    prices = dict.fromkeys((e for members in sets for e in members), 0.0)
    covered = {e for n in known for e in sets[n]}
    for n in known:
        for e in sets[n]:
            prices[e] += values[n] / len(sets[n])
    best = Priced(_limit(sets, values, prices), dict(prices))
    for _ in range(ROUNDS):
        if close(best.limit, target):
            break
        for members, value in zip(sets, values, strict=True):
            missing = value - sum(prices[e] for e in members)
            if missing > 0:
                _share(prices, members, OVERSHOOT * missing)
        best = _less(best, _limit(sets, values, prices), prices)
        for e in prices:
            if e not in covered:
                prices[e] = 0.0
        for n in known:
            _lower(prices, sets[n], values[n])
        best = _less(best, _limit(sets, values, prices), prices)
    return best if close(best.limit, target) else _descended(sets, values, prices, target, best)


def _less(best: Priced, limit: float, prices: Mapping[int, float]) -> Priced:
    return Priced(limit, dict(prices)) if limit < best.limit else best


def _descended(
    sets: Sequence[frozenset[int]],
    values: Sequence[float],
    prices: dict[int, float],
    target: float,
    best: Priced,
) -> Priced:
    """The least of `best` and the bounds on a way down from `prices`, in steps that would reach
    `target`."""
    limit, scale = _limit(sets, values, prices), 1.0
    for _ in range(STEPS):
        slope = dict.fromkeys(prices, 1)
        for members, value in zip(sets, values, strict=True):
            if value > sum(prices[e] for e in members):
                for e in members:
                    slope[e] -= 1
        steep = sum(s * s for e, s in slope.items() if s < 0 or prices[e] > 0)
        if not steep or close(limit, target):
            break
        step = scale * (limit - target) / steep
        for e, s in slope.items():
            prices[e] = max(0.0, prices[e] - step * s)
        limit, scale = _limit(sets, values, prices), scale * SHORTER
        best = _less(best, limit, prices)
    return best


def close(limit: float, value: float) -> bool:
    """Whether a bound and the value of a packing are the same but for rounding."""
    return limit - value <= TOLERANCE * max(abs(limit), abs(value))


def _limit(
    sets: Sequence[frozenset[int]], values: Sequence[float], prices: dict[int, float]
) -> float:
    """The bound that any prices of at least 0 give."""
    excess = 0.0
    for members, value in zip(sets, values, strict=True):
        excess += max(0.0, value - sum(prices[e] for e in members))
    return sum(prices.values()) + excess


def _share(prices: dict[int, float], members: frozenset[int], amount: float) -> None:
    for e in members:
        prices[e] += amount / len(members)


def _lower(prices: dict[int, float], members: frozenset[int], value: float) -> None:
    """Take the prices of `members` down to `value` together, none below 0."""
    positive = [e for e in members if prices[e] > 0]
    while positive and (excess := sum(prices[e] for e in members) - value) > 0:
        step = min(excess / len(positive), min(prices[e] for e in positive))
        for e in positive:
            prices[e] = max(0.0, prices[e] - step)
        if step * len(positive) >= excess:
            return
        positive = [e for e in positive if prices[e] > 0]
