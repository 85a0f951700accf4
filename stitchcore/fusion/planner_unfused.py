"""One kernel for each instruction that does work: what no stitching costs, to measure against."""

from __future__ import annotations

from stitchcore.fusion import planner_rules
from stitchcore.fusion.planner_rules import Choice, Problem

NAME = "single"


def choose(problem: Problem) -> Choice:
    """A scope for each position; keys follow their order, which is topological."""
    sets = (((problem.level[v], v), (v,)) for v in problem.graph.placed())
    return planner_rules.accepted(problem, sets)


plan = planner_rules.planner(NAME, choose)
"""Every placed instruction of a module alone, and of its loops' and branches' bodies."""
