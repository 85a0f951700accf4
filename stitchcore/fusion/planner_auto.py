"""The cheapest of the three planners' plans by cost.py, for each computation of a module apart."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from stitchcore.device.records import Device
from stitchcore.fusion import planner_exact, planner_exhaustive, planner_explore
from stitchcore.fusion.mechanisms import ALL, Mechanisms
from stitchcore.fusion.pattern import CostFunction, Feasibility, Plan, Planner, Tried
from stitchcore.fusion.text import bodies
from stitchcore.hlo.ir.module import Module

CHOICES: Mapping[str, Planner] = {
    "exhaustive": planner_exhaustive.plan,
    "explore": planner_explore.plan,
    "exact": planner_exact.plan,
}
"""In the order in which one wins over equally good ones."""


def plan(
    module: Module,
    device: Device,
    cost: CostFunction,
    feasible: Feasibility,
    mechanisms: Mechanisms = ALL,
) -> Plan:
    """The least of all plans, with what each planner reached and the bound of `exact`."""
    plans: list[Plan] = []
    tried: list[Tried] = []
    for name, planner in CHOICES.items():
        start = time.perf_counter()
        candidate = planner(module, device, cost, feasible, mechanisms)
        took = time.perf_counter() - start
        plans.append(candidate)
        everything = [candidate, *bodies(candidate).values()]
        kernels = sum(len(part.patterns) for part in everything)
        tried.append(Tried(name, kernels, sum(part.planned.seconds for part in everything), took))
    return replace(_least(plans), tried=tuple(tried))


def _least(plans: Sequence[Plan]) -> Plan:
    """The cheapest plan of one computation, with the cheapest of each that it calls."""
    best = min(plans, key=lambda candidate: candidate.planned.seconds)
    nested = {body: _least([candidate.nested[body] for candidate in plans]) for body in best.nested}
    bound = next((candidate.bound for candidate in plans if candidate.bound is not None), None)
    return replace(best, planner="auto", nested=nested, bound=bound)
