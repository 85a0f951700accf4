"""A region's launches against the framework's own operations: right first, then faster.

Right: outputs are judged against the region's module in float64, with the framework's results as
the allowance (judge.py). Faster: launches and framework interleaved; a region whose ratio's 95 %
interval lies above SLOWER is dropped (rulings.md 26).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from stitchcore.artifact.launch import FromConstant, FromLaunch, FromRegion, Operand, RegionProgram
from stitchcore.hlo import dim as dims
from stitchcore.hlo.module import Module
from stitchcore.kernel import index
from stitchcore.kernel.nodes import Role
from stitchcore.target.cpu_runtime import CpuKernel
from stitchcore.verify.capture import arguments
from stitchcore.verify.exact import judge_all, telling
from stitchcore.verify.judge import Judgement
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

    def run(self, given: Sequence[Array], bindings: Mapping[str, int]) -> list[Array]:
        """The region's outputs for its inputs, on one thread."""
        made: list[list[Array]] = []
        for number, kernel in enumerate(self.kernels):
            made.append(kernel.run(self._inputs(number, given, made, bindings), bindings))
        return [_read(operand, given, made, bindings) for operand in self.program.outputs]

    def prepared(
        self,
        given: Sequence[Array],
        bindings: Mapping[str, int],
        pool: ThreadPoolExecutor,
        threads: int,
    ) -> Callable[[], None]:
        """All launches as one call to repeat, into memory that is already there: inside a job the
        outputs come from a pool that recycles them."""
        made: list[list[Array]] = []
        calls = []
        for number, kernel in enumerate(self.kernels):
            inputs = self._inputs(number, given, made, bindings)
            call, outputs = kernel.prepared(inputs, bindings, pool, threads)
            call()  # later launches read what this one wrote
            calls.append(call)
            made.append(outputs)

        def launch() -> None:
            for call in calls:
                call()

        return launch

    def _inputs(
        self,
        number: int,
        given: Sequence[Array],
        made: Sequence[Sequence[Array]],
        bindings: Mapping[str, int],
    ) -> list[Array]:
        """Inputs of launch `number` in the shapes of its kernel's buffers."""
        launch = self.program.launches[number]
        return [
            np.reshape(
                _read(operand, given, made, bindings),
                [index.evaluate(dim, bindings) for dim in buffer.dims],
            )
            for operand, buffer in zip(
                launch.inputs, launch.kernel.with_role(Role.INPUT), strict=True
            )
        ]


def _read(
    operand: Operand,
    given: Sequence[Array],
    made: Sequence[Sequence[Array]],
    bindings: Mapping[str, int],
) -> Array:
    match operand.source:
        case FromRegion(position):
            value = given[position]
        case FromLaunch(launch, output):
            value = made[launch][output]
        case FromConstant(literal):
            value = literal.array
    return np.reshape(value, [dims.evaluate(dim, bindings) for dim in operand.dims])


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
    """Judge the launches on drawn inputs of the most telling family (capture.FAMILIES)."""
    family, given, exact = telling(module, bindings, seed)
    return _judged(runner, module, reference, bindings, given, exact, family)


def _judged(
    runner: Runner,
    module: Module,
    reference: Reference,
    bindings: Mapping[str, int],
    given: Sequence[Array],
    exact: Sequence[Array],
    family: str,
) -> RegionCheck:
    ours = runner.run(given, bindings)
    theirs = [np.asarray(array) for array in reference(given)]
    limits = module_tolerances(module)
    return RegionCheck(judge_all(module, ours, exact, theirs, limits, given, bindings), family)


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
    with ThreadPoolExecutor(max_workers=threads) as pool:
        launch = runner.prepared(given, bindings, pool, threads)
        return compare(
            {
                "framework": lambda: reference(given),
                "stitched": launch,
                "call": lambda: empty(given),
            },
            rounds=15,
            limit_seconds=limit_seconds,
        )
