"""A whole module's outputs against float64, numpy's float32 being the allowance (docs/judging.md).

How far two float32 computations of a training step lie apart says nothing by itself: after fifty
convolutions numpy's own result is 1e-3 from the exact one. So ours is judged as a training step's
arrays are (tests/jobs/state.py): its error against float64 by that of numpy's float32 evaluation.
Where an output is beyond the bound, float64 takes each run's decisions if they are known
(decided.py), and what is still beyond is judged once more by the least accurate of several
evaluations from starts an ulp away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stitchcore.hlo.ir.module import Module
from stitchcore.verify.accuracy import DECISION_SHARE
from tests.jobs.state import REDRAWS, State, Step, after_one_step, least_accurate, ulp_away
from tests.runtime.decided import Decided, numpy_step, our_step, with_decisions

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Error:
    """Of one float output: the largest error over the largest exact value of ours and of numpy's
    float32, and the ratio of their root mean squares (1 where neither errs)."""

    ours: float
    numpy: float
    ratio: float


@dataclass(frozen=True)
class Verdict:
    """All outputs by name. `errors` are those of finite floats against the first float64 run;
    `redrawn` counts the outputs that were judged again, `draws` the evaluations that took. Where
    float64 took our decisions (`decisions` of them, by elements) what they were taken on is among
    the states, and `turned` are those that it would not have taken."""

    states: Mapping[str, State]
    errors: Mapping[str, Error]
    redrawn: int
    draws: int
    turned: int = 0
    decisions: int = 0

    @property
    def wrong(self) -> dict[str, str]:
        found = {name: str(state) for name, state in self.states.items() if not state.passed}
        if self.turned > DECISION_SHARE * self.decisions:
            found["decisions"] = f"{self.turned} of {self.decisions} fell differently"
        return found

    @property
    def informative(self) -> int:
        """Outputs that could have shown an error."""
        named = self.states.items()
        return sum(s.against_exact.informative for n, s in named if n.startswith("output"))


def verdict(
    module: Module,
    given: Sequence[Array],
    made: Sequence[Array],
    redraws: int = REDRAWS,
    decided: Decided | None = None,
) -> Verdict:
    """`made` of `module` on `given`, judged; with the decisions that it took where they are known
    and an output is beyond the bound."""
    judged = with_decisions(module, Decided({}, {}))
    first = numpy_step(judged, given)
    ours = judged.step(made, list(first.exact.values()))
    found = after_one_step(ours, first)
    errors = {name: error_of(ours, first, name) for name in found if _told(first, name)}
    turned, taken = 0, 0
    if decided is not None and decided.taken and not _all_passed(found):
        judged = with_decisions(module, decided)
        ours, turned = our_step(judged, given, made, decided)
        taken = sum(array.size for array in decided.taken.values())
        first = numpy_step(judged, given)
        found = after_one_step(ours, first)
    beyond = [name for name, state in found.items() if not state.passed]
    draws = [_only(first, beyond)]
    while not _all_passed(found) and len(draws) <= redraws:
        moved = ulp_away(dict(enumerated(given)), len(draws) - 1)
        draws.append(_only(numpy_step(judged, list(moved.values())), beyond))
        found |= after_one_step(_only(ours, beyond), least_accurate(draws))
    return Verdict(found, errors, len(beyond), len(draws), turned, taken)


def enumerated(arrays: Sequence[Array]) -> list[tuple[str, Array]]:
    return [(f"output {number}", array) for number, array in enumerate(arrays)]


def error_of(ours: Step, theirs: Step, name: str) -> Error:
    exact = np.asarray(theirs.exact[name], np.float64)
    scale = float(np.abs(exact).max()) + 1e-300
    off = [np.abs(step.arrays[name].astype(np.float64) - exact) for step in (ours, theirs)]
    mine, other = (float(np.sqrt(np.mean(np.square(one)))) for one in off)
    ratio = mine / other if other else float("inf") if mine else 1.0
    return Error(float(off[0].max()) / scale, float(off[1].max()) / scale, ratio)


def _told(step: Step, name: str) -> bool:
    """Whether an output is one of floats, all of them finite."""
    array = step.exact[name]
    return array.dtype.kind == "f" and bool(array.size) and bool(np.isfinite(array).all())


def _all_passed(states: Mapping[str, State]) -> bool:
    return all(state.passed for state in states.values())


def _only(step: Step, names: Sequence[str]) -> Step:
    return Step({n: step.arrays[n] for n in names}, {n: step.exact[n] for n in names})
