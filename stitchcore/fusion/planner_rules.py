"""What all planners share: one round of planning as data, the rules a kernel must pass, and the
road from chosen sets of instructions to a Plan.

`planner` makes one of a function `choose(problem) -> Choice`. Instructions that no kernel can hold
even alone come back in `Choice.refused`; planning then starts over with these opaque.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from stitchcore.device.records import Device
from stitchcore.errors import Reason, Refusal
from stitchcore.fusion import candidates, levels, pattern_from_set, recompute
from stitchcore.fusion.candidates import Graph, Role
from stitchcore.fusion.cost import terms, total, unfused
from stitchcore.fusion.mechanisms import ALL, Mechanism, Mechanisms
from stitchcore.fusion.pattern import Bound, CostFunction, Feasibility, Pattern, Plan, Planner
from stitchcore.hlo.ir.instruction import Computation, Instruction
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.text.printer import names

INSTRUCTION_LIMIT = 3000
"""Largest pattern: compile time and code size grow with it, the gain does not."""

BUFFER_LIMIT = 512
"""Most inputs and outputs of a kernel; beyond, the launch table costs what a launch saves."""

BARRIERS = 0.02
"""Share of a plan's time that is spent at grid barriers from which one without them is looked for;
the estimate errs by more than less."""

ROUNDS = 12
"""How often planning may start over with newly refused instructions."""

Key = tuple[int, ...]
"""Sorts patterns so that every dependence goes from a smaller key to a larger one; the first part
is the level. Scopes with equal keys do not depend on each other."""

Why = tuple[Reason, str]
Acceptance = Callable[[Pattern], Refusal | None]


@dataclass(frozen=True)
class Scope:
    """A set of placed positions (ascending) that may become one kernel."""

    key: Key
    members: tuple[int, ...]
    pattern: Pattern


@dataclass(frozen=True)
class Problem:
    """One round of planning: the graph, each position's level, who judges a pattern, and what
    planners may do."""

    graph: Graph
    level: tuple[int, ...]
    extractor: pattern_from_set.Extractor
    device: Device
    cost: CostFunction
    accept: Acceptance
    mechanisms: Mechanisms = ALL

    def seconds(self, scopes: Iterable[Scope]) -> float:
        """Of the scopes' kernels one after the other."""
        return sum(self.cost(scope.pattern, self.device).seconds for scope in scopes)

    def scope(self, key: Key, members: Iterable[int]) -> Scope:
        """The scope of `members`, in any order."""
        ordered = tuple(sorted(members))
        return Scope(key, ordered, self.extractor.pattern(ordered))


@dataclass(frozen=True)
class Choice:
    """What a planner chose: every placed position in exactly one scope, or why some cannot be."""

    scopes: Sequence[Scope]
    refused: Mapping[Instruction, Why] = field(default_factory=dict)
    bound: Bound | None = None


def problem(
    module: Module,
    excluded: Mapping[Instruction, Why],
    device: Device,
    cost: CostFunction,
    feasible: Feasibility,
    mechanisms: Mechanisms = ALL,
) -> Problem:
    """A round of planning `module` with the `excluded` instructions opaque."""
    graph = candidates.build(module, excluded)
    accept = _acceptance(graph, device, cost, feasible)
    extractor = pattern_from_set.Extractor(graph)
    level = levels.assign(graph, mechanisms).of
    return Problem(graph, level, extractor, device, cost, accept, mechanisms)


def planner(name: str, choose: Callable[[Problem], Choice]) -> Planner:
    """The planner that makes the choices of `choose` in a module and in each body of its loops and
    branches."""

    def plan(
        module: Module,
        device: Device,
        cost: CostFunction,
        feasible: Feasibility,
        mechanisms: Mechanisms = ALL,
    ) -> Plan:
        excluded: dict[Instruction, Why] = {}
        for _ in range(ROUNDS):
            current = problem(module, excluded, device, cost, feasible, mechanisms)
            choice = choose(current)
            if not choice.refused:
                if Mechanism.GLOBAL in mechanisms and _waits(current, choice):
                    apart = mechanisms - {Mechanism.GLOBAL}
                    other = problem(module, excluded, device, cost, feasible, apart)
                    current, choice = _quicker((current, choice), (other, choose(other)))
                break
            excluded |= choice.refused
        else:
            unplanned = {
                current.graph.instructions[v]: (Reason.STEP_LIMIT, "")
                for v in current.graph.placed()
            }
            current = problem(module, excluded | unplanned, device, cost, feasible, mechanisms)
            choice = Choice(())
        nested = {
            body.entry: plan(body, device, cost, feasible, mechanisms)
            for body in candidates.bodies(current.graph)
        }
        return _assemble(current, choice, name, nested)

    return plan


