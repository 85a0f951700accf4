"""Proof of a build: every distinct region right and not slower, or refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stitchcore.artifact.launch import RegionProgram
from stitchcore.errors import Reason, Refusal
from stitchcore.program import Build
from stitchcore.stages import Progress
from stitchcore.target.cpu_runtime import CheckFailed, CpuKernel, load_library
from stitchcore.verify.measure import Ratio, paired_ratio
from stitchcore.verify.region import (
    SLOWER,
    Reference,
    RegionCheck,
    Runner,
    check_region,
    time_region,
)

TIMED_SECONDS = 0.001
"""Regions estimated below this are not timed alone: calling them from outside costs as much. The
job's own paired blocks judge them (rulings.md 19)."""

SYMBOL_SIZE = 32
"""What each symbol is bound to in a proof."""

LIMIT_SECONDS = 1.5
"""Longest that one region is timed."""


@dataclass(frozen=True)
class RegionProof:
    """A region's check and, where it was timed, stitched time over the framework's."""

    check: RegionCheck
    ratio: Ratio | None
    seconds: Mapping[str, float]

    def summary(self) -> dict[str, Any]:
        """For report.json."""
        found: dict[str, Any] = {
            "passed": self.check.passed,
            "informative": self.check.informative,
            "data": self.check.data,
            "worst_error": max((j.worst_ours for j in self.check.judgements), default=0.0),
            "framework_error": max((j.worst_theirs for j in self.check.judgements), default=0.0),
        }
        if self.ratio is not None:
            found |= {"ratio": [self.ratio.low, self.ratio.value, self.ratio.high]}
            found |= {"seconds": dict(self.seconds)}
        return found


@dataclass(frozen=True)
class Proof:
    """By region key: the proofs, and the refusals (WRONG_RESULT, SLOWER) of those that failed."""

    regions: Mapping[str, RegionProof]
    refused: Mapping[str, Refusal]


def prove(
    made: Build,
    programs: Mapping[str, RegionProgram],
    references: Mapping[str, tuple[Reference, Reference]],
    threads: int,
    progress: Progress | None = None,
) -> Proof:
    """Check and time every region. `references`: (the region, an empty call) by the framework."""
    libraries = [load_library(library.data) for library in made.libraries]
    proofs: dict[str, RegionProof] = {}
    refused: dict[str, Refusal] = {}
    for number, (key, chosen) in enumerate(programs.items()):
        if progress is not None:
            progress("prove", number, len(programs))
        kernels = (CpuKernel(libraries[one.library], one.kernel) for one in chosen.launches)
        runner = Runner(chosen, tuple(kernels))
        try:
            proofs[key] = _proof(made, key, runner, references[key], threads)
        except CheckFailed as error:
            refused[key] = Refusal(key[:12], Reason.WRONG_RESULT, str(error))
            continue
        found = proofs[key]
        if not found.check.passed:
            refused[key] = Refusal(key[:12], Reason.WRONG_RESULT, found.check.detail)
        elif found.ratio is not None and found.ratio.low > SLOWER:
            refused[key] = Refusal(key[:12], Reason.SLOWER, f"time ratio {found.ratio}")
    return Proof(proofs, refused)


def _proof(
    made: Build, key: str, runner: Runner, references: tuple[Reference, Reference], threads: int
) -> RegionProof:
    region = made.regions[key]
    bindings = dict.fromkeys(region.module.symbols, SYMBOL_SIZE)
    check = check_region(runner, region.module, references[0], bindings)
    if not check.passed or region.plan.planned.seconds < TIMED_SECONDS:
        return RegionProof(check, None, {})
    times = time_region(
        runner, region.module, *references, bindings, threads, limit_seconds=LIMIT_SECONDS
    )
    call = times.median("call")
    framework = times.seconds["framework"] - call
    ratio = paired_ratio(times.seconds["stitched"], framework.clip(min=1e-9))
    medians = {name: times.median(name) for name in ("framework", "stitched", "call")}
    return RegionProof(check, ratio, medians)
