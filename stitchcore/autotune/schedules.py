"""Where a search overrules the device's limits: each kernel of a plan against itself, scheduled
otherwise (schedule/space.py).

On this CPU every distinct kernel of the space is compiled and run in turn, as cuts are
(autotune/kernels.py): what replaces the default is right and quicker beyond doubt, and again when
the two alone are measured, since of many the quickest was lucky too.

For a GPU a latency-evaluator ranks them (compiler/latency.py), and the BEST few are compiled: their
registers are known then, and none is taken that its compiler refuses. Where the GPU is there they
are launched too and the quickest that is right is kept; else the evaluator decides, and the entry
says that it is an estimate.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace

from stitchcore.autotune import calibrate_gpu
from stitchcore.autotune.kernels import (
    WINS,
    Choice,
    Measuring,
    Progress,
    Run,
    Trial,
    alone,
    distinct,
    opened,
    tune_all,
    winner,
)
from stitchcore.compiler import latency
from stitchcore.compiler.performance_library import ESTIMATED, MEASURED, Entry, Library
from stitchcore.compiler.stages import BuildOptions, symbol_of
from stitchcore.device.host import host
from stitchcore.device.records import Device
from stitchcore.errors import Refused
from stitchcore.fusion.canonical import outlined, pattern_key
from stitchcore.fusion.mechanisms import Mechanism
from stitchcore.fusion.pattern import Pattern, Plan
from stitchcore.hlo.ir.module import Module
from stitchcore.loop_ir.nodes import Kernel
from stitchcore.loop_ir.printer import print_kernel
from stitchcore.runtime.cuda_library import CudaLibrary
from stitchcore.runtime.gpu.device import Device as Gpu
from stitchcore.schedule import space
from stitchcore.schedule.pipeline import schedule
from stitchcore.schedule.space import DEFAULT, Schedule
from stitchcore.toolchain import cuda_compiler
from stitchcore.verify.kernel import KernelCheck, check_kernel
from stitchcore.verify.timing import Ratio


@dataclass(frozen=True)
class Searched:
    """What was found of one kernel: the schedules that were measured, or compiled and estimated,
    the default first; a trial of each; the number of the one that is kept; how that was decided
    (MEASURED or ESTIMATED); and of how many distinct kernels."""

    pattern: Pattern
    schedules: tuple[Schedule, ...]
    trials: tuple[Trial, ...]
    kept: int
    decided: str
    distinct: int

    def entry(self, machine: str) -> Entry:
        """For the performance library."""
        first, last = self.trials[0], self.trials[self.kept]
        return Entry(self.schedules[self.kept], last.seconds, first.seconds, self.decided, machine)


@dataclass(frozen=True)
class Tuned:
    """`plans` with what cuts overruled, a choice for each distinct kernel that there was, what was
    found of schedules by `pattern_key`, and `options` whose library has it."""

    plans: tuple[Plan, ...]
    choices: tuple[Choice, ...]
    found: Mapping[str, Searched]
    options: BuildOptions

    @property
    def wrong(self) -> tuple[str, ...]:
        """Why what was quicker was not taken, where it was not right."""
        tried = [choice.trials for choice in self.choices]
        tried += [searched.trials for searched in self.found.values()]
        return tuple(trial.wrong for trials in tried for trial in trials if trial.wrong)


def tune(
    plans: Sequence[Plan],
    device: Device,
    options: BuildOptions,
    measuring: Measuring,
    progress: Progress | None = None,
) -> Tuned:
    """Search schedules of every kernel of `plans`; on this CPU measure other cuts of the kernels as
    these leave them, then schedules of what was cut. Kernels may be common to plans.

    Raises Refused where a kernel cannot be compiled.
    """
    if device.kind == "gpu":
        found = search_all(plans, device, options, measuring, progress)
        uncut = tuple(alone(pattern, device) for pattern, _ in distinct(plans, device).values())
        return Tuned(tuple(plans), uncut, found, _knowing(options, found))
    if Mechanism.SEARCH not in options.mechanisms:
        return Tuned(*tune_all(plans, device, options, measuring, progress), {}, options)
    began = time.perf_counter()

    def left() -> float:
        return measuring.total - (time.perf_counter() - began)

    share = replace(measuring, total=measuring.total / 3)
    found = search_all(plans, device, options, share, progress)
    options = _knowing(options, found)
    share = replace(measuring, total=left() * 2 / 3)
    replans, choices = tune_all(plans, device, options, share, progress)
    share = replace(measuring, total=left())
    more = search_all(replans, device, options, share, progress)
    return Tuned(replans, choices, {**found, **more}, _knowing(options, more))


def _knowing(options: BuildOptions, found: Mapping[str, Searched]) -> BuildOptions:
    return replace(options, library=options.library.with_entries(entries(found)))


def search_all(
    plans: Sequence[Plan],
    device: Device,
    options: BuildOptions,
    measuring: Measuring,
    progress: Progress | None = None,
) -> dict[str, Searched]:
    """The kernels of `plans`, by `pattern_key`, less those that the library of `options` knows, the
    heaviest first; those that `measuring` leaves no time for are not among them.

    Raises Refused where a kernel cannot be compiled.
    """
    began = time.perf_counter()
    kernels = {
        key: (pattern, owner)
        for pattern, owner in distinct(plans, device).values()
        if (key := pattern_key(pattern)) not in options.library.entries
    }
    found: dict[str, Searched] = {}
    if Mechanism.SEARCH not in options.mechanisms:
        return found
    with ExitStack() as stack:
        here: Here | None = None
        if device.kind == "gpu":
            with suppress(Refused):
                here = stack.enter_context(calibrate_gpu.this_gpu(device))
        for done, (key, (pattern, owner)) in enumerate(kernels.items()):
            if time.perf_counter() - began >= measuring.total:
                break
            if progress is not None:
                progress(done, len(kernels))
            found[key] = _searched(pattern, owner, device, options, measuring, here)
    return found


def entries(found: Mapping[str, Searched]) -> dict[str, Entry]:
    """What a performance library keeps of them: the default too, where nothing was quicker."""
    machine = host().model
    return {key: searched.entry(machine) for key, searched in found.items()}


def gain(found: Mapping[str, Searched]) -> tuple[float, float]:
    """Seconds of the kernels that had a choice, with the default and with what is kept."""
    several = [searched for searched in found.values() if searched.distinct > 1]
    before = sum(searched.trials[0].seconds for searched in several)
    return before, sum(searched.trials[searched.kept].seconds for searched in several)


def kernels_of(
    pattern: Pattern, module: Module, device: Device, options: BuildOptions
) -> dict[Schedule, Kernel]:
    """The distinct kernels of the space, each by its first point; the default first, and each with
    a name of its own."""
    name = symbol_of(pattern_key(pattern))
    kernels: dict[str, tuple[Schedule, Kernel]] = {}
    for chosen in space.points(device):
        try:
            kernel = schedule(
                pattern,
                module,
                device,
                name,
                options.verify_passes,
                options.mechanisms,
                chosen,
            )
        except Refused:
            continue
        kernels.setdefault(print_kernel(kernel), (chosen, kernel))
    return {
        chosen: replace(kernel, name=f"{name}_{number}")
        for number, (chosen, kernel) in enumerate(kernels.values())
    }


def _searched(
    pattern: Pattern,
    owner: Module,
    device: Device,
    options: BuildOptions,
    measuring: Measuring,
    here: Here | None,
) -> Searched:
    region, copies = outlined(pattern, owner)
    parts = (pattern.instructions, pattern.inputs, pattern.outputs)
    inside = Pattern(*(tuple(copies[value] for value in part) for part in parts))
    kernels = kernels_of(inside, region, device, options)
    if device.kind == "gpu":
        return _ranked(inside, region, kernels, device, options, measuring, here)
    choice = _measured(inside, region, list(kernels.values()), device, options, measuring)
    return Searched(pattern, tuple(kernels), choice.trials, choice.kept, MEASURED, len(kernels))


def _measured(
    pattern: Pattern,
    region: Module,
    kernels: Sequence[Kernel],
    device: Device,
    options: BuildOptions,
    measuring: Measuring,
) -> Choice:
    """The quickest of `kernels` on this CPU, beyond doubt twice."""
    if len(kernels) == 1:
        return alone(pattern, device)
    runs = [
        Run(region, (pattern,), {pattern: kernel}, device, measuring.bindings)
        for kernel in opened(kernels, device, options)
    ]
    choice = winner(pattern, runs, device, measuring)
    if not choice.kept:
        return choice
    again = winner(pattern, [runs[0], runs[choice.kept]], device, measuring)
    trials = list(choice.trials)
    trials[0], trials[choice.kept] = again.trials
    return replace(choice, trials=tuple(trials), kept=choice.kept if again.kept else 0)


# ---- GPUs ----------------------------------------------------------------------------------------
Here = tuple[Gpu, CudaLibrary]
"""This machine's GPU and the launch library on its driver."""

