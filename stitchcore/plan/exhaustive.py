"""The exhaustive planner (AStitch 2022, papers.md 3.4): scopes as large as possible, then rules.

1. Levels (levels.py) decide between which library calls each value is computed.
2. A scope is a maximal connected set of one level. Values read through shared large inputs
   connect too: one pass over memory serves both.
3. A scope that a resource rule, the scheduler or the estimate refuses is halved where least is
   carried over, again and again; an instruction refused alone becomes opaque and planning starts
   over without it.
4. Small scopes of one level do not depend on each other and are merged (remote stitching), which
   saves their launches; so are scopes of a single instruction, whatever their size.
5. What a scope reads from earlier ones is computed again where that moves fewer bytes
   (recompute.py).

Every step is linear or n log n in the number of instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stitchcore.device.records import Device
from stitchcore.errors import Reason, Refusal
from stitchcore.hlo.instruction import Computation, Instruction
from stitchcore.hlo.module import Module
from stitchcore.hlo.print import names
from stitchcore.plan import candidates, extract, levels, recompute
from stitchcore.plan.candidates import Graph, Role
from stitchcore.plan.cost import apart, total, unfused
from stitchcore.plan.pattern import CostFunction, Feasibility, Pattern, Plan

INSTRUCTION_LIMIT = 3000
"""Largest pattern: compile time and code size grow with it, the gain does not."""

BUFFER_LIMIT = 512
"""Most inputs and outputs of a kernel; beyond, the launch table costs what a launch saves."""

MERGE_LAUNCHES = 8
"""Patterns estimated below this many launches are merged with others of their level."""

SHARED_INPUT_BYTES = 65536
"""Two scopes that both read an input at least this large become one."""

ROUNDS = 12
"""How often planning may start over with newly refused instructions."""

Key = tuple[int, ...]
"""Sorts patterns so that every dependence goes from a smaller key to a larger one."""


@dataclass(frozen=True)
class _Scope:
    """A set of placed positions (ascending) that may become one kernel."""

    key: Key
    members: tuple[int, ...]
    pattern: Pattern


def plan(module: Module, device: Device, cost: CostFunction, feasible: Feasibility) -> Plan:
    """The exhaustive plan of `module`, with plans for the bodies of its loops and branches."""
    excluded: dict[Instruction, tuple[Reason, str]] = {}
    for _ in range(ROUNDS):
        graph = candidates.build(module, excluded)
        accept = _acceptance(graph, device, cost, feasible)
        scopes, refused = _scopes(graph, device, cost, accept)
        if not refused:
            break
        excluded |= refused
    else:
        left = {graph.instructions[v]: (Reason.STEP_LIMIT, "") for v in graph.placed()}
        graph = candidates.build(module, excluded | left)
        scopes = []
    patterns = tuple(scope.pattern for scope in sorted(scopes, key=lambda scope: scope.key))
    nested = {body.entry: plan(body, device, cost, feasible) for body in candidates.bodies(graph)}
    return assembled(graph, patterns, device, cost, "exhaustive", nested)


def assembled(
    graph: Graph,
    patterns: tuple[Pattern, ...],
    device: Device,
    cost: CostFunction,
    planner: str,
    nested: Mapping[Computation, Plan],
) -> Plan:
    """The plan of `patterns`, which are in a runnable order."""
    opaque = tuple(
        instruction
        for v, instruction in enumerate(graph.instructions)
        if graph.roles[v] is Role.OPAQUE
    )
    name = names(graph.module)
    refusals = tuple(
        Refusal(name.get(graph.instructions[v], "?"), reason, detail)
        for v, (reason, detail) in graph.reasons.items()
    )
    before = unfused((graph.instructions[v] for v in graph.placed()), device)
    after = total(cost(pattern, device) for pattern in patterns)
    return Plan(
        graph.module,
        patterns,
        opaque,
        refusals,
        before,
        after,
        planner,
        nested,
    )


Acceptance = Callable[[Pattern], Refusal | None]


def _acceptance(
    graph: Graph, device: Device, cost: CostFunction, feasible: Feasibility
) -> Acceptance:
    def accept(pattern: Pattern) -> Refusal | None:
        if len(pattern.instructions) > INSTRUCTION_LIMIT:
            return Refusal("pattern", Reason.TOO_MANY_BUFFERS, "too many instructions")
        if len(pattern.inputs) + len(pattern.outputs) > BUFFER_LIMIT:
            return Refusal("pattern", Reason.TOO_MANY_BUFFERS, "too many buffers")
        refusal = feasible(pattern, device)
        if refusal is not None:
            return refusal
        placed = [
            instruction
            for instruction in pattern.instructions
            if graph.roles[graph.position[instruction]] is Role.PLACED
        ]
        whole = cost(pattern, device)
        if len(placed) > 1 and whole.seconds > apart(placed, device, whole):
            return Refusal("pattern", Reason.NOT_PROFITABLE, "slower than its parts")
        return None

    return accept


def _scopes(
    graph: Graph, device: Device, cost: CostFunction, accept: Acceptance
) -> tuple[list[_Scope], dict[Instruction, tuple[Reason, str]]]:
    """Accepted scopes, and instructions that no kernel can hold even alone."""
    of = levels.assign(graph).of
    extractor = extract.Extractor(graph)
    ready: list[_Scope] = []
    refused: dict[Instruction, tuple[Reason, str]] = {}
    for level, members in _components(graph, of):
        work: list[tuple[Key, tuple[int, ...]]] = [((level,), members)]
        while work:
            key, part = work.pop()
            pattern = extractor.pattern(part)
            refusal = accept(pattern)
            if refusal is None:
                ready.append(_Scope(key, part, pattern))
            elif len(part) == 1:
                instruction = graph.instructions[part[0]]
                refused[instruction] = (refusal.reason, refusal.detail)
            else:
                first, second = extractor.halves(part)
                work += [((*key, 0), first), ((*key, 1), second)]
    if refused:
        return [], refused
    merged = _merged(graph, ready, device, cost, accept, extractor)
    return _recomputed(graph, merged, device, accept, extractor), {}


def _recomputed(
    graph: Graph,
    scopes: list[_Scope],
    device: Device,
    accept: Acceptance,
    extractor: extract.Extractor,
) -> list[_Scope]:
    """Scopes that compute again what is dearer to read. A scope whose new pattern is refused keeps
    its old one; outputs follow from what the others then read."""
    ordered = sorted(scopes, key=lambda scope: scope.key)
    parts = recompute.improve(
        graph, [recompute.Part(scope.members) for scope in ordered], extractor, device
    )
    for _ in range(2):
        read = {v for part in parts for v in extractor.closure(part.members, part.extras)[1]}
        patterns = [extractor.pattern(part.members, part.extras, read) for part in parts]
        refused = [
            number
            for number, (scope, pattern) in enumerate(zip(ordered, patterns, strict=True))
            if pattern != scope.pattern and accept(pattern) is not None
        ]
        if not refused:
            return [
                _Scope(scope.key, scope.members, pattern)
                for scope, pattern in zip(ordered, patterns, strict=True)
            ]
        for number in refused:
            parts[number] = recompute.Part(ordered[number].members)
    return ordered


def _components(graph: Graph, level: Sequence[int]) -> list[tuple[int, tuple[int, ...]]]:
    """(level, members) of the maximal connected sets of placed instructions of one level."""
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
            elif graph.bytes[u] >= SHARED_INPUT_BYTES:
                first = shared.setdefault((u, level[v]), v)
                parent[find(first)] = find(v)
    groups: dict[int, list[int]] = {}
    for v in placed:
        groups.setdefault(find(v), []).append(v)
    ordered = sorted(groups.values())
    return [(level[members[0]], tuple(members)) for members in ordered]


def _merged(
    graph: Graph,
    scopes: list[_Scope],
    device: Device,
    cost: CostFunction,
    accept: Acceptance,
    extractor: extract.Extractor,
) -> list[_Scope]:
    """Remote stitching: small scopes with equal keys cannot depend on each other."""
    limit = MERGE_LAUNCHES * device.launch_seconds
    small: dict[Key, list[_Scope]] = {}
    kept: list[_Scope] = []
    for scope in scopes:
        if cost(scope.pattern, device).seconds <= limit:
            small.setdefault(scope.key, []).append(scope)
        else:
            kept.append(scope)
    for group in small.values():
        for batch in _batches(group):
            kept += _joined(batch, accept, extractor)
    return _in_company(kept, device, cost, accept, extractor)


def _in_company(
    scopes: list[_Scope],
    device: Device,
    cost: CostFunction,
    accept: Acceptance,
    extractor: extract.Extractor,
) -> list[_Scope]:
    """Lone instructions of one level joined, or a single one with the cheapest scope there is."""
    lone: dict[Key, list[_Scope]] = {}
    others: dict[Key, list[_Scope]] = {}
    for scope in scopes:
        (lone if len(scope.members) == 1 else others).setdefault(scope.key, []).append(scope)
    done: list[_Scope] = []
    for key, group in lone.items():
        company = others.get(key, [])
        if len(group) == 1 and company:
            host = min(company, key=lambda s: (cost(s.pattern, device).seconds, s.members))
            company.remove(host)
            group.append(host)
        for batch in _batches(group):
            done += _joined(batch, accept, extractor)
    return done + [scope for group in others.values() for scope in group]


def _joined(batch: list[_Scope], accept: Acceptance, extractor: extract.Extractor) -> list[_Scope]:
    """One scope of all, or the batch as it is where that is refused."""
    if len(batch) == 1:
        return batch
    members = tuple(sorted(v for scope in batch for v in scope.members))
    pattern = extractor.pattern(members)
    return [_Scope(batch[0].key, members, pattern)] if accept(pattern) is None else batch


def _batches(group: list[_Scope]) -> list[list[_Scope]]:
    """Consecutive scopes within the resource rules."""
    batches: list[list[_Scope]] = []
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
