"""Where measurement overrules the estimate: each kernel of a plan against other cuts of itself.

A kernel's instructions are taken out as a region, cut elsewhere (autotune/candidates.py), compiled
and run in turn. A cut replaces the kernel only if all its outputs are right (judged as any kernel,
verify/kernel.py) and it is quicker beyond doubt: the whole 95 % interval of its time against the
kernel's lies below WINS. Each launch is charged what the framework takes for one more operation.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from stitchcore.autotune.candidates import Cut, alternatives
from stitchcore.compiler.stages import BuildOptions, compile_kernels, kernel_of, symbol_of
from stitchcore.device.records import Device
from stitchcore.errors import Refusal, Refused
from stitchcore.fusion.canonical import outlined, pattern_key, pattern_text
from stitchcore.fusion.cost import cost, total
from stitchcore.fusion.pattern import Pattern, Plan
from stitchcore.fusion.text import bodies
from stitchcore.hlo.ir import dim as dims
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.hlo.ir.module import Module
from stitchcore.loop_ir.nodes import Kernel
from stitchcore.runtime.cpu_kernel import CpuKernel, load_library
from stitchcore.runtime.module import buffers, run_kernel
from stitchcore.schedule.pipeline import feasible
from stitchcore.verify.inputs import arguments
from stitchcore.verify.kernel import check_kernel
from stitchcore.verify.timing import Ratio, compare, paired_ratio

WINS = 0.97
SAME = Ratio(1.0, 1.0, 1.0)
CUTS = 6
"""Cuts of a kernel that are measured, the kernel itself among them."""

Array = np.ndarray[Any, np.dtype[Any]]
Progress = Callable[[int, int], None]
"""(done, total) kernels."""


@dataclass(frozen=True)
class Trial:
    """A cut of a kernel: estimated and median measured seconds, its time over the kernel's, and
    why it may not replace it however quick ("" when it may)."""

    cut: Cut
    estimate: float
    seconds: float
    ratio: Ratio
    wrong: str = ""


@dataclass(frozen=True)
class Choice:
    """Trials of one kernel, the kernel itself first, and the number of the one that is kept."""

    pattern: Pattern
    trials: tuple[Trial, ...]
    kept: int


@dataclass(frozen=True)
class Tuned:
    """The plan with what was overruled, and a choice for each distinct kernel."""

    plan: Plan
    choices: tuple[Choice, ...]

    def gain(self) -> tuple[float, float]:
        """Measured seconds of the distinct kernels before, and after."""
        return gain(self.choices)


def gain(choices: Sequence[Choice]) -> tuple[float, float]:
    """Measured seconds of kernels before, and after; those with one cut were not measured."""
    measured = [choice for choice in choices if len(choice.trials) > 1]
    before = sum(choice.trials[0].seconds for choice in measured)
    return before, sum(choice.trials[choice.kept].seconds for choice in measured)


@dataclass(frozen=True)
class Measuring:
    """How kernels are measured: sizes of the module's symbols, rounds of all cuts in turn, seconds
    that one kernel's cuts may take, and seconds after which no further kernel is begun."""

    bindings: Mapping[str, int] = field(default_factory=dict)
    rounds: int = 11
    seconds: float = 4.0
    total: float = math.inf


def tune(
    plan: Plan,
    device: Device,
    options: BuildOptions,
    measuring: Measuring,
    progress: Progress | None = None,
) -> Tuned:
    """Measure other cuts of every kernel of `plan` on this CPU, and keep what wins.

    Raises Refused where a kernel cannot be compiled.
    """
    ((tuned,), choices) = tune_all((plan,), device, options, measuring, progress)
    return Tuned(tuned, choices)


def tune_all(
    plans: Sequence[Plan],
    device: Device,
    options: BuildOptions,
    measuring: Measuring,
    progress: Progress | None = None,
) -> tuple[tuple[Plan, ...], tuple[Choice, ...]]:
    """As `tune`, of plans that may have kernels in common; the heaviest kernels come first."""
    began = time.perf_counter()
    kernels = distinct(plans, device)
    choices: dict[str, Choice] = {}
    for done, text in enumerate(kernels):
        if progress is not None:
            progress(done, len(kernels))
        if time.perf_counter() - began < measuring.total:
            choices[text] = _choice(*kernels[text], device, options, measuring)
        else:
            choices[text] = alone(kernels[text][0], device)
    return tuple(_overruled(plan, choices, device) for plan in plans), tuple(choices.values())


def distinct(plans: Sequence[Plan], device: Device) -> dict[str, tuple[Pattern, Module]]:
    """A pattern of each distinct kernel of `plans` and the module it is of, by its text; the
    heaviest first."""
    owners = [owner for plan in plans for owner in (plan, *bodies(plan).values())]
    kernels = {
        pattern_text(pattern): (pattern, owner.module)
        for owner in owners
        for pattern in owner.patterns
    }
    weight = {text: cost(pattern, device).seconds for text, (pattern, _) in kernels.items()}
    return {text: kernels[text] for text in sorted(kernels, key=lambda text: -weight[text])}


def alone(pattern: Pattern, device: Device) -> Choice:
    """No other cut of `pattern` is measured."""
    seconds = cost(pattern, device).seconds
    return Choice(pattern, (Trial((pattern,), seconds, seconds, SAME),), 0)


def _overruled(plan: Plan, choices: Mapping[str, Choice], device: Device) -> Plan:
    patterns: list[Pattern] = []
    for pattern in plan.patterns:
        choice = choices[pattern_text(pattern)]
        if choice.kept:
            patterns += _given_back(choice.trials[choice.kept].cut, pattern, plan.module)
        else:
            patterns.append(pattern)
    nested = {body: _overruled(inner, choices, device) for body, inner in plan.nested.items()}
    planned = total(cost(pattern, device) for pattern in patterns)
    return replace(plan, patterns=tuple(patterns), planned=planned, nested=nested)