BEST = 3
"""Of the schedules that are estimated quicker, how many are compiled."""


def _ranked(
    pattern: Pattern,
    region: Module,
    kernels: Mapping[Schedule, Kernel],
    device: Device,
    options: BuildOptions,
    measuring: Measuring,
    here: Here | None,
) -> Searched:
    """The default and the BEST of `kernels`, estimated anew once their registers are known, or
    measured."""

    def estimate(kernel: Kernel, held: int = 0) -> float:
        return latency.seconds(kernel, device, measuring.bindings, held)

    estimates = {chosen: estimate(kernel) for chosen, kernel in kernels.items()}
    quicker = [s for s in kernels if s != DEFAULT and estimates[s] < WINS * estimates[DEFAULT]]
    contenders = (DEFAULT, *sorted(quicker, key=lambda s: estimates[s])[:BEST])
    held = _held([kernels[chosen] for chosen in contenders], device, options)
    estimates = {
        chosen: estimate(kernels[chosen], blocks) if blocks is not None else math.inf
        for chosen, blocks in zip(contenders, held, strict=True)
    }
    taken, decided, wrong = estimates, ESTIMATED, dict.fromkeys(contenders, "")
    if here is not None and not region.symbols:
        taken, decided = {}, MEASURED
        for chosen in contenders:
            if math.isinf(estimates[chosen]):
                taken[chosen] = math.inf
                continue
            taken[chosen], wrong[chosen] = _launched(pattern, region, chosen, device, options, here)
    trials = tuple(
        Trial((pattern,), estimates[s], taken[s], _over(taken[s], taken[DEFAULT]), wrong[s])
        for s in contenders
    )
    kept = min(
        (number for number, trial in enumerate(trials) if not trial.wrong or not number),
        key=lambda number: trials[number].seconds,
    )
    kept = kept if trials[kept].ratio.value < WINS else 0
    return Searched(pattern, contenders, trials, kept, decided, len(kernels))


