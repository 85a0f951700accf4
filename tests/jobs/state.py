"""Judging what a training step left: variables, slots and gradients, under float64.

Every array of the stitched run is compared with the same script in float64 from the same
checkpoint; TensorFlow's own error there, doubled, is the allowance (stitchcore/verify/accuracy.py).
Two things that no kernel can help are computed, not waved through:

- A ReLU whose input is within rounding of zero may decide differently in float64, and then its
  gradient comes or goes. Where a script decides so, each run is compared with a float64 run that
  takes *that run's* decisions. The elements decided differently are counted, and the inputs
  of the ReLUs are judged like everything else, so that only rounding can have turned a decision.
- Adam divides a gradient by its magnitude; update.py carries a gradient's error through.

One run is one draw of TensorFlow's rounding. Where a whole array hangs on a few roundings (the
gradient of what a softmax cancels is what its rows miss of a sum of one) its elements err together,
and no quantile of them tells how far the next draw lies. So an array that is beyond the bound is
judged again, with TensorFlow's error drawn from several starts that are one ulp away.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stitchcore.verify.accuracy import DECISION_SHARE, Judgement, allowance, judge
from tests.jobs import judge as jobs
from tests.jobs import update as updates
from tests.jobs.update import Adam, Names

Array = np.ndarray[Any, np.dtype[Any]]

STATE_TOLERANCE = 2.0**-21
"""Of an element plus its array's root mean square, beside twice TensorFlow's own error: four units
in the last place, which is eight roundings of half a unit. Between a loss and any of its gradients
lie more; most arrays agree without it."""

DECIDING = ("cnn_fit",)
"""Scripts that can record their decisions and take another run's (scripts/recording.py)."""


SKIPPED = {"fit_jit": 3}
"""Steps that a script takes back before the judged one, where it is more than the one in which
kernels are compared: under XLA the first is always TensorFlow's, and the graph that is stitched
comes with it."""

EVERY_STEP = {"STITCH_CONTROL": "0"}
"""No step stays the original's, and none is rolled back for being slow on a busy machine."""


REDRAWS = 4
"""Starts an ulp away, from which TensorFlow's own error is drawn where an array does not pass."""


@dataclass(frozen=True)
class Step:
    """The arrays of a run after step 1, and the same script's in float64: from the same checkpoint
    and with the decisions of this run."""

    arrays: Mapping[str, Array]
    exact: Mapping[str, Array]


@dataclass(frozen=True)
class State:
    """One array after one step: against float64, and (what an update wrote) against float64's
    update from the slots of the run itself."""

    against_exact: Judgement
    own_update: Judgement | None = None

    @property
    def passed(self) -> bool:
        return self.against_exact.passed and (self.own_update is None or self.own_update.passed)

    def __str__(self) -> str:
        own = f"; from its own slots {self.own_update}" if self.own_update else ""
        return f"{self.against_exact}{own}"


@dataclass(frozen=True)
class Verdict:
    """All arrays of a step, and how many of its decisions fell differently than in float64. `same`:
    every array is TensorFlow's bit for bit, so the step was its own and nothing was judged."""

    states: Mapping[str, State]
    turned: int = 0
    decisions: int = 0
    same: bool = False

    @property
    def wrong(self) -> dict[str, str]:
        """What does not hold, by array."""
        found = {name: str(one) for name, one in self.states.items() if not one.passed}
        if self.same:
            found["step"] = "TensorFlow's own, bit for bit: no stitched step was judged"
        if self.turned > DECISION_SHARE * self.decisions:
            found["decisions"] = f"{self.turned} of {self.decisions} fell differently"
        return found


