"""One kernel for each instruction that does work: what no stitching costs, to measure against."""

from __future__ import annotations

from stitchcore.device.records import Device
from stitchcore.fusion import planner_rules
from stitchcore.fusion.pattern import CostFunction, Feasibility, Plan
from stitchcore.fusion.planner_rules import Choice, Problem
from stitchcore.hlo.ir.module import Module

NAME = "single"


def plan(module: Module, device: Device, cost: CostFunction, feasible: Feasibility) -> Plan:
    """Every placed instruction of `module` alone, and of its loops' and branches' bodies."""
    return planner_rules.plan(module, device, cost, feasible, NAME, choose)


def choose(problem: Problem) -> Choice:
    """A scope for each position; keys follow their order, which is topological."""
    sets = (((problem.level[v], v), (v,)) for v in problem.graph.placed())
    return planner_rules.accepted(problem, sets)
