"""From plans to launches: many regions built together, each distinct kernel compiled once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from stitchcore.artifact.launch import (
    FromConstant,
    FromLaunch,
    FromRegion,
    Launch,
    Operand,
    RegionProgram,
)
from stitchcore.compiled import CompiledKernel
from stitchcore.device.records import Device
from stitchcore.errors import Reason, Refusal, Refused
from stitchcore.hlo import opcodes
from stitchcore.hlo.instruction import Instruction
from stitchcore.hlo.module import Module
from stitchcore.kernel.nodes import Kernel
from stitchcore.plan import candidates
from stitchcore.plan.candidates import Role
from stitchcore.plan.cost import cost, unfused
from stitchcore.plan.pattern import Pattern, Plan
from stitchcore.stages import STAGES, BuildOptions, Progress, State, compile_kernels, run_stages
from stitchcore.target.toolchain import CompiledLibrary


@dataclass(frozen=True)
class RegionBuild:
    """One region, planned and scheduled: the plan, its kernels' keys in launch order."""

    module: Module
    plan: Plan
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Build:
    """All regions of a graph, by region key, and the distinct kernels and libraries they share."""

    regions: Mapping[str, RegionBuild]
    kernels: Mapping[str, CompiledKernel]
    libraries: tuple[CompiledLibrary, ...]
    refusals: tuple[Refusal, ...]
    seconds: Mapping[str, float]


def build(
    modules: Mapping[str, Module],
    device: Device,
    options: BuildOptions,
    progress: Progress | None = None,
) -> Build:
    """Plan and schedule every module, then compile all distinct kernels in batches.

    A region with an instruction that no kernel can hold is refused whole: its launches would not
    cover it. Compilers run `options.jobs` at a time. Dumps go to a folder per region.
    """
    seconds: dict[str, float] = {}
    regions: dict[str, RegionBuild] = {}
    refusals: list[Refusal] = []
    kernels: dict[str, Kernel] = {}
    for number, (key, module) in enumerate(modules.items()):
        if progress is not None:
            progress("plan", number, len(modules))
        own = replace(options, dump=options.dump / key[:12]) if options.dump else options
        try:
            state = run_stages(State(module, device, own), STAGES[:-1], seconds)
        except Refused as refused:
            refusals.append(Refusal(key, refused.refusal.reason, str(refused.refusal)))
            continue
        assert state.plan is not None
        if state.plan.opaque:
            worst = state.plan.refusals[0]
            refusals.append(Refusal(key, worst.reason, f"{worst.subject} {worst.detail}"))
            continue
        kernels |= dict(zip(state.keys, state.kernels, strict=True))
        launched = tuple(state.keys[index] for index in state.of)
        regions[key] = RegionBuild(state.module, state.plan, launched)
    if progress is not None:
        progress("compile", 0, len(kernels))
    compiled, libraries = compile_kernels(kernels, device, options, seconds)
    return Build(regions, compiled, libraries, tuple(refusals), seconds)


def program(made: Build, key: str, device: Device) -> RegionProgram:
    """The launches of region `key`. Raises Refused where a value has no source."""
    region = made.regions[key]
    graph = candidates.build(region.module, {})
    owner = {
        value: FromLaunch(number, output)
        for number, pattern in enumerate(region.plan.patterns)
        for output, value in enumerate(pattern.outputs)
    }
    launches = tuple(
        _launch(pattern, made.kernels[kernel], owner, graph, device)
        for pattern, kernel in zip(region.plan.patterns, region.keys, strict=True)
    )
    return RegionProgram(launches, tuple(_operand(v, owner) for v in region.module.outputs))


def _launch(
    pattern: Pattern,
    entry: CompiledKernel,
    owner: Mapping[Instruction, FromLaunch],
    graph: candidates.Graph,
    device: Device,
) -> Launch:
    estimate = cost(pattern, device)
    return Launch(
        entry.key,
        entry.kernel,
        entry.library,
        tuple(_operand(value, owner) for value in pattern.inputs),
        round(estimate.seconds * device.units * 1e9),
        saved_bytes(pattern, graph, device),
    )


def saved_bytes(pattern: Pattern, graph: candidates.Graph, device: Device) -> int:
    """Bytes not moved because `pattern` is one kernel; 0 for a single operation."""
    own = [n for n in pattern.instructions if graph.roles[graph.position[n]] is Role.PLACED]
    if len(own) < 2:
        return 0
    return max(0, unfused(own, device).bytes - cost(pattern, device).bytes)


def _operand(value: Instruction, owner: Mapping[Instruction, FromLaunch]) -> Operand:
    """Where `value` is in memory; views are looked through, keeping the shape that is asked for."""
    dims = value.shape.dims
    while True:
        if value in owner:
            return Operand(owner[value], dims)
        if value.opcode == opcodes.PARAMETER:
            return Operand(FromRegion(value["number"]), dims)
        if value.opcode == opcodes.CONSTANT and value.get("value") is not None:
            return Operand(FromConstant(value["value"]), dims)
        if value.opcode not in candidates.VIEWS:
            detail = f"{value.opcode} {value.shape} is made by no kernel"
            raise Refused("region", Reason.UNSUPPORTED_OPCODE, detail)
        value = value.operands[0]
