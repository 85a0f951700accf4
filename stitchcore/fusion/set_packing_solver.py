"""CP-SAT on one set packing, a process of its own: `python -m
stitchcore.fusion.set_packing_solver`.

OR-Tools and TensorFlow bring their own copies of the same C++ libraries; in one process they crash.
Problem and answer are JSON on standard input and output; values are integers. A process that fails
in any way has no answer.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass

GRACE = 5.0
"""Seconds that the process may take beside its search."""


@dataclass(frozen=True)
class Answer:
    """Chosen sets by number, a bound on the value, and whether the choice is proved optimal."""

    chosen: frozenset[int]
    bound: float
    optimal: bool


def ask(
    sets: Sequence[frozenset[int]],
    worth: Sequence[int],
    forbidden: Collection[frozenset[int]],
    hint: frozenset[int],
    seconds: float,
) -> Answer | None:
    """A best choice of disjoint sets within `seconds`; None without OR-Tools or an answer."""
    problem = {
        "sets": [sorted(members) for members in sets],
        "worth": list(worth),
        "forbidden": sorted(sorted(combination) for combination in forbidden),
        "hint": sorted(hint),
        "seconds": min(seconds, 1e6),
    }
    command = [sys.executable, "-m", "stitchcore.fusion.set_packing_solver"]
    try:
        process = subprocess.run(
            command,
            input=json.dumps(problem),
            capture_output=True,
            text=True,
            timeout=min(seconds, 1e6) + GRACE,
            check=True,
        )
        answer = json.loads(process.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    if answer is None:
        return None
    return Answer(frozenset(answer["chosen"]), float(answer["bound"]), bool(answer["optimal"]))


def _main() -> None:
    problem = json.load(sys.stdin)
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        print("null")
        return
    model = cp_model.CpModel()
    take = [model.new_bool_var(f"take{n}") for n in range(len(problem["sets"]))]
    holders: dict[int, list[int]] = {}
    for n, members in enumerate(problem["sets"]):
        for e in members:
            holders.setdefault(e, []).append(n)
    for numbers in holders.values():
        model.add_at_most_one(take[n] for n in numbers)
    for combination in problem["forbidden"]:
        model.add(sum(take[n] for n in combination) <= len(combination) - 1)
    for n, variable in enumerate(take):
        model.add_hint(variable, n in problem["hint"])
    model.maximize(sum(w * t for w, t in zip(problem["worth"], take, strict=True)))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = problem["seconds"]
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 1
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        print("null")
        return
    answer = {
        "chosen": [n for n, variable in enumerate(take) if solver.value(variable)],
        "bound": solver.best_objective_bound,
        "optimal": status == cp_model.OPTIMAL,
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    _main()
