"""The exploring planner (FusionStitching 2020, papers.md section 2): candidates, then a beam.

1. Levels and their connected components as in exhaustive.py; a component too large for a search is
   cut into windows, between which values flow one way. Cells (cells.py) are the vertices.
2. From consumers to producers each cell gets the `patterns` best sets that it produces for: itself
   with nothing or a candidate of each consumer. Many consumers are halved, and the halves' results
   combined (PatternReduction). A virtual producer of all gives the sets of cells that are not
   connected (remote fusion).
3. A beam of `beams` partial plans takes disjoint candidates from producers to consumers, none that
   makes kernels wait for each other. The delta-evaluator scores both steps; the latency-evaluator
   (cost.py) picks among the plans that remain.
4. What is accepted, merged and computed again is as in exhaustive.py.

Where the paper drops a union that waits for something between its parts, here that comes along: the
least set without such paths is tried instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from stitchcore.device.records import Device
from stitchcore.hlo.module import Module
from stitchcore.plan import cells, exhaustive, scopes
from stitchcore.plan.cells import Dag, Window, bits
from stitchcore.plan.merging import merged
from stitchcore.plan.pattern import CostFunction, Feasibility, Plan, Planner
from stitchcore.plan.scopes import Choice, Key, Problem

Score = Callable[[int], float | None]
"""Seconds a set of cells saves as one kernel; None where it cannot be one. Memoised."""


@dataclass(frozen=True)
class ExploreOptions:
    """`patterns` kept per cell (the paper's k), partial plans kept (`beams`), consumers up to which
    all combinations are tried (`group`), and instructions of one search (`window`; ours: it bounds
    the work per instruction)."""

    patterns: int = 3
    beams: int = 3
    group: int = 2
    window: int = 512


DEFAULTS = ExploreOptions()


def plan(module: Module, device: Device, cost: CostFunction, feasible: Feasibility) -> Plan:
    """The plan of `module` with the paper's parameters."""
    return planner(DEFAULTS)(module, device, cost, feasible)


def planner(options: ExploreOptions) -> Planner:
    """The exploring planner with other parameters."""

    def explore(
        module: Module, device: Device, cost: CostFunction, feasible: Feasibility
    ) -> Plan:
        def choose(given: Problem) -> Choice:
            choice = packed(given, options)
            return replace(choice, scopes=scopes.recomputed(given, choice.scopes))

        return scopes.plan(module, device, cost, feasible, "explore", choose)

    return explore


def packed(given: Problem, options: ExploreOptions = DEFAULTS) -> Choice:
    """The chosen scopes before anything is computed again."""
    sets: list[tuple[Key, tuple[int, ...]]] = []
    for key, members in windows(given, options):
        found = cells.window(given, members)
        for depth, chosen in _ordered(found, _best(given, found, options)):
            sets.append(((*key, depth), found.members(chosen)))
    choice = scopes.accepted(given, sets)
    return replace(choice, scopes=merged(given, choice.scopes))


def windows(given: Problem, options: ExploreOptions) -> Iterator[tuple[Key, tuple[int, ...]]]:
    """Components of levels, cut where they are larger than one search."""
    for level, members in exhaustive.components(given.graph, given.level):
        work: list[tuple[Key, tuple[int, ...]]] = [((level,), members)]
        while work:
            key, part = work.pop()
            if len(part) <= options.window:
                yield key, part
                continue
            first, second = given.extractor.halves(part)
            work += [((*key, 0), first), ((*key, 1), second)]


# ---- candidates --------------------------------------------------------------------------------
def candidates(dag: Dag, score: Score, options: ExploreOptions) -> list[tuple[int, ...]]:
    """The best sets of each cell, best first; each holds the cell and only what it reaches."""
    found: list[tuple[int, ...]] = [()] * len(dag.consumers)
    for c in range(len(found) - 1, -1, -1):
        consumers = list(bits(dag.consumers[c]))
        sets = reduction(1 << c, [found[d] for d in consumers], score, options)
        found[c] = _legal(dag, sets, score, options)
    return found


def remote(
    dag: Dag,
    found: Sequence[tuple[int, ...]],
    starts: Sequence[int],
    score: Score,
    options: ExploreOptions,
) -> tuple[int, ...]:
    """The best unions of candidates of `starts`: those of a virtual producer of all of them."""
    sets = reduction(0, [found[c] for c in starts], score, options)
    return _legal(dag, (cells for cells in sets if cells), score, options)


def reduction(
    base: int, groups: Sequence[Sequence[int]], score: Score, options: ExploreOptions
) -> list[int]:
    """PatternReduction: the best unions of `base` with nothing or one set of each group. What lies
    between the parts of a union is not looked at before all consumers have been."""
    if len(groups) > options.group:
        half = len(groups) // 2
        parts = [
            reduction(base, some, score, options) for some in (groups[:half], groups[half:])
        ]
        return _top((a | b for a in parts[0] for b in parts[1]), score, options.patterns)
    unions = [base]
    for group in groups:
        unions += [union | some for union in unions for some in group]
    return _top(unions, score, options.patterns) if groups else unions


def _legal(
    dag: Dag, sets: Iterable[int], score: Score, options: ExploreOptions
) -> tuple[int, ...]:
    return tuple(_top((dag.hull(cells) for cells in sets), score, options.patterns))


def _top(sets: Iterable[int], score: Score, count: int) -> list[int]:
    """The best distinct sets; of equal ones the smaller number, so that plans do not change."""
    scored = [(value, cells) for cells in set(sets) if (value := score(cells)) is not None]
    return [cells for _, cells in sorted(scored, key=lambda one: (-one[0], one[1]))[:count]]


# ---- the beam ----------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Partial:
    """Disjoint sets that can run one after the other, what they save, and the cells in them."""

    saved: float
    covered: int
    chosen: tuple[int, ...]


def beam(
    dag: Dag,
    found: Sequence[Sequence[int]],
    virtual: Sequence[int],
    score: Score,
    options: ExploreOptions,
) -> list[tuple[int, ...]]:
    """The best plans, best first, each as disjoint sets of two or more cells."""
    partial = [_Partial(0.0, 0, ())]
    for choices in (virtual, *found):
        grown = {one.covered: one for one in partial}
        for one in partial:
            for cells in choices:
                saved = score(cells)
                if cells & one.covered or not saved or saved <= 0:
                    continue
                if waits(dag, cells, one.chosen):
                    continue
                more = _Partial(one.saved + saved, one.covered | cells, (*one.chosen, cells))
                known = grown.get(more.covered)
                if known is None or more.saved > known.saved:
                    grown[more.covered] = more
        partial = sorted(grown.values(), key=lambda one: (-one.saved, one.chosen))
        partial = partial[: options.beams]
    return [one.chosen for one in partial]


def waits(dag: Dag, cells: int, chosen: Sequence[int]) -> bool:
    """Whether a kernel of `cells` would wait for itself through one of `chosen`."""
    reached = dag.down(cells) & ~cells
    left = list(chosen)
    while True:
        entered = [one for one in left if one & reached]
        if not entered:
            return False
        left = [one for one in left if not one & reached]
        for one in entered:
            reached |= dag.down(one)
        if reached & cells:
            return True


def _best(given: Problem, found: Window, options: ExploreOptions) -> list[int]:
    """The cheapest by cost.py of the beam's plans of one window, complete with lone cells."""
    score = saving(found)
    sets = candidates(found.dag, score, options)
    virtual = remote(found.dag, sets, _starts(found), score, options)
    everything = (1 << len(found.cells)) - 1
    plans = []
    for chosen in beam(found.dag, sets, virtual, score, options):
        alone = everything & ~sum(chosen)
        plans.append([*chosen, *(1 << c for c in bits(alone))])
    if len(plans) == 1:
        return plans[0]
    kernels: dict[int, float] = {}
    for cells_ in {one for several in plans for one in several}:
        pattern = given.extractor.pattern(found.members(cells_))
        kernels[cells_] = given.cost(pattern, given.device).seconds
    return min(plans, key=lambda several: sum(kernels[one] for one in several))


def saving(found: Window) -> Score:
    """The delta-evaluator of a window."""
    alone = [found.seconds(1 << c) for c in range(len(found.cells))]
    known: dict[int, float | None] = {0: 0.0}

    def score(cells: int) -> float | None:
        if cells not in known:
            whole = found.seconds(cells)
            apart = sum(alone[c] or 0.0 for c in bits(cells))
            known[cells] = None if whole is None else apart - whole
        return known[cells]

    return score


def _starts(found: Window) -> list[int]:
    """Cells that read nothing of the window, or a value that several read and that is large."""
    readers: dict[int, int] = {}
    for cell in found.cells:
        for position, _ in cell.reads:
            readers[position] = readers.get(position, 0) + 1
    return [
        c
        for c, cell in enumerate(found.cells)
        if not any(position in found.made for position, _ in cell.reads)
        or any(
            readers[position] > 1
            and position not in found.made
            and found.sizes[position] >= exhaustive.SHARED_INPUT_BYTES
            for position, _ in cell.reads
        )
    ]


def _ordered(found: Window, chosen: Sequence[int]) -> list[tuple[int, int]]:
    """(depth, set): every set deeper than those it reads; equally deep ones are independent."""
    owner = {c: n for n, cells_ in enumerate(chosen) for c in bits(cells_)}
    after: list[set[int]] = [set() for _ in chosen]
    waiting = [0] * len(chosen)
    for c, readers in enumerate(found.dag.consumers):
        for d in bits(readers):
            if owner[c] != owner[d] and owner[d] not in after[owner[c]]:
                after[owner[c]].add(owner[d])
                waiting[owner[d]] += 1
    depth = [0] * len(chosen)
    ready = [n for n, count in enumerate(waiting) if not count]
    for n in ready:
        for m in after[n]:
            depth[m] = max(depth[m], depth[n] + 1)
            waiting[m] -= 1
            if not waiting[m]:
                ready.append(m)
    assert len(ready) == len(chosen), "chosen sets wait for each other"
    return list(zip(depth, chosen, strict=True))
