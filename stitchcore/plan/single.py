"""One kernel for each instruction that does work: what no stitching costs, to measure against."""

from __future__ import annotations

from stitchcore.device.records import Device
from stitchcore.hlo.module import Module
from stitchcore.plan import scopes
from stitchcore.plan.pattern import CostFunction, Feasibility, Plan
from stitchcore.plan.scopes import Choice, Problem

NAME = "single"


def plan(module: Module, device: Device, cost: CostFunction, feasible: Feasibility) -> Plan:
    """Every placed instruction of `module` alone, and of its loops' and branches' bodies."""
    return scopes.plan(module, device, cost, feasible, NAME, choose)


def choose(given: Problem) -> Choice:
    """A scope for each position; keys follow their order, which is topological."""
    sets = (((given.level[v], v), (v,)) for v in given.graph.placed())
    return scopes.accepted(given, sets)
