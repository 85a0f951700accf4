"""Why two operations are not in one kernel, and why one was refused.

Answers come from the plan and the rules that made it, not from a log: merging the two kernels is
tried, and the first rule against it is named. Operations of a job are explained in
optimize/explain.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from stitchcore.device.records import Device
from stitchcore.errors import Reason
from stitchcore.fusion import candidates, levels
from stitchcore.fusion.candidates import Graph, Role
from stitchcore.fusion.cost import terms
from stitchcore.fusion.pattern import CostFunction, Feasibility, Pattern, Plan
from stitchcore.fusion.pattern_from_set import Extractor
from stitchcore.fusion.planner_rules import within_limits
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.ir.query import users
from stitchcore.hlo.text.printer import names

SOURCE = "source"


@dataclass(frozen=True)
class Place:
    """Where an operation ended: kernel numbers, or a reason why it is in none.

    `reason` is a Reason's value, "source" for what needs no work (parameters, constants, free
    views), or empty when `kernels` says it all. Several kernels: it is computed in each. `choices`
    say where it is kept in memory, or computed again, within its kernels.
    """

    name: str
    opcode: str
    kernels: tuple[int, ...]
    reason: str = ""
    detail: str = ""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Explanation:
    """Two places, whether one kernel holds both, and the rule that keeps them apart.

    `path` names the operations through which the second depends on the first, when that is the
    reason: what stands between them cannot be in a kernel. `differences` say what nodes of one
    region must share and these two do not.
    """

    first: Place
    second: Place
    together: bool
    reason: str
    detail: str
    path: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()


def find(module: Module, name: str) -> list[Instruction]:
    """Instructions called `name`, or else those whose framework operation's name ends in it."""
    by_name = {text: instruction for instruction, text in names(module).items()}
    wanted = name.removeprefix("%")
    if wanted in by_name:
        return [by_name[wanted]]
    return [
        instruction
        for instruction, origins in module.provenance.items()
        if instruction in names(module) and any(_ends(origin, wanted) for origin in origins)
    ]


def _ends(origin: str, wanted: str) -> bool:
    return origin == wanted or origin.endswith("/" + wanted)


def place(plan: Plan, value: Instruction) -> Place:
    """Where `value` ended in `plan`."""
    name = names(plan.module)[value]
    inside = [n for n, p in enumerate(plan.patterns) if value in set(p.instructions)]
    if inside:
        return Place(name, value.opcode, tuple(inside))
    for refusal in plan.refusals:
        if refusal.subject == name:
            return Place(name, value.opcode, (), refusal.reason.value, refusal.detail)
    return Place(name, value.opcode, (), SOURCE, "it needs no work of its own")


def explain(
    plan: Plan,
    first: Instruction,
    second: Instruction,
    device: Device,
    cost: CostFunction,
    feasible: Feasibility,
) -> Explanation:
    """Why `first` and `second` are, or are not, in one kernel of `plan`."""
    places = place(plan, first), place(plan, second)
    if set(places[0].kernels) & set(places[1].kernels):
        return Explanation(*places, True, "", "one kernel computes both")
    for where in places:
        if not where.kernels:
            detail = f"{where.name} is in no kernel" + (f": {where.detail}" if where.detail else "")
            return Explanation(*places, False, where.reason, detail)
    numbers = places[0].kernels[0], places[1].kernels[0]
    reason, detail, path = apart(plan, numbers, device, cost, feasible)
    return Explanation(*places, False, reason, detail, path)


def apart(
    plan: Plan,
    numbers: tuple[int, int],
    device: Device,
    cost: CostFunction,
    feasible: Feasibility,
) -> tuple[str, str, tuple[str, ...]]:
    """Why two kernels of `plan` are not one: the reason, its detail, and the path between them."""
    patterns = plan.patterns[numbers[0]], plan.patterns[numbers[1]]
    path = _path(plan.module, *patterns) or _path(plan.module, *reversed(patterns))
    if path:
        name = names(plan.module)
        passed = tuple(name.get(value, "?") for value in path)
        detail = f"one kernel waits for {passed[-1]}, which waits for the other kernel"
        return Reason.CYCLE.value, detail, passed
    return (*_against(plan, patterns, device, cost, feasible), ())


