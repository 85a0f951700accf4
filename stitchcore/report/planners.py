"""What planners say of their plans, summed over the computations of a module or a whole job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stitchcore.fusion.pattern import Bound, Plan, Tried
from stitchcore.fusion.text import bodies
from stitchcore.report.schema import ReportPlanner


def tried(plans: Iterable[Plan]) -> list[Tried]:
    """What each planner reached, summed over `plans`; nothing where one planner made them all."""
    found: dict[str, list[Tried]] = {}
    for plan in plans:
        for one in plan.tried:
            found.setdefault(one.planner, []).append(one)
    return [
        Tried(
            name,
            sum(one.kernels for one in some),
            sum(one.seconds for one in some),
            sum(one.took for one in some),
        )
        for name, some in found.items()
    ]


def bound(plans: Iterable[Plan]) -> Bound | None:
    """The bound over `plans` with the bodies of their loops; None where no planner proved one."""
    found = [one.bound for plan in plans for one in (plan, *bodies(plan).values()) if one.bound]
    if not found:
        return None
    names = dict.fromkeys(name for one in found for name in one.found)
    return Bound(
        sum(one.pool for one in found),
        sum(one.saved for one in found),
        sum(one.limit for one in found),
        all(one.closed for one in found),
        max(one.rounds for one in found),
        {name: sum(one.found.get(name, 0.0) for one in found) for name in names},
        sum(one.missed for one in found),
    )


def gap(found: Bound, saved: float) -> float:
    """Share of the bound that `saved` seconds leave; 0 where nothing can be saved."""
    return 1 - saved / found.limit if found.limit > 0 else 0.0


def bound_text(found: Bound) -> str:
    """One line: what is proved, and how far the other planners' patterns are from it."""
    if found.closed:
        proved = "no choice from the pool saves more"
    else:
        more = gap(found, found.saved)
        proved = f"stopped at its limit, or has no solver: the best may save {more:.2%} more"
    if found.missed:
        proved += f", and {found.missed} candidates were not looked at"
    others = ", ".join(f"{name} {gap(found, saved):.2%}" for name, saved in found.found.items())
    return (
        f"exact: {found.saved * 1e3:.3f} ms saved, at most {found.limit * 1e3:.3f} ms "
        f"({proved}); pool of {found.pool} patterns, {found.rounds} searches; below the bound: "
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
    planned = [one for plan in plans for one in (plan, *bodies(plan).values())]
    kernels = sum(len(one.patterns) for one in planned)
    compared = tried(plans)
    if most not in {one.planner for one in compared}:
        compared.append(Tried(most, kernels, sum(one.planned.seconds for one in planned)))
    return tuple(
        ReportPlanner(
            *(one.planner, one.kernels, one.seconds, one.took, gaps.get(one.planner)),
            chosen=one.planner == most,
        )
        for one in compared
    )
