"""Region verification: every distinct region right and not slower, or refused.

Times are the region's own: what a call from outside costs is taken off each contestant, and our
launches pay what the framework's executor asks for one operation each. The verdict is against the
framework, which runs what is not stitched. XLA is no contestant: its time could not change the
verdict, and to compile a region for it took longer than all else that is timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from stitchcore.compiler.pipeline import Progress
from stitchcore.compiler.regions import CompiledRegions
from stitchcore.device.records import Device
from stitchcore.errors import CheckFailed, Reason, Refusal, Refused
from stitchcore.hlo.ir.module import Module
from stitchcore.launch.region_program import RegionProgram
from stitchcore.runtime.cpu_kernel import CpuKernel, load_library
from stitchcore.verify.region import (
    SLOWER,
    Reference,
    RegionCheck,
    RegionRunner,
    Runner,
    check_region,
    time_region,
)
from stitchcore.verify.timing import Comparison, Ratio, paired_ratio

SYMBOL_SIZE = 32
"""What each symbol is bound to in a verification."""

SMALLER = (8, 4, 2, 1)
"""What it is bound to where the framework ends with an error at that: places that are counted may
be looked up in a table of fewer rows, which the job has no more places than."""

REGION_SECONDS = 0.5
"""Longest that one region is timed."""

TOTAL_SECONDS = 12.0
"""Longest that all regions of an artifact are timed; those that weigh most come first."""

TAIL = 0.02
"""Regions that take less than this of what all take between them, by estimate, are not timed: were
each of them half as slow again, no step would show it, and there are many."""

CLEARLY = 0.9
"""A region whose time is below this of the framework's, its interval too, is not timed further."""

CALL_SHARE = 0.2
"""A region that takes the framework less than this share of what calling it from outside costs
cannot be timed from there: the job's own paired blocks judge it (docs/decisions.md 19), unless ours
takes longer than the framework and the call together."""


Runners = Callable[[CompiledRegions, Mapping[str, RegionProgram]], Mapping[str, RegionRunner]]
"""Loads regions where they are verified."""


@dataclass(frozen=True)
class References:
    """A region by the framework, and an empty call of the framework's with the region's arguments;
    and sizes that go together, of symbols that do not take any."""

    framework: Reference
    call: Reference
    sizes: Mapping[str, int] = field(default_factory=dict)

    def bindings(self, module: Module) -> list[dict[str, int]]:
        """Ways to bind the symbols, the preferred one first."""
        sizes = (SYMBOL_SIZE, *SMALLER)
        ways = [{**dict.fromkeys(module.symbols, size), **self.sizes} for size in sizes]
        return [way for number, way in enumerate(ways) if way not in ways[:number]]


@dataclass(frozen=True)
class RegionTiming:
    """Medians of one run's seconds, by contestant ("framework", "stitched", net of "call"), and
    stitched time over the framework's. `note` says why there is none."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    ratio: Ratio | None = None
    note: str = ""


@dataclass(frozen=True)
class RegionVerification:
    """A region's check, at these sizes, and, once measured, its timing there."""

    check: RegionCheck
    bindings: Mapping[str, int] = field(default_factory=dict)
    timing: RegionTiming = RegionTiming()

    def summary(self) -> dict[str, Any]:
        """For report.json. Intervals are [low, median, high]."""
        summary: dict[str, Any] = {
            "passed": self.check.passed,
            "informative": self.check.informative,
            "data": self.check.data,
            "worst_error": max((j.worst_ours for j in self.check.judgements), default=0.0),
            "framework_error": max((j.worst_theirs for j in self.check.judgements), default=0.0),
        }
        if self.check.undecided:
            summary["undecided"] = len(self.check.undecided)
        timing = self.timing
        if (ratio := timing.ratio) is not None:
            summary["ratio"] = [ratio.low, ratio.value, ratio.high]
        if timing.seconds:
            summary["seconds"] = dict(timing.seconds)
        if timing.note:
            summary["note"] = timing.note
        return summary


@dataclass(frozen=True)
class Verification:
    """By region key: what was verified, and refusals (WRONG_RESULT, SLOWER) of what failed."""

    regions: Mapping[str, RegionVerification]
    refused: Mapping[str, Refusal]

    @property
    def undecided(self) -> frozenset[str]:
        """Keys of regions that the job's own data has to decide about."""
        return frozenset(key for key, one in self.regions.items() if one.check.undecided)

    def figures(self) -> dict[str, str]:
        """How much was timed, for the report's reader."""
        verifications = self.regions.values()
        timed = sum(verification.timing.ratio is not None for verification in verifications)
        figure = f"{timed} of {len(self.regions)}"
        notes: dict[str, int] = {}
        for verification in verifications:
            if verification.timing.ratio is None and verification.check.passed:
                notes[verification.timing.note] = notes.get(verification.timing.note, 0) + 1
        figure += "".join(f"; {count} not: {note}" for note, count in notes.items())
        left = len(self.undecided - self.refused.keys())
        told = {"Distinct regions that the job's data decides about": str(left)} if left else {}
        return {"Distinct regions timed": figure, **told}