# ---- judging arrays ----------------------------------------------------------------------------
def after_one_step(
    ours: Step, theirs: Step, adam: Adam | None = None, initial: Mapping[str, Array] | None = None
) -> dict[str, State]:
    """Every array after one step, TensorFlow's own error against float64 being the allowance.

    `adam`, with the variables before the step, carries the errors allowed in gradients through the
    update. Names carry kind and position. ValueError where the runs are not of one script.
    """
    if not (list(ours.arrays) == list(theirs.arrays) == list(ours.exact) == list(theirs.exact)):
        raise ValueError("the runs recorded different arrays")
    moved: dict[str, Array] = {}
    own: dict[str, Judgement] = {}
    if adam is not None:
        found = updates.pairs(ours.arrays, initial or {})
        starts = {names: (initial or {})[names.initial] for names in found}
        if not any(_dense(adam, names, ours, start) for names, start in starts.items()):
            raise ValueError(f"no second moment is that of an update with {adam}")
        for names, start in starts.items():
            moved |= _carried(adam, names, ours, theirs, start)
            own |= _own_update(adam, names, ours, start)
    return {
        name: State(_against_exact(ours, theirs, name, moved.get(name)), own.get(name))
        for name in ours.arrays
        if ours.arrays[name].size
    }


def _against_exact(ours: Step, theirs: Step, name: str, moved: Array | None) -> Judgement:
    framework = _as_if(theirs, ours, name)
    return judge(ours.arrays[name], ours.exact[name], framework, STATE_TOLERANCE, sensitivity=moved)


def _as_if(theirs: Step, ours: Step, name: str) -> Array:
    """TensorFlow's array with its error, moved to where our decisions have the exact value."""
    if theirs.exact is ours.exact or theirs.arrays[name].dtype.kind != "f":
        return theirs.arrays[name]
    off = theirs.arrays[name].astype(np.float64) - theirs.exact[name]
    return np.asarray(ours.exact[name] + off)


def _carried(adam: Adam, names: Names, ours: Step, theirs: Step, start: Array) -> dict[str, Array]:
    """What the errors allowed in the first moment make of second moment and variable."""
    exact = updates.update(adam, names, ours.exact, start)
    if not exact.explained():
        raise ValueError(f"{names} is not an update with {adam}")
    off = allowance(exact.first, _as_if(theirs, ours, names.first), STATE_TOLERANCE)
    moved = updates.carried(exact, off)
    return {names.variable: moved.variable, names.second: moved.second}


def _own_update(adam: Adam, names: Names, ours: Step, start: Array) -> dict[str, Judgement]:
    """What our update wrote against float64's update from what it read. The second moment of a
    sparse gradient does not follow from the first."""
    run, dense = updates.update(adam, names, ours.arrays, start), _dense(adam, names, ours, start)
    limits = updates.rounding(run)
    judged = {names.variable: (run.start + run.step(), limits.variable)}
    if dense:
        judged[names.second] = adam.second(run.gradient()), limits.second
    return {
        name: judge(ours.arrays[name], expected, sensitivity=limit)
        for name, (expected, limit) in judged.items()
    }


def _dense(adam: Adam, names: Names, step: Step, start: Array) -> bool:
    return updates.update(adam, names, step.exact, start).dense()


# ---- judging runs ------------------------------------------------------------------------------
def verdict(job: jobs.Job, base: Path, plain: jobs.Record, stitched: jobs.Record) -> Verdict:
    """The stitched run's first step, judged by the untouched one's. Both started from `plain`'s
    initial variables. Runs what float64 needs under `base`; JobFailed where a run fails or where
    recording its decisions changed its result."""
    start: tuple[str, ...] = ("--checkpoint", str(plain.out / "initial.npz"))
    adam = Adam(**plain.update) if plain.update else None
    initial = plain.arrays("initial")
    if job.script in DECIDING:
        return _with_decisions(job, base, plain, stitched, adam, start)
    if job.script in SKIPPED:
        start = (*start, "--skip", str(SKIPPED[job.script]))
        plain = jobs.untouched(job, base / "plain-later", 1, start, forked=True)
        store = base / "store"
        stitched = jobs.stitched(job, base / "stitched-later", 1, store, start, EVERY_STEP)
    wide = _wide(job, base / "wide", start)
    ours, theirs = (Step(record.arrays("step1"), wide) for record in (stitched, plain))
    same = _same(ours.arrays, theirs.arrays)
    found = after_one_step(ours, theirs, adam, initial)
    if not all(state.passed for state in found.values()):
        draws = [_draw(job, base, initial, start, seed) for seed in range(REDRAWS)]
        found = after_one_step(ours, least_accurate([theirs, *draws]), adam, initial)
    return Verdict(found, same=same)


