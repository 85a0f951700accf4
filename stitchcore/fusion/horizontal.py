"""Remote stitching: small kernels of one level that do not depend on each other become one.

It saves their launches. FusionStitching calls it kernel packing and AStitch remote stitching; all
planners end with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from stitchcore.fusion.mechanisms import Mechanism
from stitchcore.fusion.planner_rules import BUFFER_LIMIT, INSTRUCTION_LIMIT, Key, Problem, Scope

MERGE_LAUNCHES = 8
"""Patterns estimated below this many launches are merged with others of their level."""


def merged(problem: Problem, scopes: Sequence[Scope]) -> list[Scope]:
    """Small scopes with equal keys joined; they cannot depend on each other."""
    if Mechanism.REMOTE not in problem.mechanisms:
        return list(scopes)
    limit = MERGE_LAUNCHES * problem.device.launch_seconds
    small: dict[Key, list[Scope]] = {}
    scopes_out: list[Scope] = []
    for scope in scopes:
        if problem.cost(scope.pattern, problem.device).seconds <= limit:
            small.setdefault(scope.key, []).append(scope)
        else:
            scopes_out.append(scope)
    for group in small.values():
        for batch in _batches(group):
            scopes_out += _joined(problem, batch)
    return _in_company(problem, scopes_out)


def _in_company(problem: Problem, scopes: Sequence[Scope]) -> list[Scope]:
    """Lone instructions of one level joined, or a single one with the cheapest scope there is."""
    lone: dict[Key, list[Scope]] = {}
    others: dict[Key, list[Scope]] = {}
    for scope in scopes:
        (lone if len(scope.members) == 1 else others).setdefault(scope.key, []).append(scope)
    merged_scopes: list[Scope] = []
    for key, group in lone.items():
        company = others.get(key, [])
        if len(group) == 1 and company:
            host = min(company, key=lambda s: (problem.seconds([s]), s.members))
            company.remove(host)
            group.append(host)
        for batch in _batches(group):
            merged_scopes += _joined(problem, batch)
    return merged_scopes + [scope for group in others.values() for scope in group]


def _joined(problem: Problem, batch: list[Scope]) -> list[Scope]:
    """One scope of all, or the batch as it is where that is refused."""
    if len(batch) == 1:
        return batch
    joined = problem.scope(batch[0].key, (v for scope in batch for v in scope.members))
    return [joined] if problem.accept(joined.pattern) is None else batch


def _batches(group: list[Scope]) -> list[list[Scope]]:
    """Consecutive scopes within the resource rules."""
    batches: list[list[Scope]] = []
    instructions = buffers = 0
    for scope in group:
        pattern = scope.pattern
        added = len(pattern.inputs) + len(pattern.outputs)
        instructions += len(pattern.instructions)
        buffers += added
        if not batches or instructions > INSTRUCTION_LIMIT // 4 or buffers > BUFFER_LIMIT // 4:
            batches.append([])
            instructions, buffers = len(pattern.instructions), added
        batches[-1].append(scope)
    return batches