def verify(
    compiled: CompiledRegions,
    programs: Mapping[str, RegionProgram],
    references: Mapping[str, References],
    progress: Progress | None = None,
    runners_of: Runners | None = None,
    job_decides: bool = False,
) -> Verification:
    """Judge every region's results against the framework's and float64. With `job_decides` each
    kernel is compared with the framework in the job, too (native/shadow.cc)."""
    runners = (runners_of or on_processor)(compiled, programs)
    verifications: dict[str, RegionVerification] = {}
    refused: dict[str, Refusal] = {}
    for number, (key, runner) in enumerate(runners.items()):
        if progress is not None:
            progress("verify", number, len(runners))
        try:
            found = _verified(runner, compiled.regions[key].module, references[key], job_decides)
        except CheckFailed as error:
            refused[key] = Refusal(key[:12], Reason.WRONG_RESULT, str(error))
            continue
        except Refused as error:  # the device does not run it, or the framework takes no data drawn
            refused[key] = replace(error.refusal, subject=key[:12])
            continue
        verifications[key] = found
        if not found.check.passed:
            refused[key] = Refusal(key[:12], Reason.WRONG_RESULT, found.check.detail)
    return Verification(verifications, refused)


def _verified(
    runner: RegionRunner, module: Module, references: References, job_decides: bool
) -> RegionVerification:
    """At the first sizes at which neither ends with an error; raises the last of these errors."""
    error: Exception | None = None
    for bindings in references.bindings(module):
        try:
            check = check_region(
                runner, module, references.framework, bindings, job_decides=job_decides
            )
            return RegionVerification(check, bindings)
        except CheckFailed as failed:
            error = failed
        except Refused as refused:
            if refused.refusal.reason is not Reason.DATA_DEPENDENT_ERROR:
                raise
            error = refused
    assert error is not None
    raise error


def measure(
    compiled: CompiledRegions,
    programs: Mapping[str, RegionProgram],
    weights: Mapping[str, float],
    references: Mapping[str, References],
    verification: Verification,
    device: Device,
    threads: int,
    progress: Progress | None = None,
    total_seconds: float = TOTAL_SECONDS,
    runners_of: Runners | None = None,
) -> Verification:
    """Time the regions that are right beside the framework; those that are slower are refused.

    `weights` are the seconds that each takes in a step by estimate: those that weigh most come
    first, for `total_seconds` altogether, and the TAIL is left out.
    """
    runners = (runners_of or on_processor)(compiled, programs)
    verifications, refused = dict(verification.regions), dict(verification.refused)
    ordered = sorted(runners, key=lambda key: weights[key], reverse=True)
    left, tail = sum(weights.values()), TAIL * sum(weights.values())
    began = time.perf_counter()
    for number, key in enumerate(ordered):
        if progress is not None:
            progress("measure", number, len(runners))
        if left < tail or time.perf_counter() - began > total_seconds:
            note = f"among those of less than {TAIL:.0%} of all regions' work"
            if left >= tail:
                note = f"the {total_seconds:g} s for timing were spent on regions that weigh more"
            verifications[key] = replace(verifications[key], timing=RegionTiming(note=note))
            continue
        left -= weights[key]
        module = compiled.regions[key].module
        bindings = verifications[key].bindings
        timer = _Timer(module, runners[key], references[key], bindings, device, threads)
        try:
            timing = timer.run()
        except Refused as error:  # the device does not run it, or not any more
            refused[key] = replace(error.refusal, subject=key[:12])
            continue
        verifications[key] = replace(verifications[key], timing=timing)
        if timing.ratio is not None and timing.ratio.low > SLOWER:
            times = ", ".join(f"{name} {s * 1e6:.1f} µs" for name, s in timing.seconds.items())
            detail = f"{timing.ratio} of the framework's time, {times}"
            refused[key] = Refusal(key[:12], Reason.SLOWER, detail)
    return Verification(verifications, refused)


def on_processor(
    compiled: CompiledRegions, programs: Mapping[str, RegionProgram]
) -> Mapping[str, RegionRunner]:
    """Regions on this machine's processor."""
    libraries = [load_library(library.data) for library in compiled.libraries]
    return {
        key: Runner(
            chosen,
            tuple(
                CpuKernel(libraries[launch.library], launch.kernel) for launch in chosen.launches
            ),
        )
        for key, chosen in programs.items()
    }


@dataclass(frozen=True)
class _Timer:
    """One region and those it runs against."""

    module: Module
    runner: RegionRunner
    references: References
    bindings: Mapping[str, int]
    device: Device
    threads: int

    def run(self) -> RegionTiming:
        """Interleaved times."""
        times = time_region(
            self.runner,
            self.module,
            {"framework": self.references.framework, "call": self.references.call},
            self.bindings,
            self.threads,
            REGION_SECONDS,
            self._settled,
        )
        return self._timing(times)

    def _settled(self, times: Comparison) -> bool:
        """Whether the region is quicker beyond doubt, or too short to be judged from here."""
        ratio = self._timing(times).ratio
        return ratio is None or ratio.high < CLEARLY

    def _timing(self, times: Comparison) -> RegionTiming:
        """What each contestant takes without what it costs to call it from here."""
        call, launches = times.median("call"), self.runner.launches
        running = times.seconds["stitched"] - times.seconds["idle"]
        net = {
            "stitched": running.clip(min=0.0) + launches * self.device.launch_seconds,
            "framework": (times.seconds["framework"] - times.seconds["call"]).clip(min=1e-9),
        }
        seconds = {name: float(np.median(values)) for name, values in net.items()}
        told = seconds | {"call": call}
        if seconds["framework"] < CALL_SHARE * call:
            bound = paired_ratio(net["stitched"], net["framework"] + call)
            if bound.low > SLOWER:
                return RegionTiming(told, bound)
            note = f"shorter than {CALL_SHARE:g} of what a call from outside costs"
            return RegionTiming(told, note=note)
        return RegionTiming(told, paired_ratio(net["stitched"], net["framework"]))
