"""Tuning of a job's artifact: measurement overrules plans before they are verified.

With a budget (STITCH_TUNE, or a worker's --tune) the kernels of all regions are measured against
themselves scheduled otherwise and against other cuts, the heaviest first, on the machine that makes
the artifact (schedules.py, kernels.py). What wins is built in place of what it beats and goes
through verification and measurement as everything does. The result is the artifact's: its kernels
are those that won, and tuning.json tells which, by how much and on what. The budget is part of the
artifact's key, so the next job with that key has them without measuring anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from stitchcore.autotune.kernels import Choice, Measuring, gain
from stitchcore.autotune.schedules import Searched, Tuned, entries, tune
from stitchcore.compiler.performance_library import Entry
from stitchcore.compiler.pipeline import Progress
from stitchcore.compiler.regions import CompiledRegions, replanned
from stitchcore.compiler.stages import BuildOptions
from stitchcore.device.host import host
from stitchcore.device.records import Device
from stitchcore.fusion.canonical import pattern_key, pattern_text
from stitchcore.fusion.pattern import Pattern, Plan
from stitchcore.fusion.text import bodies
from stitchcore.verify.regions import SYMBOL_SIZE

FILE = "tuning.json"
KERNEL_SECONDS = 1.0
"""Longest that the cuts of one kernel are measured."""


class Overruled(msgspec.Struct, frozen=True):
    """A kernel in whose place others run: how many, and seconds of both on the tuning machine.
    `ratio` is new over old, [low, median, high] of 95 %."""

    kernel: str
    parts: int
    seconds_before: float
    seconds_after: float
    ratio: tuple[float, float, float]


class Rescheduled(msgspec.Struct, frozen=True):
    """A kernel that is scheduled otherwise, and seconds of both as of `Overruled`."""

    kernel: str
    schedule: str
    seconds_before: float
    seconds_after: float
    ratio: tuple[float, float, float]


class Tuning(msgspec.Struct, frozen=True):
    """What tuning found: on which machine, with which budget (seconds), how many distinct kernels
    were measured of how many, seconds of those before and after, and cuts and schedules that were
    not right."""

    machine: str
    budget: float
    kernels: int
    measured: int
    seconds_before: float
    seconds_after: float
    overruled: tuple[Overruled, ...]
    wrong: tuple[str, ...]
    rescheduled: tuple[Rescheduled, ...] = ()

    def figure(self) -> str:
        """For the report's reader."""
        figure = f"{len(self.overruled)} of {self.kernels} distinct kernels cut elsewhere"
        figure += f" ({self.measured} measured)"
        if self.overruled:
            figure += f": {self.seconds_before * 1e6:,.0f} → {self.seconds_after * 1e6:,.0f} µs"
        if self.rescheduled:
            before = sum(one.seconds_before for one in self.rescheduled)
            after = sum(one.seconds_after for one in self.rescheduled)
            figure += f", {len(self.rescheduled)} scheduled otherwise"
            figure += f": {before * 1e6:,.0f} → {after * 1e6:,.0f} µs"
        return f"{figure} on {self.machine}"


def tuned(
    compiled: CompiledRegions,
    device: Device,
    options: BuildOptions,
    budget: float,
    progress: Progress,
) -> tuple[CompiledRegions, Tuning, Mapping[str, Entry]]:
    """`compiled` with what measurement overruled within about `budget` seconds of this CPU, and
    what a performance library keeps of it. A kernel that the library knows is not searched again.

    Raises Refused where a kernel that was compiled before cannot be compiled.
    """
    keys = list(compiled.regions)
    plans = [compiled.regions[key].plan for key in keys]
    symbols = {name for key in keys for name in compiled.regions[key].module.symbols}
    measuring = Measuring(dict.fromkeys(symbols, SYMBOL_SIZE), 11, KERNEL_SECONDS, budget)
    made = tune(
        plans, device, options, measuring, lambda done, total: progress("tune", done, total)
    )
    pairs = zip(keys, plans, made.plans, strict=True)
    changed = {
        key: new
        for key, old, new in pairs
        if _kernels(new) != _kernels(old) or any(_rescheduled(new, made.found))
    }
    rebuilt = replanned(compiled, changed, device, made.options) if changed else compiled
    return rebuilt, _tuning(compiled, plans, made, budget), entries(made.found)


def _rescheduled(plan: Plan, found: Mapping[str, Searched]) -> Iterator[bool]:
    """Of each kernel whether it is scheduled otherwise."""
    for patterns in _kernels(plan):
        for pattern in patterns:
            searched = found.get(pattern_key(pattern))
            yield searched is not None and searched.kept > 0


def _kernels(plan: Plan) -> list[tuple[Pattern, ...]]:
    return [computation.patterns for computation in (plan, *bodies(plan).values())]


def _tuning(compiled: CompiledRegions, plans: Sequence[Plan], made: Tuned, budget: float) -> Tuning:
    choices = made.choices
    before, after = gain(choices)
    names = _names(compiled, plans)
    machine = host()
    return Tuning(
        f"{machine.model}, {machine.cores} processors",
        budget,
        len(choices),
        sum(len(choice.trials) > 1 for choice in choices),
        before,
        after,
        tuple(_overruled(choice, names) for choice in choices if choice.kept),
        made.wrong,
        tuple(_otherwise(searched, names) for searched in made.found.values() if searched.kept),
    )


def _overruled(choice: Choice, names: Mapping[str, str]) -> Overruled:
    first, winner = choice.trials[0], choice.trials[choice.kept]
    ratio = (winner.ratio.low, winner.ratio.value, winner.ratio.high)
    name = names.get(pattern_text(choice.pattern), "in a loop or branch")
    return Overruled(name, len(winner.cut), first.seconds, winner.seconds, ratio)


def _otherwise(searched: Searched, names: Mapping[str, str]) -> Rescheduled:
    first, last = searched.trials[0], searched.trials[searched.kept]
    ratio = (last.ratio.low, last.ratio.value, last.ratio.high)
    name = names.get(pattern_text(searched.pattern), "cut anew, or in a loop or branch")
    chosen = str(searched.schedules[searched.kept])
    return Rescheduled(name, chosen, first.seconds, last.seconds, ratio)


def _names(compiled: CompiledRegions, plans: Sequence[Plan]) -> dict[str, str]:
    return {
        pattern_text(pattern): compiled.kernels[key].kernel.name
        for region, plan in zip(compiled.regions.values(), plans, strict=True)
        for pattern, key in zip(plan.patterns, region.keys, strict=True)
    }


def file_of(tuning: Tuning | None) -> dict[str, bytes]:
    """The artifact's file of what tuning found; none where nothing was tuned."""
    return {} if tuning is None else {FILE: msgspec.json.encode(tuning, order="sorted")}
