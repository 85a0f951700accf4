"""A region's launches against the framework's own operations: right first, then faster.

Right: outputs are judged against the region's module in float64, with the framework's results as
the allowance (accuracy.py). Faster: launches and framework interleaved; a region whose ratio's 95 %
interval lies above SLOWER is dropped (docs/decisions.md 26).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from stitchcore.hlo.ir.instruction import topological
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.launch.place import Place, value_at
from stitchcore.launch.region_program import RegionLaunch, RegionProgram
from stitchcore.loop_ir import index
from stitchcore.loop_ir.nodes import Role
from stitchcore.runtime.cpu_kernel import CpuKernel
from stitchcore.verify.accuracy import Judgement, judge
from stitchcore.verify.inputs import arguments, integer_limit, whole_numbers
from stitchcore.verify.reference import judge_all, telling, well_conditioned
from stitchcore.verify.timing import Comparison, compare
from stitchcore.verify.tolerance import module_tolerances, of_short_sums, unit

Array = np.ndarray[Any, np.dtype[Any]]
Reference = Callable[[Sequence[Array]], Sequence[Array]]
"""The framework's own computation of a region: storage arrays in and out."""

THREADED_WORK = 200_000
"""Nanoseconds of work from which a job runs a launch on more than the calling thread."""

APART = 0.02
"""The framework's result is another one where it is this far from float64's, relative to the
element and the array's root mean square: more than rounding does in float32."""

APART_ROUNDINGS = 16
"""The same in units of the coarsest type's rounding, for bfloat16 and float16."""

APART_SHARE = 0.01
"""Most elements that may be apart: decisions that fall the other way, and cancellation."""

ROUNDS = 36
"""Most measurements of a region."""

ROUND_SECONDS = 0.0005
"""Calls of a region are repeated for as long, to be one measurement."""

SLOWER = 1.02
"""A ratio of times above this, with its whole 95 % interval, is slower."""


class RegionRunner(Protocol):
    """A region's launches on what they are made for: `Runner` here, runtime/gpu/region.py on a
    GPU."""

    @property
    def launches(self) -> int:
        """How many kernels a run launches."""

    def run(self, inputs: Sequence[Array], bindings: Mapping[str, int]) -> list[Array]:
        """The region's outputs for its inputs."""

    def prepared(
        self,
        inputs: Sequence[Array],
        bindings: Mapping[str, int],
        pool: ThreadPoolExecutor,
        threads: int,
    ) -> tuple[Callable[[], None], Callable[[], None]]:
        """All launches as one call to repeat, done when it returns; and the same without its
        work."""


@dataclass(frozen=True)
class Runner:
    """A region's launches, loaded. `kernels[i]` is launch i's."""

    program: RegionProgram
    kernels: tuple[CpuKernel, ...]

    @property
    def launches(self) -> int:
        return len(self.kernels)

    def run(self, inputs: Sequence[Array], bindings: Mapping[str, int]) -> list[Array]:
        """The region's outputs for its inputs, on one thread."""
        written: dict[Place, Array] = {}
        for launch, kernel in zip(self.program.launches, self.kernels, strict=True):
            outputs = kernel.run(_inputs(launch, inputs, written, bindings), bindings)
            written.update(zip(launch.outputs, outputs, strict=True))
        return self.program.results(inputs, written, bindings)

    def prepared(
        self,
        inputs: Sequence[Array],
        bindings: Mapping[str, int],
        pool: ThreadPoolExecutor,
        threads: int,
    ) -> tuple[Callable[[], None], Callable[[], None]]:
        """All launches as one call to repeat, into memory that is already there: inside a job the
        outputs come from a pool that recycles them. And the same call without its work.

        A launch runs on as many threads as the job would give it (contracts.md 3)."""
        written: dict[Place, Array] = {}
        calls, idles = [], []
        for launch, kernel in zip(self.program.launches, self.kernels, strict=True):
            operands = _inputs(launch, inputs, written, bindings)
            count = threads if launch.work >= THREADED_WORK else 1
            call, outputs, idle = kernel.prepared(operands, bindings, pool, count)
            call()  # later launches read what this one wrote
            calls.append(call)
            idles.append(idle)
            written.update(zip(launch.outputs, outputs, strict=True))

        def run_all() -> None:
            for call in calls:
                call()

        def idle_all() -> None:
            for idle in idles:
                idle()

        return run_all, idle_all


def _inputs(
    launch: RegionLaunch,
    inputs: Sequence[Array],
    written: Mapping[Place, Array],
    bindings: Mapping[str, int],
) -> list[Array]:
    """Inputs of `launch` in the shapes of its kernel's buffers."""
    buffers = launch.kernel.with_role(Role.INPUT)
    return [
        np.reshape(
            value_at(place, inputs, written, lambda array: array),
            [index.evaluate(extent, bindings) for extent in buffer.dims],
        )
        for place, buffer in zip(launch.inputs, buffers, strict=True)
    ]


