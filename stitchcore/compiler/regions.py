"""From plans to launches: many regions built together, each distinct kernel compiled once."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from stitchcore.compiler.gpu_tables import compile_programs
from stitchcore.compiler.module import CompiledKernel
from stitchcore.compiler.stages import (
    PLANNED,
    BuildOptions,
    Progress,
    State,
    compile_kernels,
    rescheduled,
    restartable,
    run_stages,
)
from stitchcore.device.records import Device
from stitchcore.errors import Reason, Refusal, Refused
from stitchcore.fusion import candidates
from stitchcore.fusion.candidates import Role
from stitchcore.fusion.cost import cost, unfused
from stitchcore.fusion.pattern import Pattern, Plan
from stitchcore.hlo.ir import opcodes
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.hlo.ir.module import Module
from stitchcore.launch.region_program import (
    FromConstant,
    FromLaunch,
    FromRegion,
    Launch,
    Operand,
    RegionProgram,
)
from stitchcore.loop_ir.nodes import Kernel
from stitchcore.toolchain.c_compiler import CompiledLibrary

SHARED = "kernels"
"""The dump folder of the stages that run over all regions' kernels together."""


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
    cover it. Compilers run `options.jobs` at a time. Dumps go to a folder per region, and those of
    what all share to the folder "kernels"; an edited stage is known by the folder it lies in.
    """
    _known_restart(options, [key[:12] for key in modules], device)
    seconds: dict[str, float] = {}
    regions: dict[str, RegionBuild] = {}
    refusals: list[Refusal] = []
    kernels: dict[str, Kernel] = {}
    for number, (key, module) in enumerate(modules.items()):
        if progress is not None:
            progress("plan", number, len(modules))
        own = _options_of(options, key[:12])
        try:
            state = run_stages(State(module, device, own), PLANNED, seconds)
            _same_interface(own, module, state.module)
        except Refused as refused:
            if own.restart is not None:
                raise
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
    if device.kind == "gpu":
        return _built_for_gpu(regions, kernels, device, options, (tuple(refusals), seconds))
    shared = _options_of(options, SHARED)
    compiled, libraries = compile_kernels(kernels, device, shared, seconds)
    return Build(regions, compiled, libraries, tuple(refusals), seconds)


def replanned(
    made: Build, plans: Mapping[str, Plan], device: Device, options: BuildOptions
) -> Build:
    """`made` with other `plans` of some of its regions, for a CPU. Raises Refused."""
    regions = dict(made.regions)
    kernels = {key: one.kernel for key, one in made.kernels.items()}
    for key, plan in plans.items():
        state = rescheduled(plan, device, options)
        kernels |= dict(zip(state.keys, state.kernels, strict=True))
        launched = tuple(state.keys[index] for index in state.of)
        regions[key] = RegionBuild(regions[key].module, plan, launched)
    used = {key: kernels[key] for region in regions.values() for key in region.keys}
    seconds = dict(made.seconds)
    compiled, libraries = compile_kernels(used, device, options, seconds)
    return Build(regions, compiled, libraries, made.refusals, seconds)


def _built_for_gpu(
    regions: Mapping[str, RegionBuild],
    kernels: Mapping[str, Kernel],
    device: Device,
    options: BuildOptions,
    so_far: tuple[tuple[Refusal, ...], dict[str, float]],
) -> Build:
    """A region with a kernel that has no program is refused whole."""
    refusals, seconds = so_far
    start = time.perf_counter()
    compiled, libraries, refused = compile_programs(kernels, device, options.cache)
    seconds["compile"] = seconds.get("compile", 0.0) + time.perf_counter() - start
    kept: dict[str, RegionBuild] = {}
    for name, region in regions.items():
        why = next((refused[key] for key in region.keys if key in refused), None)
        if why is None:
            kept[name] = region
        else:
            refusals += (Refusal(name, why.reason, f"{why.subject}: {why.detail}"),)
    return Build(kept, compiled, libraries, refusals, seconds)


def _options_of(options: BuildOptions, name: str) -> BuildOptions:
    """Options of one region, or of what all share: its folder of dumps, its edited stage."""
    restart = options.restart
    return replace(
        options,
        dump=options.dump / name if options.dump else None,
        restart=restart if restart is not None and restart.parent.name == name else None,
    )


def _known_restart(options: BuildOptions, regions: Sequence[str], device: Device) -> None:
    """Raises Refused for an edited file that would replace nothing."""
    path = options.restart
    if path is None:
        return
    stages = restartable(device)
    if path.name not in stages:
        detail = f"a file to go on from is called one of {', '.join(stages)}"
        raise Refused(str(path), Reason.PARSE_ERROR, detail)
    shared = stages[path.name] not in PLANNED
    if path.parent.name not in ([SHARED] if shared else regions):
        where = SHARED if shared else f"one of {', '.join(regions)} (regions of this graph)"
        detail = f"{path.name} must lie in a folder called {where}"
        raise Refused(str(path), Reason.PARSE_ERROR, detail)


def _same_interface(options: BuildOptions, before: Module, after: Module) -> None:
    """Raises Refused where an edited module no longer takes or returns what its region does."""
    shapes = [
        [[value.shape for value in values] for values in (one.entry.parameters, one.outputs)]
        for one in (before, after)
    ]
    if options.restart is not None and shapes[0] != shapes[1]:
        detail = "parameters and results must stay those of the region"
        raise Refused(str(options.restart), Reason.PARSE_ERROR, detail)


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


def stitched_share(region: RegionBuild, device: Device) -> float:
    """Share of a region's traffic, one by one, that kernels of two operations or more take over."""
    graph = candidates.build(region.module, {})
    placed = [
        [n for n in pattern.instructions if graph.roles[graph.position[n]] is Role.PLACED]
        for pattern in region.plan.patterns
    ]
    everything = sum(unfused(own, device).bytes for own in placed)
    together = sum(unfused(own, device).bytes for own in placed if len(own) > 1)
    return together / everything if everything else 0.0


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