def _given_back(cut: Cut, pattern: Pattern, module: Module) -> Iterator[Pattern]:
    """A cut of the region that `pattern` is, in the values of `module`."""
    _, copies = outlined(pattern, module)
    original = {copy: value for value, copy in copies.items()}
    for part in cut:
        yield Pattern(
            tuple(original[value] for value in part.instructions),
            tuple(original[value] for value in part.inputs),
            tuple(original[value] for value in part.outputs),
        )


# ---- one kernel ----------------------------------------------------------------------------------
def _choice(
    pattern: Pattern, owner: Module, device: Device, options: BuildOptions, measuring: Measuring
) -> Choice:
    region, _ = outlined(pattern, owner)
    kernels: dict[Pattern, Kernel] = {}

    def schedulable(part: Pattern, target: Device) -> Refusal | None:
        refusal = feasible(part, target)
        if refusal is None and part not in kernels:
            try:
                name = symbol_of(pattern_key(part))
                whole = len(part.instructions) == len(pattern.instructions)
                chosen = options.schedule_of(pattern if whole else part)
                kernels[part] = kernel_of(part, region, target, name, options, chosen)
            except Refused as refused:
                return refused.refusal
        return refusal

    cuts = list(alternatives(region, device, schedulable, CUTS))
    if len(cuts) < 2:
        return alone(pattern, device)
    used = list(dict.fromkeys(part for cut in cuts for part in cut))
    loaded = dict(zip(used, opened([kernels[part] for part in used], device, options), strict=True))
    runs = [Run(region, cut, loaded, device, measuring.bindings) for cut in cuts]
    return winner(pattern, runs, device, measuring)


def winner(pattern: Pattern, runs: Sequence[Run], device: Device, measuring: Measuring) -> Choice:
    """All `runs` in turn: what replaces the first of them is quicker beyond doubt, and right."""
    trials = _timed(runs, device, measuring)
    order = sorted(range(len(trials)), key=lambda number: trials[number].seconds)
    for number in order:
        if number == 0 or trials[number].ratio.high >= WINS:
            break
        wrong = runs[number].wrong()
        if not wrong:
            return Choice(pattern, tuple(trials), number)
        trials[number] = replace(trials[number], wrong=wrong)
    return Choice(pattern, tuple(trials), 0)


def opened(kernels: Sequence[Kernel], device: Device, options: BuildOptions) -> list[CpuKernel]:
    """`kernels`, whose names differ, compiled and loaded. Raises Refused."""
    compiled = compile_kernels({kernel.name: kernel for kernel in kernels}, device, options)
    libraries = [load_library(unit.library.data) for unit in compiled.units]
    return [CpuKernel(libraries[compiled.kernels[kernel.name].unit], kernel) for kernel in kernels]


class Run:
    """A cut's kernels bound to arrays, each reading what those before it wrote."""

    def __init__(
        self,
        region: Module,
        cut: Cut,
        kernels: Mapping[Pattern, CpuKernel],
        device: Device,
        bindings: Mapping[str, int],
    ) -> None:
        self.cut, self._region, self._kernels, self._bindings = cut, region, kernels, bindings
        parameters = region.entry.parameters
        values: dict[Instruction, Array] = dict(
            zip(parameters, arguments(parameters, bindings, 0, "positive"), strict=True)
        )
        self._pool = ThreadPoolExecutor(max_workers=device.units)
        self._launches, self._idles = [], []
        for part in cut:
            kernel = kernels[part]
            arrays = buffers(kernel.kernel, [values[value] for value in part.inputs], bindings)
            alone = cost(part, device.one_unit).seconds <= device.inline_seconds
            threads = 1 if alone else device.units
            launch, outputs, idle = kernel.prepared(arrays, bindings, self._pool, threads)
            launch()
            for value, array in zip(part.outputs, outputs, strict=True):
                extents = [dims.evaluate(dim, bindings) for dim in value.shape.dims]
                values[value] = array.reshape(extents)
            self._launches.append(launch)
            self._idles.append(idle)

    def run(self) -> None:
        for launch in self._launches:
            launch()

    def idle(self) -> None:
        """All but the work: what calling from Python costs."""
        for idle in self._idles:
            idle()

    def wrong(self) -> str:
        """Why the cut's results are not right, "" where they are."""
        for part in self.cut:
            kernel = self._kernels[part]

            def ours(
                arrays: Sequence[Array], kernel: CpuKernel = kernel, part: Pattern = part
            ) -> Any:
                return run_kernel(kernel, part, arrays, self._bindings)

            check = check_kernel(part, self._region, ours, self._bindings)
            if not check.passed:
                return str(check)
        return ""


def _timed(runs: Sequence[Run], device: Device, measuring: Measuring) -> list[Trial]:
    calls: dict[str, Callable[[], object]] = {}
    for number, run in enumerate(runs):
        calls |= {f"run {number}": run.run, f"idle {number}": run.idle}
    seconds = compare(calls, measuring.rounds, 0.002, measuring.seconds).seconds
    times = []
    for number, run in enumerate(runs):
        launches = len(run.cut) * device.launch_seconds
        idle = float(np.median(seconds[f"idle {number}"]))
        times.append(np.maximum(seconds[f"run {number}"] - idle, 1e-9) + launches)
    return [
        Trial(
            run.cut,
            sum(cost(part, device).seconds for part in run.cut),
            float(np.median(taken)),
            paired_ratio(taken, times[0]),
        )
        for run, taken in zip(runs, times, strict=True)
    ]
