"""The exploring planner: candidates, then a beam (FusionStitching: Zheng et al. 2020, section 5).

1. Levels and their connected components as in planner_exhaustive.py; a component too large for a
search is cut into windows, between which values flow one way. Cells (cells.py) are the vertices. 2.
From consumers to producers each cell gets the `patterns` best sets that it produces for: itself
with nothing or a candidate of each consumer. Many consumers are halved, and the halves' results
combined (PatternReduction). A virtual producer of all gives the sets of cells that are not
connected (remote fusion). 3. A beam of `beams` partial plans takes disjoint candidates from
producers to consumers, none that makes kernels wait for each other. The delta-evaluator scores both
steps; the latency-evaluator (cost.py) picks among the plans that remain. 4. What is accepted,
merged and computed again is as in planner_exhaustive.py.

Where the paper drops a union that waits for something between its parts, here that comes along: the
least set without such paths is tried instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from stitchcore.fusion import cells, planner_exhaustive, planner_rules
from stitchcore.fusion.cells import Dag, Judge, Part, Window, bits
from stitchcore.fusion.horizontal import merged
from stitchcore.fusion.mechanisms import Mechanism
from stitchcore.fusion.pattern import Planner
from stitchcore.fusion.planner_rules import Choice, Key, Problem


@dataclass(frozen=True)
class ExploreOptions:
    """`patterns` kept per cell (the paper's k), partial plans kept (`beams`), consumers up to which
    all combinations are tried (`group`), and instructions of one search (`window`; ours: it bounds
    the work per instruction)."""

    patterns: int = 3
    beams: int = 3
    group: int = 2
    window: int = 8192


DEFAULTS = ExploreOptions()


def planner(options: ExploreOptions) -> Planner:
    """The exploring planner with these parameters."""

    def choose(problem: Problem) -> Choice:
        choice = packed(problem, options)
        return replace(choice, scopes=planner_rules.recomputed(problem, choice.scopes))

    return planner_rules.planner("explore", choose)


plan = planner(DEFAULTS)
"""The plan of a module with the paper's parameters."""


def packed(problem: Problem, options: ExploreOptions = DEFAULTS) -> Choice:
    """The chosen scopes before anything is computed again."""
    return searched(problem, options)[1]


def searched(
    problem: Problem, options: ExploreOptions = DEFAULTS
) -> tuple[list[tuple[Window, set[int]]], Choice]:
    """The candidates of every window that save something (none is accepted yet), and the chosen
    scopes before anything is computed again."""
    proposed: list[tuple[Window, set[int]]] = []
    sets: list[tuple[Key, tuple[int, ...]]] = []
    for key, members in windows(problem, options):
        window = cells.window(problem, members)
        saving, plans = _plans(window, options, Mechanism.REMOTE in problem.mechanisms)
        proposed.append((window, saving))
        for depth, chosen in _ordered(window, _cheapest(problem, window, plans)):
            sets.append(((*key, depth), window.members(chosen)))
    choice = planner_rules.accepted(problem, sets)
    return proposed, replace(choice, scopes=merged(problem, choice.scopes))


def windows(problem: Problem, options: ExploreOptions) -> Iterator[tuple[Key, tuple[int, ...]]]:
    """Components of levels, cut where they are larger than one search."""
    for level, members in planner_exhaustive.components(problem):
        pending: list[tuple[Key, tuple[int, ...]]] = [((level,), members)]
        while pending:
            key, part = pending.pop()
            if len(part) <= options.window:
                yield key, part
                continue
            first, second = problem.extractor.halves(part)
            pending += [((*key, 0), first), ((*key, 1), second)]


# ---- candidates --------------------------------------------------------------------------------
def candidates(dag: Dag, judge: Judge, options: ExploreOptions) -> list[list[Part]]:
    """The best sets of each cell, best first; each holds the cell and only what it reaches."""
    best: list[list[Part]] = [[] for _ in dag.consumers]
    for c in range(len(best) - 1, -1, -1):
        groups = [best[d] for d in bits(dag.consumers[c])]
        unions = reduction(cells.lone(dag, c), groups, judge, options)
        best[c] = _legal(unions, judge, options)
    return best


def remote(groups: Sequence[Sequence[Part]], judge: Judge, options: ExploreOptions) -> list[Part]:
    """The best unions of candidates of many cells: those of a virtual producer of all of them."""
    unions = reduction(Part(0, 0, 0, 0.0), groups, judge, options)
    return _legal([part for part in unions if part.cells], judge, options)


def reduction(
    base: Part, groups: Sequence[Sequence[Part]], judge: Judge, options: ExploreOptions
) -> list[Part]:
    """PatternReduction: the best unions of `base` with nothing or one set of each group. What lies
    between the parts of a union is not looked at before all consumers have been."""
    if len(groups) > options.group:
        half = len(groups) // 2
        parts = [reduction(base, some, judge, options) for some in (groups[:half], groups[half:])]
        return _top([cells.union(a, b, judge) for a in parts[0] for b in parts[1]], options)
    unions: list[Part | None] = [base]
    for group in groups:
        unions += [cells.union(union, part, judge) for union in unions if union for part in group]
    return _top(unions, options)


def _legal(parts: Sequence[Part], judge: Judge, options: ExploreOptions) -> list[Part]:
    return _top([cells.hull(part, judge) for part in parts], options)


def _top(parts: Sequence[Part | None], options: ExploreOptions) -> list[Part]:
    """The best distinct sets; of equal ones the smaller number, so that plans do not change."""
    distinct = {part.cells: part for part in parts if part is not None}
    return sorted(distinct.values(), key=_rank)[: options.patterns]


def _rank(part: Part) -> tuple[float, int]:
    return -part.saved, part.cells


# ---- the beam ----------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Partial:
    """Disjoint sets that can run one after the other, what they save, and the cells in them."""

    saved: float
    covered: int
    chosen: tuple[Part, ...]


def beam(choices: Iterable[Sequence[Part]], options: ExploreOptions) -> list[tuple[Part, ...]]:
    """The best plans, best first, each as disjoint sets that save something: at most one of each
    of `choices`, in their order."""
    partial = [_Partial(0.0, 0, ())]
    for parts in choices:
        grown = {state.covered: state for state in partial}
        for state in partial:
            for part in parts:
                if part.cells & state.covered or part.saved <= 0 or waits(part, state.chosen):
                    continue
                chosen = (*state.chosen, part)
                more = _Partial(state.saved + part.saved, state.covered | part.cells, chosen)
                known = grown.get(more.covered)
                if known is None or more.saved > known.saved:
                    grown[more.covered] = more
        partial = sorted(grown.values(), key=lambda state: (-state.saved, state.covered))
        partial = partial[: options.beams]
    return [state.chosen for state in partial]


def waits(part: Part, chosen: Sequence[Part]) -> bool:
    """Whether the kernel of `part` would wait for itself through some of `chosen`."""
    reached = part.down & ~part.cells
    remaining = list(chosen)
    while True:
        entered = [other for other in remaining if other.cells & reached]
        if not entered:
            return False
        remaining = [other for other in remaining if not other.cells & reached]
        for other in entered:
            reached |= other.down
        if reached & part.cells:
            return True


def _plans(
    window: Window, options: ExploreOptions, remote_fusion: bool
) -> tuple[set[int], list[list[int]]]:
    """The candidates that save something in one window, and the beam's plans, each complete with
    lone cells."""
    judge = cells.Delta(window).judge
    sets = candidates(window.dag, judge, options)
    starts = _starts(window) if remote_fusion else []
    virtual = remote([sets[c] for c in starts], judge, options)
    everything = (1 << len(window.cells)) - 1
    plans = []
    for chosen in beam((virtual, *sets), options):
        covered = sum(part.cells for part in chosen)
        alone = (1 << c for c in bits(everything & ~covered))
        plans.append([*(part.cells for part in chosen), *alone])
    return {p.cells for some in (virtual, *sets) for p in some if p.saved > 0}, plans


def _cheapest(problem: Problem, window: Window, plans: Sequence[list[int]]) -> list[int]:
    """The plan with the least seconds by cost.py."""
    if len(plans) == 1:
        return plans[0]
    seconds_of: dict[int, float] = {}
    for kernel in {kernel for kernels_of_plan in plans for kernel in kernels_of_plan}:
        pattern = problem.extractor.pattern(window.members(kernel))
        seconds_of[kernel] = problem.cost(pattern, problem.device).seconds
    return min(
        plans, key=lambda kernels_of_plan: sum(seconds_of[kernel] for kernel in kernels_of_plan)
    )


def _starts(window: Window) -> list[int]:
    """Cells that read nothing of the window, or large values that others read too."""

    def shared(key: cells.Key) -> bool:
        return key.maker < 0 and key.large and key.readers.bit_count() > 1

    return [
        c
        for c, cell in enumerate(window.cells)
        if all(window.keys[k].maker < 0 for k in cell.reads)
        or any(shared(window.keys[k]) for k in cell.reads)
    ]


def _ordered(window: Window, chosen: Sequence[int]) -> list[tuple[int, int]]:
    """(depth, set): every set deeper than those it reads; equally deep ones are independent."""
    owner = {c: n for n, kernel in enumerate(chosen) for c in bits(kernel)}
    readers_of: list[set[int]] = [set() for _ in chosen]
    waiting = [0] * len(chosen)
    for c, readers in enumerate(window.dag.consumers):
        for d in bits(readers):
            if owner[c] != owner[d] and owner[d] not in readers_of[owner[c]]:
                readers_of[owner[c]].add(owner[d])
                waiting[owner[d]] += 1
    depth = [0] * len(chosen)
    ready = [n for n, count in enumerate(waiting) if not count]
    for n in ready:
        for m in readers_of[n]:
            depth[m] = max(depth[m], depth[n] + 1)
            waiting[m] -= 1
            if not waiting[m]:
                ready.append(m)
    assert len(ready) == len(chosen), "chosen sets wait for each other"
    return list(zip(depth, chosen, strict=True))