def _path(module: Module, first: Pattern, second: Pattern) -> list[Instruction]:
    """Instructions in neither pattern on a path from `first` to `second`; empty without one."""
    inside = {*first.instructions, *second.instructions}
    goal = set(second.inputs)
    readers = users(module)
    came: dict[Instruction, Instruction | None] = {}
    queue: deque[Instruction] = deque()

    def visit(values: Iterable[Instruction], source: Instruction | None) -> None:
        for value in values:
            if value not in came and value not in inside:
                came[value] = source
                queue.append(value)

    for output in first.outputs:
        visit(readers.get(output, ()), None)
    while queue:
        value = queue.popleft()
        if value in goal:
            path = [value]
            while (before := came[path[-1]]) is not None:
                path.append(before)
            return path[::-1]
        visit(readers.get(value, ()), value)
    return []


def _against(
    plan: Plan,
    patterns: tuple[Pattern, Pattern],
    device: Device,
    cost: CostFunction,
    feasible: Feasibility,
) -> tuple[str, str]:
    """The rule against the union of two patterns that do not wait for anything between them."""
    graph = candidates.build(plan.module, _excluded(plan))
    placed = sorted(
        {
            graph.position[value]
            for pattern in patterns
            for value in pattern.instructions
            if graph.roles[graph.position[value]] is Role.PLACED
        }
    )
    level = levels.assign(graph).of
    first_at, second_at = (_levels(graph, level, pattern) for pattern in patterns)
    if not first_at & second_at:
        detail = (
            f"the first is computed at level {_spread(first_at)} between library calls, the "
            f"second at level {_spread(second_at)}: a kernel has one level, and these move the "
            "fewest bytes"
        )
        return Reason.NOT_PROFITABLE.value, detail
    merged = Extractor(graph).pattern(tuple(placed))
    buffers = len(merged.inputs) + len(merged.outputs)
    refusal = within_limits(len(merged.instructions), buffers) or feasible(merged, device)
    if refusal is not None:
        return refusal.reason.value, refusal.detail
    return Reason.NOT_PROFITABLE.value, _priced(plan, patterns, merged, device, cost)


def _levels(graph: Graph, level: Sequence[int], pattern: Pattern) -> set[int]:
    """Levels of what `pattern` writes; what it only computes again may be of another."""
    at = (graph.position[value] for value in pattern.outputs)
    return {level[v] for v in at if graph.roles[v] is Role.PLACED}


def _spread(level_set: set[int]) -> str:
    return ", ".join(map(str, sorted(level_set))) or "none"


def _priced(
    plan: Plan,
    patterns: tuple[Pattern, Pattern],
    merged: Pattern,
    device: Device,
    cost: CostFunction,
) -> str:
    """The estimates of one kernel and of two, and the term that differs most against the choice."""
    together = cost(merged, device).seconds
    two = sum(cost(pattern, device).seconds for pattern in patterns)
    joined = asdict(terms(merged, device))
    parts = [asdict(terms(pattern, device)) for pattern in patterns]
    lost = {name: joined[name] - sum(part[name] for part in parts) for name in joined}
    compared = ", ".join(
        f"{name} {joined[name] * 1e6:.1f} against {(joined[name] - more) * 1e6:.1f}"
        for name, more in lost.items()
        if joined[name] or more
    )
    if together > two:
        worst = max(lost, key=lambda name: lost[name])
        return (
            f"one kernel is estimated at {together * 1e6:.1f} µs, two at {two * 1e6:.1f} µs; most "
            f"is lost on {worst} (µs: {compared})"
        )
    return (
        f"nothing forbids it; the {plan.planner} planner did not choose it (one kernel "
        f"{together * 1e6:.1f} µs, two {two * 1e6:.1f} µs; µs: {compared})"
    )


def _excluded(plan: Plan) -> Mapping[Instruction, tuple[Reason, str]]:
    by_name = {text: value for value, text in names(plan.module).items()}
    return {
        by_name[refusal.subject]: (refusal.reason, refusal.detail)
        for refusal in plan.refusals
        if refusal.subject in by_name
    }