@functools.cache
def _wide(job: jobs.Job, out: Path, start: tuple[str, ...]) -> Mapping[str, Array]:
    """The step in float64, run once for all verdicts from one start: only the judged step, and not
    what it is judged by, differs between a run and its mutant."""
    return jobs.untouched(job, out, 1, [*start, "--dtype", "float64"], forked=True).arrays("step1")


def ulp_away(arrays: Mapping[str, Array], seed: int) -> dict[str, Array]:
    """Each float but zero moved to one of its neighbours."""
    random = np.random.default_rng(seed)

    def moved(array: Array) -> Array:
        side = np.where(random.random(array.shape) < 0.5, -np.inf, np.inf)
        near = np.nextafter(array, side.astype(array.dtype))
        return np.asarray(np.where(array == 0, array, near))

    return {n: moved(a) if a.dtype.kind == "f" else a for n, a in arrays.items()}


def _draw(
    job: jobs.Job, base: Path, initial: Mapping[str, Array], start: tuple[str, ...], seed: int
) -> Step:
    """An untouched step from another start, and its float64."""
    checkpoint = base / f"draw{seed}.npz"
    np.savez(checkpoint, **ulp_away(initial, seed))  # type: ignore[arg-type]
    line = [*start, "--checkpoint", str(checkpoint)]  # the last one given counts
    made = jobs.untouched(job, base / f"draw{seed}", 1, line, forked=True)
    wide = jobs.untouched(
        job, base / f"draw{seed}-wide", 1, [*line, "--dtype", "float64"], forked=True
    )
    return Step(made.arrays("step1"), wide.arrays("step1"))


def least_accurate(draws: Sequence[Step]) -> Step:
    """Each array of the draw that has its largest root mean square error."""

    def error(step: Step, name: str) -> float:
        exact = np.asarray(step.exact[name], np.float64)
        return float(np.sqrt(np.mean((np.asarray(step.arrays[name], np.float64) - exact) ** 2)))

    names = [name for name in draws[0].arrays if draws[0].arrays[name].size]
    chosen = {name: max(draws, key=lambda step: error(step, name)) for name in names}
    empty = {name: draws[0] for name in draws[0].arrays if name not in chosen}
    order = {name: {**chosen, **empty}[name] for name in draws[0].arrays}
    return Step(
        {name: step.arrays[name] for name, step in order.items()},
        {name: step.exact[name] for name, step in order.items()},
    )


def _with_decisions(
    job: jobs.Job,
    base: Path,
    plain: jobs.Record,
    stitched: jobs.Record,
    adam: Adam | None,
    start: tuple[str, ...],
) -> Verdict:
    """As `verdict`, of one-step runs that record their decisions and are otherwise the same."""
    record = [*start, "--record-decisions"]
    wide = [*record, "--dtype", "float64"]
    again = jobs.untouched(job, base / "plain-decisions", 1, record, forked=True)
    ours_again = jobs.stitched(
        job, base / "stitched-decisions", 1, base / "store-decisions", record
    )
    for first, second in ((plain, again), (stitched, ours_again)):
        if not _same(first.arrays("step1"), second.arrays("step1")):
            raise jobs.JobFailed(f"{second.out}: recording decisions changed the result")
    free = jobs.untouched(job, base / "wide", 1, wide, forked=True).arrays("decisions")

    def step(run: jobs.Record) -> Step:
        taken = ["--decisions", str(run.out / "decisions.npz")]
        exact = jobs.untouched(job, base / f"wide-{run.out.name}", 1, [*wide, *taken], forked=True)
        return Step(_everything(run), _everything(exact))

    made = ours_again.arrays("decisions")
    return Verdict(
        after_one_step(step(ours_again), step(again), adam, plain.arrays("initial")),
        turned=sum(int(np.count_nonzero((made[n] > 0) != (free[n] > 0))) for n in free),
        decisions=sum(array.size for array in free.values()),
        same=_same(stitched.arrays("step1"), plain.arrays("step1")),
    )


def _everything(record: jobs.Record) -> dict[str, Array]:
    return record.arrays("step1") | record.arrays("decisions")


def _same(one: Mapping[str, Array], other: Mapping[str, Array]) -> bool:
    return list(one) == list(other) and all(np.array_equal(one[n], other[n]) for n in one)
