"""Tuning of a job's artifact: measurement overrules plans before they are verified.

With a budget (STITCH_TUNE, or a worker's --tune) the kernels of all regions are measured against
other cuts of themselves, the heaviest first, on the machine that makes the artifact (kernels.py).
What wins is built in place of what it beats and goes through verification and measurement as
everything does. The result is the artifact's: its kernels are those that won, and tuning.json tells
which, by how much and on what. The budget is part of the artifact's key, so the next job with that
key has them without measuring anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from stitchcore.autotune.kernels import Choice, Measuring, gain, tune_all
from stitchcore.compiler.pipeline import Progress
from stitchcore.compiler.regions import CompiledRegions, replanned
from stitchcore.compiler.stages import BuildOptions
from stitchcore.device.host import host
from stitchcore.device.records import Device
from stitchcore.fusion.canonical import pattern_text
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


class Tuning(msgspec.Struct, frozen=True):
    """What tuning found: on which machine, with which budget (seconds), how many distinct kernels
    were measured of how many, seconds of those before and after, and cuts that were not right."""

    machine: str
    budget: float
    kernels: int
    measured: int
    seconds_before: float
    seconds_after: float
    overruled: tuple[Overruled, ...]
    wrong: tuple[str, ...]

    def figure(self) -> str:
        """For the report's reader."""
        figure = f"{len(self.overruled)} of {self.kernels} distinct kernels cut elsewhere"
        figure += f" ({self.measured} measured)"
        if self.overruled:
            figure += f": {self.seconds_before * 1e6:,.0f} → {self.seconds_after * 1e6:,.0f} µs"
        return f"{figure} on {self.machine}"


def tuned(
    compiled: CompiledRegions,
    device: Device,
    options: BuildOptions,
    budget: float,
    progress: Progress,
) -> tuple[CompiledRegions, Tuning]:
    """`compiled` with what measurement overruled within about `budget` seconds of this CPU.

    Raises Refused where a kernel that was compiled before cannot be compiled.
    """
    keys = list(compiled.regions)
    plans = [compiled.regions[key].plan for key in keys]
    symbols = {name for key in keys for name in compiled.regions[key].module.symbols}
    measuring = Measuring(dict.fromkeys(symbols, SYMBOL_SIZE), 11, KERNEL_SECONDS, budget)
    replans, choices = tune_all(
        plans, device, options, measuring, lambda done, total: progress("tune", done, total)
    )
    pairs = zip(keys, plans, replans, strict=True)
    changed = {key: new for key, old, new in pairs if _kernels(new) != _kernels(old)}
    rebuilt = replanned(compiled, changed, device, options) if changed else compiled
    return rebuilt, _tuning(compiled, plans, choices, budget)


def _kernels(plan: Plan) -> list[tuple[Pattern, ...]]:
    return [computation.patterns for computation in (plan, *bodies(plan).values())]


def _tuning(
    compiled: CompiledRegions, plans: Sequence[Plan], choices: Sequence[Choice], budget: float
) -> Tuning:
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
        tuple(trial.wrong for choice in choices for trial in choice.trials if trial.wrong),
    )


def _overruled(choice: Choice, names: Mapping[str, str]) -> Overruled:
    first, winner = choice.trials[0], choice.trials[choice.kept]
    ratio = (winner.ratio.low, winner.ratio.value, winner.ratio.high)
    name = names.get(pattern_text(choice.pattern), "in a loop or branch")
    return Overruled(name, len(winner.cut), first.seconds, winner.seconds, ratio)


def _names(compiled: CompiledRegions, plans: Sequence[Plan]) -> dict[str, str]:
    return {
        pattern_text(pattern): compiled.kernels[key].kernel.name
        for region, plan in zip(compiled.regions.values(), plans, strict=True)
        for pattern, key in zip(plan.patterns, region.keys, strict=True)
    }


def file_of(tuning: Tuning | None) -> dict[str, bytes]:
    """The artifact's file of what tuning found; none where nothing was tuned."""
    return {} if tuning is None else {FILE: msgspec.json.encode(tuning, order="sorted")}
