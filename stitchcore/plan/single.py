"""One kernel for each instruction that does work: what no stitching costs, to measure against."""

from __future__ import annotations

from stitchcore.device.records import Device
from stitchcore.errors import Reason
from stitchcore.hlo.instruction import Instruction
from stitchcore.hlo.module import Module
from stitchcore.plan import candidates, extract
from stitchcore.plan.exhaustive import assembled
from stitchcore.plan.pattern import CostFunction, Feasibility, Plan

NAME = "single"


def plan(module: Module, device: Device, cost: CostFunction, feasible: Feasibility) -> Plan:
    """Every placed instruction alone; one that cannot be scheduled alone is opaque."""
    excluded: dict[Instruction, tuple[Reason, str]] = {}
    while True:
        graph = candidates.build(module, excluded)
        extractor = extract.Extractor(graph)
        patterns = [extractor.pattern((v,)) for v in graph.placed()]
        refused = {
            pattern.outputs[0]: (refusal.reason, refusal.detail)
            for pattern in patterns
            if (refusal := feasible(pattern, device)) is not None
        }
        if not refused:
            break
        excluded |= refused
    nested = {body.entry: plan(body, device, cost, feasible) for body in candidates.bodies(graph)}
    return assembled(graph, tuple(patterns), device, cost, NAME, nested)
