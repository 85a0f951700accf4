"""Set packing with forbidden combinations: independent parts, bound, search, then CP-SAT.

Sets that share no element with each other, not even through others, are chosen apart: the parts of
a plan are small. A part whose known packing meets the bound of set_packing_bound.py is optimal;
what remains is mostly solved by branch and bound (set_packing_search.py), and only else asked of
OR-Tools (set_packing_solver.py, extra `exact`). Without it, or at the end of the time, the best
known packing stands, with the bound there is.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from stitchcore.fusion import set_packing_bound, set_packing_search, set_packing_solver

SCALE = 1e12
"""CP-SAT counts in integers: picoseconds."""


@dataclass(frozen=True)
class Packed:
    """Chosen sets by number, what any choice is worth at most, and whether that is proved equal."""

    chosen: frozenset[int]
    limit: float
    closed: bool


@dataclass(frozen=True)
class Pool:
    """Sets of elements, what each is worth (more than 0), known packings as sets of numbers, and
    the numbers that may not all be chosen together (of one: never)."""

    sets: Sequence[frozenset[int]]
    values: Sequence[float]
    known: Sequence[frozenset[int]]
    forbidden: Collection[frozenset[int]] = ()

    def value(self, chosen: Iterable[int]) -> float:
        return sum(self.values[n] for n in chosen)

    def allowed(self, chosen: frozenset[int]) -> bool:
        return not any(combination <= chosen for combination in self.forbidden)


def pack(pool: Pool, deadline: float, memory: dict[object, Packed] | None = None) -> Packed:
    """A best choice from `pool`; `deadline` is in seconds of time.monotonic. `memory` keeps the
    parts that a later call may meet again."""
    memory = {} if memory is None else memory
    parts = []
    for part in _parts(pool):
        forbidden = frozenset(combination for combination in pool.forbidden if combination & part)
        key = part, forbidden
        if key not in memory:
            memory[key] = _part(pool, part, forbidden, deadline)
        parts.append(memory[key])
    chosen = frozenset(n for part in parts for n in part.chosen)
    return Packed(chosen, sum(part.limit for part in parts), all(part.closed for part in parts))


def _parts(pool: Pool) -> list[frozenset[int]]:
    """Numbers of sets that have to do with each other, in order."""
    parent = list(range(len(pool.sets)))

    def find(n: int) -> int:
        while parent[n] != n:
            parent[n] = parent[parent[n]]
            n = parent[n]
        return n

    first: dict[int, int] = {}
    for n, members in enumerate(pool.sets):
        for e in members:
            parent[find(first.setdefault(e, n))] = find(n)
    for combination in pool.forbidden:
        start = min(combination)
        for n in combination:
            parent[find(start)] = find(n)
    components: dict[int, list[int]] = {}
    for n in range(len(pool.sets)):
        components.setdefault(find(n), []).append(n)
    return [frozenset(part) for part in components.values()]


def _part(
    pool: Pool, part: frozenset[int], forbidden: Collection[frozenset[int]], deadline: float
) -> Packed:
    never = {n for combination in forbidden if len(combination) == 1 for n in combination}
    order = sorted(part - never)
    at = {n: i for i, n in enumerate(order)}
    small = Pool(
        _atoms([pool.sets[n] for n in order]),
        [pool.values[n] for n in order],
        [frozenset(at[n] for n in known & part - never) for known in pool.known],
        [
            frozenset(at[n] for n in combination)
            for combination in forbidden
            if not combination & never
        ],
    )
    starts = [known for known in (*small.known, _greedy(small)) if small.allowed(known)]
    best = max(starts, key=lambda known: (small.value(known), sorted(known)))
    value = small.value(best)
    priced = set_packing_bound.bound(small.sets, small.values, best)
    limit = max(value, priced.limit)
    packed = Packed(best, limit, set_packing_bound.close(limit, value))
    if not packed.closed and time.monotonic() < deadline:
        packed = _searched(small, packed, priced.prices) or _solved(small, packed, deadline)
    return Packed(frozenset(order[n] for n in packed.chosen), packed.limit, packed.closed)


def _atoms(sets: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """The same sets with elements that always go together taken as one."""
    where: dict[int, list[int]] = {}
    for n, members in enumerate(sets):
        for e in members:
            where.setdefault(e, []).append(n)
    atoms = {tuple(numbers): atom for atom, numbers in enumerate(sorted(where.values()))}
    atom_sets: list[set[int]] = [set() for _ in sets]
    for numbers, atom in atoms.items():
        for n in numbers:
            atom_sets[n].add(atom)
    return [frozenset(members) for members in atom_sets]


def _greedy(pool: Pool) -> frozenset[int]:
    """The most valuable set, then the next that fits."""
    chosen: set[int] = set()
    covered: set[int] = set()
    for n in sorted(range(len(pool.sets)), key=lambda n: (-pool.values[n], n)):
        fits = not pool.sets[n] & covered and pool.allowed(frozenset({*chosen, n}))
        if fits:
            chosen.add(n)
            covered |= pool.sets[n]
    return frozenset(chosen)


def _searched(pool: Pool, known: Packed, prices: Mapping[int, float]) -> Packed | None:
    """The optimum where few branches find it."""
    best = set_packing_search.best(pool.sets, pool.values, pool.forbidden, known.chosen, prices)
    return None if best is None else Packed(best, pool.value(best), True)


def _solved(pool: Pool, known: Packed, deadline: float) -> Packed:
    """What CP-SAT makes of it in the time that is left, or what was known."""
    seconds_left = deadline - time.monotonic()
    if seconds_left <= 0:
        return known
    worth = [round(value * SCALE) for value in pool.values]
    answer = set_packing_solver.ask(pool.sets, worth, pool.forbidden, known.chosen, seconds_left)
    if answer is None:
        return known
    best = max((known.chosen, answer.chosen), key=lambda some: (pool.value(some), sorted(some)))
    if answer.optimal:
        return Packed(best, pool.value(best), True)
    bound = (answer.bound + len(pool.sets)) / SCALE
    return Packed(best, max(pool.value(best), min(known.limit, bound)), False)
