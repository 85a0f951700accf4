"""The exact planner: a best choice from a pool of patterns.

FusionStitching first planned by an integer program (Long, Yang and Lin 2019, arXiv:1911.11576).

The pool is what the other planners chose and the explorer's candidates, beside every placed
instruction alone. A pattern is worth the seconds that it saves against its instructions alone by
cost.py; disjoint patterns worth most are a set packing (set_packing.py). What packing does not know
is checked afterwards and forbidden for the next search: patterns that wait for each other, and
patterns that the scheduler refuses (lazy cuts). Patterns of different levels cannot wait for each
other, so cycles are looked for in each level alone.

The plan is never worse than those of the other planners: where computing again (which comes after
the choice) or the time limit leaves it behind one of them, that one is the plan.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from stitchcore.fusion import planner_exhaustive, planner_explore, planner_rules, set_packing
from stitchcore.fusion.horizontal import merged
from stitchcore.fusion.pattern import Bound, Planner
from stitchcore.fusion.planner_rules import Choice, Problem, Scope

Members = tuple[int, ...]


@dataclass(frozen=True)
class ExactOptions:
    """`seconds` for the search of one computation, beyond what the other planners take."""

    seconds: float = 20.0


DEFAULTS = ExactOptions()


def planner(options: ExactOptions) -> Planner:
    """The exact planner with these limits."""
    return planner_rules.planner("exact", lambda problem: _choose(problem, options))


plan = planner(DEFAULTS)
"""The plan of a module with the default time limit."""


def _choose(problem: Problem, options: ExactOptions) -> Choice:
    others: dict[str, Choice] = {}
    searched, others["explore"] = planner_explore.searched(problem)
    others["exhaustive"] = planner_exhaustive.packed(problem)
    refused = {v: why for choice in others.values() for v, why in choice.refused.items()}
    if refused:
        return Choice((), refused)
    proposed = [
        partial(window.members, candidate)
        for window, saving in searched
        for candidate in sorted(saving)
    ]
    deadline = time.monotonic() + options.seconds
    scopes_ = {name: choice.scopes for name, choice in others.items()}
    search = _Search(problem, scopes_, proposed, deadline)
    packing = search.run()
    plans = [planner_rules.recomputed(problem, choice.scopes) for choice in others.values()]
    if packing is not None:
        plans.append(planner_rules.recomputed(problem, merged(problem, packing)))
    return Choice(min(reversed(plans), key=problem.seconds), {}, search.bound())


class _Search:
    """One packing problem, its cuts, and the best packing so far."""

    def __init__(
        self,
        problem: Problem,
        others: Mapping[str, Sequence[Scope]],
        proposed: Sequence[Callable[[], Members]],
        deadline: float,
    ) -> None:
        self._problem, self._deadline = problem, deadline
        self._alone = {v: problem.scope((problem.level[v],), [v]) for v in problem.graph.placed()}
        self._accepted = {s.members for scopes in others.values() for s in scopes}
        self._scopes: dict[Members, Scope] = {}
        self._value: dict[Members, float] = {}
        for members in self._accepted:
            self._add(members)
        self._missed = 0
        for n, candidate in enumerate(proposed):
            if time.monotonic() > deadline:
                self._missed = len(proposed) - n
                break
            self._add(candidate())
        self._order = list(self._scopes)
        number = {members: n for n, members in enumerate(self._order)}
        self._known = {
            name: frozenset(number[s.members] for s in scopes if s.members in number)
            for name, scopes in others.items()
        }
        self._sets = [frozenset(members) for members in self._order]
        self._values = [self._value[members] for members in self._order]
        self._values_of_others = {
            name: sum(self._values[n] for n in some) for name, some in self._known.items()
        }
        self._forbidden: set[frozenset[int]] = set()
        self._best = max(self._values_of_others.values(), default=0.0)
        self._limit = float("inf")
        self._closed = False
        self._rounds = 0

    def _add(self, members: Members) -> None:
        if len(members) == 1 or members in self._scopes:
            return
        scope = self._problem.scope((self._problem.level[members[0]],), members)
        apart = self._problem.seconds(self._alone[v] for v in members)
        value = apart - self._problem.seconds([scope])
        if value > 0:
            self._scopes[members], self._value[members] = scope, value

    def bound(self) -> Bound:
        """What was proved, whether or not a packing was found in time."""
        limit = max(self._limit, self._best)
        size = len(self._scopes) + len(self._alone)
        closed = self._closed and not self._missed
        return Bound(
            size, self._best, limit, closed, self._rounds, self._values_of_others, self._missed
        )

    def run(self) -> list[Scope] | None:
        """The best packing that can run, complete with lone instructions; None where the time was
        over before one was better than the other planners', or one that it leaves alone can only
        run in company, as the other planners have it."""
        memory: dict[object, set_packing.Packed] = {}
        known = list(self._known.values())
        while True:
            self._rounds += 1
            pool = set_packing.Pool(self._sets, self._values, known, frozenset(self._forbidden))
            packed = set_packing.pack(pool, self._deadline, memory)
            self._limit = min(self._limit, packed.limit)
            scopes = self._checked(sorted(packed.chosen))
            if scopes is not None and self._refused_alone(scopes):
                return None
            if scopes is not None:
                self._best = max(self._best, pool.value(packed.chosen))
                self._closed = packed.closed
                return scopes
            if time.monotonic() > self._deadline:
                return None

    def _refused_alone(self, scopes: Sequence[Scope]) -> bool:
        """Whether the scheduler refuses an instruction that is left alone, which no set's
        acceptance has told."""
        lone = [scope.pattern for scope in scopes if len(scope.members) == 1]
        return any(self._problem.accept(pattern) is not None for pattern in lone)

    def _checked(self, numbers: Sequence[int]) -> list[Scope] | None:
        """The packing as scopes in a runnable order; None, and cuts, where it is none."""
        cuts: set[frozenset[int]] = set()
        chosen = {self._order[n]: n for n in numbers}
        for members, n in chosen.items():
            if members in self._accepted:
                continue
            if self._problem.accept(self._scopes[members].pattern) is None:
                self._accepted.add(members)
            else:
                cuts.add(frozenset((n,)))
        covered = {v for members in chosen for v in members}
        levels: dict[int, list[Members]] = {}
        for members in (*chosen, *((v,) for v in self._alone if v not in covered)):
            levels.setdefault(self._problem.level[members[0]], []).append(members)
        scopes: list[Scope] = []
        for level, sets in levels.items():
            depth, cycle = ordered(sets, self._problem.graph.reads)
            if cycle:
                cuts.add(frozenset(chosen[members] for members in cycle if members in chosen))
            for members, deep in depth.items():
                scope = self._scopes[members] if members in chosen else self._alone[members[0]]
                scopes.append(replace(scope, key=(level, deep)))
        self._forbidden |= cuts
        return None if cuts else scopes


def ordered(
    sets: Sequence[Members], reads: Sequence[Sequence[int]]
) -> tuple[dict[Members, int], list[Members]]:
    """The depth of each set among those it reads, or the sets of a cycle (without the others)."""
    owner = {v: n for n, members in enumerate(sets) for v in members}
    before = [
        sorted({owner[u] for v in members for u in reads[v] if u in owner} - {n})
        for n, members in enumerate(sets)
    ]
    waiting = [len(sources) for sources in before]
    readers: list[list[int]] = [[] for _ in sets]
    for n, sources in enumerate(before):
        for m in sources:
            readers[m].append(n)
    depth = [0] * len(sets)
    ready = [n for n, count in enumerate(waiting) if not count]
    for n in ready:
        for m in readers[n]:
            depth[m] = max(depth[m], depth[n] + 1)
            waiting[m] -= 1
            if not waiting[m]:
                ready.append(m)
    if len(ready) == len(sets):
        return dict(zip(sets, depth, strict=True)), []
    step = next(n for n, count in enumerate(waiting) if count)
    path: list[int] = []
    while step not in path:
        path.append(step)
        step = next(m for m in before[step] if waiting[m])
    return {}, [sets[n] for n in path[path.index(step) :]]