def _waits(problem: Problem, choice: Choice) -> bool:
    """Whether much of the time of the chosen kernels is spent at grid barriers. AStitch makes
    scopes as large as possible and does not ask (Zheng et al. 2022)."""
    waiting = sum(terms(scope.pattern, problem.device).phases for scope in choice.scopes)
    return waiting > BARRIERS * problem.seconds(choice.scopes)


def _quicker(
    first: tuple[Problem, Choice], second: tuple[Problem, Choice]
) -> tuple[Problem, Choice]:
    """The cheaper choice, the first where the second refuses something."""
    seconds = [problem.seconds(choice.scopes) for problem, choice in (first, second)]
    return second if not second[1].refused and seconds[1] < seconds[0] else first


def _assemble(
    problem: Problem, choice: Choice, planner: str, nested: Mapping[Computation, Plan]
) -> Plan:
    graph, device = problem.graph, problem.device
    patterns = tuple(s.pattern for s in sorted(choice.scopes, key=lambda scope: scope.key))
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
    after = total(problem.cost(pattern, device) for pattern in patterns)
    return Plan(
        graph.module, patterns, opaque, refusals, before, after, planner, nested, choice.bound
    )


def within_limits(instructions: int, buffers: int) -> Refusal | None:
    """The resource rules on a pattern's counts."""
    if instructions > INSTRUCTION_LIMIT:
        detail = f"{instructions} instructions; a kernel has at most {INSTRUCTION_LIMIT}"
        return Refusal("pattern", Reason.TOO_MANY_BUFFERS, detail)
    if buffers > BUFFER_LIMIT:
        detail = f"{buffers} inputs and outputs; a kernel has at most {BUFFER_LIMIT}"
        return Refusal("pattern", Reason.TOO_MANY_BUFFERS, detail)
    return None


def _acceptance(
    graph: Graph, device: Device, cost: CostFunction, feasible: Feasibility
) -> Acceptance:
    def accept(pattern: Pattern) -> Refusal | None:
        buffers = len(pattern.inputs) + len(pattern.outputs)
        refusal = within_limits(len(pattern.instructions), buffers)
        refusal = refusal or feasible(pattern, device)
        if refusal is not None:
            return refusal
        placed = [
            instruction
            for instruction in pattern.instructions
            if graph.roles[graph.position[instruction]] is Role.PLACED
        ]
        seconds = cost(pattern, device).seconds
        if len(placed) > 1 and seconds > unfused(placed, device).seconds:
            return Refusal("pattern", Reason.NOT_PROFITABLE, "slower than its parts")
        return None

    return accept


def accepted(problem: Problem, sets: Iterable[tuple[Key, tuple[int, ...]]]) -> Choice:
    """Scopes of `sets` of positions (ascending). What is refused is halved where least is carried
    over, again and again, down to instructions that no kernel can hold."""
    scopes: list[Scope] = []
    refused: dict[Instruction, Why] = {}
    for start, members in sets:
        pending: list[tuple[Key, tuple[int, ...]]] = [(start, members)]
        while pending:
            key, part = pending.pop()
            pattern = problem.extractor.pattern(part)
            refusal = problem.accept(pattern)
            if refusal is None:
                scopes.append(Scope(key, part, pattern))
            elif len(part) == 1:
                instruction = problem.graph.instructions[part[0]]
                refused[instruction] = (refusal.reason, refusal.detail)
            else:
                first, second = problem.extractor.halves(part)
                pending += [((*key, 0), first), ((*key, 1), second)]
    return Choice([] if refused else scopes, refused)


def recomputed(problem: Problem, scopes: Iterable[Scope]) -> list[Scope]:
    """Scopes that compute again what is dearer to read, where all are quicker so. A scope whose new
    pattern is refused keeps its old one; outputs follow from what the others then read."""
    ordered = sorted(scopes, key=lambda scope: scope.key)
    if Mechanism.RECOMPUTE not in problem.mechanisms:
        return ordered
    extractor = problem.extractor
    parts = recompute.improve(
        problem.graph,
        [recompute.Part(scope.members) for scope in ordered],
        extractor,
        problem.device,
    )
    for _ in range(2):
        read = {v for part in parts for v in extractor.closure(part.members, part.extras)[1]}
        patterns = [extractor.pattern(part.members, part.extras, read) for part in parts]
        refused = [
            number
            for number, (scope, pattern) in enumerate(zip(ordered, patterns, strict=True))
            if pattern != scope.pattern and problem.accept(pattern) is not None
        ]
        if not refused:
            again = [
                Scope(scope.key, scope.members, pattern)
                for scope, pattern in zip(ordered, patterns, strict=True)
            ]
            return min(ordered, again, key=problem.seconds)
        for number in refused:
            parts[number] = recompute.Part(ordered[number].members)
    return ordered
