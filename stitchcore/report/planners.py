"""What planners say of their plans, summed over the computations of a module or a whole job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stitchcore.fusion.pattern import Bound, Plan, Tried
from stitchcore.fusion.text import bodies
from stitchcore.report.schema import ReportPlanner


def tried(plans: Iterable[Plan]) -> list[Tried]:
    """What each planner reached, summed over `plans`; nothing where one planner made them all."""
    by_planner: dict[str, list[Tried]] = {}
    for plan in plans:
        for result in plan.tried:
            by_planner.setdefault(result.planner, []).append(result)
    return [
        Tried(
            name,
            sum(result.kernels for result in results),
            sum(result.seconds for result in results),
            sum(result.took for result in results),
        )
        for name, results in by_planner.items()
    ]


def bound(plans: Iterable[Plan]) -> Bound | None:
    """The bound over `plans` with the bodies of their loops; None where no planner proved one."""
    bounds = [
        computation.bound
        for plan in plans
        for computation in (plan, *bodies(plan).values())
        if computation.bound
    ]
    if not bounds:
        return None
    names = dict.fromkeys(name for part in bounds for name in part.found)
    return Bound(
        sum(part.pool for part in bounds),
        sum(part.saved for part in bounds),
        sum(part.limit for part in bounds),
        all(part.closed for part in bounds),
        max(part.rounds for part in bounds),
        {name: sum(part.found.get(name, 0.0) for part in bounds) for name in names},
        sum(part.missed for part in bounds),
    )


def gap(proved: Bound, saved: float) -> float:
    """Share of the bound that `saved` seconds leave; 0 where nothing can be saved."""
    return 1 - saved / proved.limit if proved.limit > 0 else 0.0


def bound_text(proved: Bound) -> str:
    """One line: what is proved, and how far the other planners' patterns are from it."""
    if proved.closed:
        verdict = "no choice from the pool saves more"
    else:
        more = gap(proved, proved.saved)
        verdict = f"stopped at its limit, or has no solver: the best may save {more:.2%} more"
    if proved.missed:
        verdict += f", and {proved.missed} candidates were not looked at"
    others = ", ".join(f"{name} {gap(proved, saved):.2%}" for name, saved in proved.found.items())
    return (
        f"exact: {proved.saved * 1e3:.3f} ms saved, at most {proved.limit * 1e3:.3f} ms "
        f"({verdict}); pool of {proved.pool} patterns, {proved.rounds} searches; below the bound: "
        f"{others}"
    )


def side_by_side(plans: Sequence[Plan]) -> tuple[ReportPlanner, ...]:
    """The planners of a module or a whole job, the one whose plans were taken last and marked (of
    several the one of most plans); it alone, where no others were tried."""
    if not plans:
        return ()
    names = [plan.planner for plan in plans]
    most = max(dict.fromkeys(names), key=names.count)
    proved = bound(plans)
    gaps = {}
    if proved is not None and proved.limit > 0:
        saved = {**proved.found, "exact": proved.saved}
        gaps = {name: gap(proved, seconds) for name, seconds in saved.items()}
    computations = [part for plan in plans for part in (plan, *bodies(plan).values())]
    kernels = sum(len(part.patterns) for part in computations)
    compared = tried(plans)
    if most not in {result.planner for result in compared}:
        seconds = sum(part.planned.seconds for part in computations)
        compared.append(Tried(most, kernels, seconds))
    return tuple(
        ReportPlanner(
            *(result.planner, result.kernels, result.seconds, result.took),
            gaps.get(result.planner),
            chosen=result.planner == most,
        )
        for result in compared
    )