@dataclass(frozen=True)
class RegionCheck:
    """Judgements of a region's outputs, on data of one family.

    `apart` is, by output, the share of elements on which the framework itself is far from the
    region's module: that the kernels do what the module says proves nothing where the module does
    not say what the framework computes. `undecided` are outputs that fail only where the drawn data
    cannot tell right from wrong: the job's own data does (native/shadow.cc).
    """

    judgements: tuple[Judgement, ...]
    data: str
    apart: tuple[float, ...] = ()
    undecided: frozenset[int] = frozenset()

    @property
    def failed(self) -> frozenset[int]:
        """Outputs that are not as they should be, undecided ones among them."""
        wrong = {n for n, judgement in enumerate(self.judgements) if not judgement.passed}
        return frozenset(wrong | {n for n, share in enumerate(self.apart) if share > APART_SHARE})

    @property
    def passed(self) -> bool:
        return self.failed <= self.undecided

    @property
    def informative(self) -> bool:
        return all(judgement.informative for judgement in self.judgements)

    @property
    def detail(self) -> str:
        """What failed, for a refusal; empty when all passed."""
        failed = [
            f"output {number}: {judgement}"
            for number, judgement in enumerate(self.judgements)
            if not judgement.passed and number not in self.undecided
        ]
        failed += [
            f"output {number}: the framework differs from the lowered module on {share:.0%}"
            for number, share in enumerate(self.apart)
            if share > APART_SHARE and number not in self.undecided
        ]
        return f"on {self.data} data, " + "; ".join(failed[:3]) if failed else ""


def check_region(
    runner: RegionRunner,
    module: Module,
    reference: Reference,
    bindings: Mapping[str, int],
    seed: int = 0,
    job_decides: bool = False,
) -> RegionCheck:
    """Judge the launches on drawn inputs of the most telling family (inputs.FAMILIES). With
    `job_decides` what these cannot tell is left to the job's own data."""
    family, inputs, exact = telling(module, bindings, seed)
    return _judged(runner, module, reference, bindings, inputs, exact, family, job_decides)


def _judged(
    runner: RegionRunner,
    module: Module,
    reference: Reference,
    bindings: Mapping[str, int],
    inputs: Sequence[Array],
    exact: Sequence[Array],
    family: str,
    job_decides: bool,
) -> RegionCheck:
    theirs = [np.asarray(array) for array in reference(inputs)]
    ours = runner.run(inputs, bindings)
    limits = module_tolerances(module)
    judgements = judge_all(module, ours, exact, theirs, limits, inputs, bindings)
    rounding = APART_ROUNDINGS * _coarsest(module)
    most = [max(APART, rounding, short) for short in of_short_sums(module)]
    apart = tuple(map(_apart, theirs, exact, most))
    check = RegionCheck(judgements, family, apart)
    if check.passed or not job_decides:
        return check
    telling_elements = well_conditioned(module, exact, limits, inputs, bindings)
    undecided = set()
    for number in check.failed:
        told = telling_elements[number]
        mine, right, wanted = (
            np.asarray(a[number]).reshape(told.shape)[told] for a in (ours, exact, theirs)
        )
        same = _apart(wanted, right, most[number]) <= APART_SHARE
        if same and not told.all() and judge(mine, right, wanted, limits[number]).passed:
            undecided.add(number)
    return replace(check, undecided=frozenset(undecided))


def _coarsest(module: Module) -> float:
    """Rounding of the coarsest float type that a value of `module` has."""
    values = topological((module.entry.root,))
    return max((unit(v.shape.dtype) for v in values if v.shape.dtype in DTYPES), default=0.0)


def _apart(theirs: Array, exact: Array, limit: float) -> float:
    """Share of elements on which `theirs` is farther than `limit`, relative, from `exact`."""
    if exact.size == 0:
        return 0.0
    if theirs.dtype.kind in "iub":
        return float(np.mean(theirs != exact.astype(theirs.dtype)))
    wide, expected = theirs.astype(np.float64), exact.astype(np.float64)
    both = np.isfinite(wide) & np.isfinite(expected)
    if not both.any():
        return 0.0
    wide, expected = wide[both], expected[both]
    scale = float(np.sqrt(np.mean(np.square(expected))))
    return float(np.mean(np.abs(wide - expected) > limit * (np.abs(expected) + scale)))


def time_region(
    runner: RegionRunner,
    module: Module,
    baselines: Mapping[str, Reference],
    bindings: Mapping[str, int],
    threads: int,
    limit_seconds: float,
    settled: Callable[[Comparison], bool] | None = None,
) -> Comparison:
    """Interleaved times of `baselines`, "stitched", and "idle": our launches without their work,
    which is what calling them from Python costs. Short runs are repeated, and all until they are
    `settled` (timing.compare): many short measurements tell of neighbours apart, and few are
    enough where there is no doubt."""
    integers = integer_limit(module, bindings)
    whole = whole_numbers(module)
    inputs = arguments(module.entry.parameters, bindings, 0, "positive", integers, whole)
    with ThreadPoolExecutor(max_workers=threads) as pool:
        launch, idle = runner.prepared(inputs, bindings, pool, threads)
        calls: dict[str, Callable[[], object]] = {
            name: partial(baseline, inputs) for name, baseline in baselines.items()
        }
        calls |= {"stitched": launch, "idle": idle}
        return compare(calls, ROUNDS, ROUND_SECONDS, limit_seconds, settled=settled)
