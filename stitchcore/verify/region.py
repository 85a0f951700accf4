"""A region's launches against the framework's own operations: right first, then faster.

Right: outputs are judged against the region's module in float64, with the framework's results as
the allowance (judge.py). Faster: launches and framework interleaved; a region whose ratio's 95 %
interval lies above SLOWER is dropped (rulings.md 26).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stitchcore.artifact.launch import FromConstant, FromLaunch, FromRegion, Operand, RegionProgram
from stitchcore.hlo import dim as dims
from stitchcore.hlo.evaluate import decisions, evaluate, evaluate_all
from stitchcore.hlo.module import Module
from stitchcore.kernel import index
from stitchcore.kernel.nodes import Role
from stitchcore.target.cpu_runtime import CpuKernel
from stitchcore.verify.capture import FAMILIES, arguments
from stitchcore.verify.judge import Judgement, judge
from stitchcore.verify.measure import Comparison, compare
from stitchcore.verify.tolerance import module_tolerances

Array = np.ndarray[Any, np.dtype[Any]]
Reference = Callable[[Sequence[Array]], Sequence[Array]]
"""The framework's own computation of a region: storage arrays in and out."""

SLOWER = 1.02
"""A ratio of times above this, with its whole 95 % interval, is slower."""


@dataclass(frozen=True)
class Runner:
    """A region's launches, loaded. `kernels[i]` is launch i's."""

    program: RegionProgram
    kernels: tuple[CpuKernel, ...]

    def run(
        self, given: Sequence[Array], bindings: Mapping[str, int], threads: int = 1
    ) -> list[Array]:
        """The region's outputs for its inputs."""
        made: list[list[Array]] = []

        def read(operand: Operand) -> Array:
            match operand.source:
                case FromRegion(position):
                    value = given[position]
                case FromLaunch(launch, output):
                    value = made[launch][output]
                case FromConstant(literal):
                    value = literal.array
            return np.reshape(value, [dims.evaluate(dim, bindings) for dim in operand.dims])

        for launch, kernel in zip(self.program.launches, self.kernels, strict=True):
            buffers = launch.kernel.with_role(Role.INPUT)
            inputs = [
                np.reshape(read(operand), [index.evaluate(dim, bindings) for dim in buffer.dims])
                for operand, buffer in zip(launch.inputs, buffers, strict=True)
            ]
            made.append(kernel.run(inputs, bindings, threads))
        return [read(operand) for operand in self.program.outputs]


@dataclass(frozen=True)
class RegionCheck:
    """Judgements of a region's outputs, on data of one family."""

    judgements: tuple[Judgement, ...]
    data: str

    @property
    def passed(self) -> bool:
        return all(judgement.passed for judgement in self.judgements)

    @property
    def informative(self) -> bool:
        return all(judgement.informative for judgement in self.judgements)

    @property
    def detail(self) -> str:
        """What failed, for a refusal; empty when all passed."""
        failed = [
            f"output {number}: {judgement}"
            for number, judgement in enumerate(self.judgements)
            if not judgement.passed
        ]
        return f"on {self.data} data, " + "; ".join(failed[:3]) if failed else ""


def check_region(
    runner: Runner,
    module: Module,
    reference: Reference,
    bindings: Mapping[str, int],
    seed: int = 0,
) -> RegionCheck:
    """Judge the launches on drawn inputs; every family tried must pass, the first informative one
    ends the search."""
    best: RegionCheck | None = None
    for family in FAMILIES:
        given = arguments(module.entry.parameters, bindings, seed, family)
        check = _judged(runner, module, reference, bindings, given, family)
        if not check.passed or check.informative:
            return check
        told = sum(judgement.informative for judgement in check.judgements)
        if best is None or told > sum(judgement.informative for judgement in best.judgements):
            best = check
    assert best is not None
    return best


def _judged(
    runner: Runner,
    module: Module,
    reference: Reference,
    bindings: Mapping[str, int],
    given: Sequence[Array],
    family: str,
) -> RegionCheck:
    ours = runner.run(given, bindings)
    theirs = [np.asarray(array) for array in reference(given)]
    exact = evaluate(module, given, bindings, "float64")
    limits = module_tolerances(module)
    found = [judge(*four) for four in zip(ours, exact, theirs, limits, strict=True)]
    if all(judgement.passed for judgement in found):
        return RegionCheck(tuple(found), family)
    deciding = decisions(module)
    if deciding:
        values = evaluate_all(module, given, bindings, "storage", set(deciding))
        forced = {node: values[node] for node in deciding}
        exact = evaluate(module, given, bindings, "float64", forced)
        found = [judge(*four) for four in zip(ours, exact, theirs, limits, strict=True)]
    return RegionCheck(tuple(found), family)


def time_region(
    runner: Runner,
    module: Module,
    reference: Reference,
    empty: Reference,
    bindings: Mapping[str, int],
    threads: int,
    limit_seconds: float,
) -> Comparison:
    """Interleaved times of "stitched" and "framework", and of "call": the framework's cost of
    calling a function of these arguments that does nothing."""
    given = arguments(module.entry.parameters, bindings, 0, "positive")
    return compare(
        {
            "framework": lambda: reference(given),
            "stitched": lambda: runner.run(given, bindings, threads),
            "call": lambda: empty(given),
        },
        rounds=9,
        limit_seconds=limit_seconds,
    )
