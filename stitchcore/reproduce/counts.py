"""What one module becomes with some mechanisms, counted and estimated."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from stitchcore.autotune.kernels import WINS
from stitchcore.autotune.schedules import kernels_of
from stitchcore.compiler import latency
from stitchcore.compiler.pipeline import run
from stitchcore.compiler.stages import PLANNED, BuildOptions, ModuleState, stages_for
from stitchcore.device.records import Device
from stitchcore.errors import Reason
from stitchcore.fusion.mechanisms import ALL, Mechanism, Mechanisms
from stitchcore.fusion.text import bodies
from stitchcore.hlo.ir import opcodes
from stitchcore.hlo.ir.module import Module
from stitchcore.schedule.space import DEFAULT

LOCAL: Mechanisms = ALL - {
    Mechanism.REGIONAL,
    Mechanism.GLOBAL,
    Mechanism.REMOTE,
    Mechanism.DOMINANT_MERGING,
    Mechanism.ADAPTIVE_MAPPING,
}
"""What stitches nothing: values pass in registers alone, from one kernel to the next in memory."""


@dataclass(frozen=True)
class Counts:
    """Of a module and the bodies of its loops and branches, each once. `memory` are kernels and
    memory-intensive operations that no kernel holds, `math` library calls, `copies` operations that
    only copy. `one_by_one` and `bytes` are off-chip traffic before and after, `seconds` what the
    kernels are estimated to take, and `scheduled` what they are as their loops are (of a GPU; 0.0
    elsewhere), `aliases` outputs over the memory of inputs."""

    memory: int
    math: int
    copies: int
    one_by_one: int
    bytes: int
    seconds: float
    scheduled: float
    phases: int
    sections: int
    aliases: int


def counted(module: Module, device: Device, mechanisms: Mechanisms = ALL) -> Counts:
    """`module` up to its kernels in the loop IR. Raises Refused as `compile_module` does."""
    options = BuildOptions(mechanisms=mechanisms)
    state = run(PLANNED, ModuleState(module, device, options))
    assert state.plan is not None
    plans = [state.plan, *bodies(state.plan).values()]
    uses = [state.kernels[n] for of in (state.of, *state.inner.values()) for n in of]
    reasons = [refusal.reason for plan in plans for refusal in plan.refusals]
    copies = sum(value.opcode == opcodes.COPY for plan in plans for value in plan.opaque)
    walls = (Reason.LIBRARY_CALL, Reason.CONTROL_FLOW)
    kernels = sum(len(plan.patterns) for plan in plans)
    scheduled = 0.0
    if device.timing is not None:
        each = Counter(n for of in (state.of, *state.inner.values()) for n in of)
        scheduled = sum(
            count * latency.seconds(state.kernels[n], device) for n, count in each.items()
        )
    return Counts(
        memory=kernels + sum(reason not in walls for reason in reasons) - copies,
        math=reasons.count(Reason.LIBRARY_CALL),
        copies=copies,
        one_by_one=sum(plan.unfused.bytes for plan in plans),
        bytes=sum(plan.planned.bytes for plan in plans),
        seconds=sum(plan.planned.seconds for plan in plans),
        scheduled=scheduled,
        phases=sum(len(kernel.phases) for kernel in uses),
        sections=sum(len(phase.sections) for kernel in uses for phase in kernel.phases),
        aliases=sum(len(kernel.aliases) for kernel in uses),
    )


@dataclass(frozen=True)
class Searched:
    """Of the distinct `kernels` of a module, each as often as it is launched: microseconds by the
    latency-evaluator with the device's `own` schedule, and with the `best` of the `points` that
    differ; how many kernels have another than their own, and the choices that most of these make.
    """

    kernels: int
    points: int
    own: float
    best: float
    otherwise: int
    choices: str


def searched(module: Module, device: Device) -> Searched:
    """What a search of schedules would gain on a GPU, by estimate; no kernel is compiled."""
    options = BuildOptions()
    state = run(PLANNED, ModuleState(module, device, options))
    assert state.plan is not None
    plans = [(state.plan, state.of)]
    plans += [(plan, state.inner[body]) for body, plan in bodies(state.plan).items()]
    uses: Counter[int] = Counter(number for _, of in plans for number in of)
    first = {
        number: (pattern, plan.module)
        for plan, of in plans
        for pattern, number in zip(plan.patterns, of, strict=True)
    }
    points, own, best = 0, 0.0, 0.0
    chosen: Counter[str] = Counter()
    for number, (pattern, owner) in first.items():
        kernels = kernels_of(pattern, owner, device, options)
        estimates = {one: latency.seconds(kernel, device) for one, kernel in kernels.items()}
        quickest = min(estimates, key=lambda one: estimates[one])
        if estimates[quickest] >= WINS * estimates[DEFAULT]:
            quickest = DEFAULT
        else:
            chosen.update(f"{name}={int(value)}" for name, value in quickest.chosen.items())
            chosen["all"] += 1
        points += len(kernels)
        own += uses[number] * estimates[DEFAULT] * 1e6
        best += uses[number] * estimates[quickest] * 1e6
    otherwise = chosen.pop("all", 0)
    most = ", ".join(f"{choice} ({count})" for choice, count in chosen.most_common(3))
    return Searched(len(first), points, own, best, otherwise, most)


def stage_seconds(module: Module, device: Device) -> dict[str, float]:
    """Wall seconds of each stage, the compiler of the device's sources among them."""
    seconds: dict[str, float] = {}
    run(stages_for(device), ModuleState(module, device, BuildOptions()), seconds=seconds)
    return seconds
