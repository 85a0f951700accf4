"""The exhaustive planner (AStitch: Zheng et al. 2022, section 4.1): scopes as large as possible.

1. Levels (levels.py) decide between which library calls each value is computed.
2. A scope is a maximal connected set of one level. Values read through shared large inputs
   connect too: one pass over memory serves both.
3. A scope that a resource rule, the scheduler or the estimate refuses is halved where least is
   carried over, again and again; an instruction refused alone becomes opaque and planning starts
   over without it (planner_rules.py).
4. Small scopes of one level do not depend on each other and are merged (horizontal.py), which saves
   their launches; so are scopes of a single instruction, whatever their size.
5. What a scope reads from earlier ones is computed again where that moves fewer bytes
   (recompute.py).

Every step is linear or n log n in the number of instructions.
"""

from __future__ import annotations

from dataclasses import replace

from stitchcore.fusion import planner_rules
from stitchcore.fusion.candidates import Role
from stitchcore.fusion.horizontal import merged
from stitchcore.fusion.mechanisms import Mechanism
from stitchcore.fusion.planner_rules import Choice, Problem

SHARED_INPUT_BYTES = 65536
"""Two scopes that both read an input at least this large become one."""


def choose(problem: Problem) -> Choice:
    """The chosen scopes, with what each computes again."""
    choice = packed(problem)
    return replace(choice, scopes=planner_rules.recomputed(problem, choice.scopes))


def packed(problem: Problem) -> Choice:
    """The chosen scopes before anything is computed again."""
    parts = components(problem)
    choice = planner_rules.accepted(problem, (((level,), members) for level, members in parts))
    return replace(choice, scopes=merged(problem, choice.scopes))


def components(problem: Problem) -> list[tuple[int, tuple[int, ...]]]:
    """(level, members) of the maximal connected sets of placed instructions of one level."""
    graph, level = problem.graph, problem.level
    remote = Mechanism.REMOTE in problem.mechanisms
    parent = list(range(len(graph.instructions)))

    def find(v: int) -> int:
        while parent[v] != v:
            parent[v] = parent[parent[v]]
            v = parent[v]
        return v

    shared: dict[tuple[int, int], int] = {}
    placed = graph.placed()
    for v in placed:
        for u in graph.reads[v]:
            if graph.roles[u] is Role.PLACED and level[u] == level[v]:
                parent[find(u)] = find(v)
            elif remote and graph.bytes[u] >= SHARED_INPUT_BYTES:
                first = shared.setdefault((u, level[v]), v)
                parent[find(first)] = find(v)
    groups: dict[int, list[int]] = {}
    for v in placed:
        groups.setdefault(find(v), []).append(v)
    ordered = sorted(groups.values())
    return [(level[members[0]], tuple(members)) for members in ordered]


plan = planner_rules.planner("exhaustive", choose)
"""The exhaustive plan of a module, with plans for the bodies of its loops and branches."""