def _over(seconds: float, default: float) -> Ratio:
    """Where the default has no binary, whatever has one is quicker."""
    ratio = seconds / default if not math.isinf(default) else float(math.isinf(seconds))
    return Ratio(ratio, ratio, ratio)


def _held(kernels: Sequence[Kernel], device: Device, options: BuildOptions) -> Sequence[int | None]:
    """Blocks of each that a multiprocessor holds, as compiled; None of what its compiler refuses,
    and 0, which leaves it to an estimate of registers, where there is no compiler."""
    try:
        cuda_compiler.require(device.target)
    except Refused:
        return [0] * len(kernels)
    units, _ = cuda_compiler.compile_kernels(kernels, device.target, options.cache)
    blocks = {fit.kernel: fit.blocks for unit in units for fit in unit.fits}
    return [blocks.get(kernel.name) for kernel in kernels]


def _launched(
    pattern: Pattern,
    region: Module,
    chosen: Schedule,
    device: Device,
    options: BuildOptions,
    here: Here,
) -> tuple[float, str]:
    """Seconds of a launch on this machine's GPU, and why what it computes is not right, or ""."""
    found: list[KernelCheck] = []
    entry = Entry(chosen, 0.0, 0.0, MEASURED)
    options = replace(options, library=Library({pattern_key(pattern): entry}))
    seconds = calibrate_gpu.launch_seconds(
        region,
        device,
        *here,
        options,
        lambda run: found.append(check_kernel(pattern, region, run, {})),
    )
    return seconds, "" if found[0].passed else str(found[0])
