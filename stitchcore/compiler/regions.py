"""From plans to launches: many regions built together, each distinct kernel compiled once."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path
from types import MappingProxyType

from stitchcore.codegen import c as emit_c
from stitchcore.compiler import gpu_tables
from stitchcore.compiler.module import CompiledKernel
from stitchcore.compiler.pipeline import Dump, Progress, restartable, run
from stitchcore.compiler.stages import (
    PLANNED,
    BuildOptions,
    ModuleState,
    compile_kernels,
    rescheduled,
    stages_for,
    unsearched,
)
from stitchcore.device.records import Device
from stitchcore.errors import Reason, Refusal, Refused
from stitchcore.fusion import candidates
from stitchcore.fusion.candidates import Role
from stitchcore.fusion.cost import cost, unfused
from stitchcore.fusion.pattern import Pattern, Plan
from stitchcore.hlo.ir import opcodes
from stitchcore.hlo.ir.dim import Dim
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.symbolic.parts import never_positive
from stitchcore.launch.place import Constant, Input, Place, Temporary
from stitchcore.launch.region_program import RegionLaunch, RegionProgram, Result
from stitchcore.loop_ir.nodes import Kernel
from stitchcore.toolchain import c_compiler
from stitchcore.toolchain.c_compiler import CompiledLibrary

SHARED = "kernels"
"""The dump folder of the stages that run over all regions' kernels together."""


@dataclass(frozen=True)
class PlannedRegion:
    """One region, planned and scheduled: the plan, its kernels' keys in launch order, and what must
    hold of its sizes (hlo/symbolic/parts.py)."""

    module: Module
    plan: Plan
    keys: tuple[str, ...]
    never_positive: tuple[Dim, ...] = ()


@dataclass(frozen=True)
class CompiledRegions:
    """All regions of a graph, by region key, and the distinct kernels and libraries they share: of
    a GPU, `libraries` are launch tables. `seconds` are wall times by stage."""

    regions: Mapping[str, PlannedRegion]
    kernels: Mapping[str, CompiledKernel]
    libraries: tuple[CompiledLibrary, ...]
    refusals: tuple[Refusal, ...]
    seconds: Mapping[str, float]


def compile_regions(
    modules: Mapping[str, Module],
    device: Device,
    options: BuildOptions,
    dump: Dump | None = None,
    progress: Progress | None = None,
) -> CompiledRegions:
    """Plan and schedule every module, then compile all distinct kernels together.

    A region with an instruction that no kernel can hold is refused whole: its launches would not
    cover it; where that is for want of a binary, schedules that were chosen are given up first.
    Compilers run `options.jobs` at a time. Dumps go to a folder per region, and those of
    what all share to the folder "kernels"; an edited stage is known by the folder it lies in.
    """
    dump = dump or Dump()
    _require_known(dump.restart, [key[:12] for key in modules], device)
    seconds: dict[str, float] = {}
    ahead = Ahead(device, options)
    regions: dict[str, PlannedRegion] = {}
    refusals: list[Refusal] = []
    kernels: dict[str, Kernel] = {}
    for number, (key, module) in enumerate(modules.items()):
        if progress is not None:
            progress("plan", number, len(modules))
        own = dump.sub(key[:12])
        try:
            state = run(
                PLANNED, ModuleState(module, device, options, whole=True), own, seconds=seconds
            )
            _same_interface(own, module, state.module)
        except Refused as refused:
            if own.restart is not None:
                raise
            refusals.append(Refusal(key, refused.refusal.reason, str(refused.refusal)))
            continue
        if (why := _without_kernel(state)) is not None:
            refusals.append(Refusal(key, why.reason, f"{why.subject} {why.detail}"))
            continue
        kernels |= dict(zip(state.keys, state.kernels, strict=True))
        regions[key] = _planned(state, module)
        ahead.compile(kernels.values(), whole=True)
    if progress is not None:
        progress("compile", 0, len(kernels))
    start = time.perf_counter()
    ahead.compile(kernels.values(), whole=False)
    ahead.wait()
    seconds["compile"] = time.perf_counter() - start
    done = CompiledRegions(regions, {}, (), tuple(refusals), seconds)
    made = _compiled(done, kernels, device, options, dump, ahead.sources)
    again = unsearched(options, device) if len(made.regions) < len(regions) else None
    if again is not None:
        return compile_regions(modules, device, again, dump, progress)
    return made


class Ahead:
    """Compiles kernels for a CPU while other regions are still planned: what a compiler makes is in
    `options.cache` when the stage that needs it looks there. Without a cache nothing is done, nor
    where another process compiles. What fails, fails again in that stage, which says why. `sources`
    are by the names of their kernels.
    """

    def __init__(self, device: Device, options: BuildOptions) -> None:
        here = device.kind == "cpu" and options.remote_compile is None
        self._cache = options.cache if here else None
        self._device, self._options = device, options
        self._pool = ThreadPoolExecutor(max_workers=max(options.jobs, 1))
        self.sources: dict[tuple[str, ...], str] = {}

    def compile(self, kernels: Iterable[Kernel], whole: bool) -> None:
        """Begin the translation units of `kernels`, to which further ones may have been appended
        since the last call; only those that no further kernel will join, if `whole`."""
        if self._cache is None:
            return
        for unit in c_compiler.batches(tuple(kernels))[len(self.sources) :]:
            if whole and len(unit) < c_compiler.BATCH:
                return
            names = tuple(kernel.name for kernel in unit)
            self.sources[names] = emit_c.render(unit)
            self._pool.submit(
                c_compiler.compile_c,
                self.sources[names],
                self._device,
                cache=self._cache,
                timeout=self._options.compile_seconds,
            )

    def wait(self) -> None:
        """Until all that was begun is done."""
        self._pool.shutdown()


def _without_kernel(state: ModuleState) -> Refusal | None:
    """Why the region is no row of kernels that a job may run in its place, or None."""
    assert state.plan is not None
    if state.plan.opaque:
        return state.plan.refusals[0]
    if state.device.kind == "gpu":
        return next(filter(None, map(gpu_tables.differs, state.kernels)), None)
    return None


def _planned(state: ModuleState, module: Module) -> PlannedRegion:
    """What `module` became. What must hold of its sizes is told of it as it was: a part of what is
    all one number is none any more."""
    assert state.plan is not None
    keys = tuple(state.keys[n] for n in state.of)
    return PlannedRegion(state.module, state.plan, keys, never_positive(module))


def _compiled(
    planned: CompiledRegions,
    kernels: Mapping[str, Kernel],
    device: Device,
    options: BuildOptions,
    dump: Dump | None = None,
    rendered: Mapping[tuple[str, ...], str] = MappingProxyType({}),
) -> CompiledRegions:
    """`planned` with binaries. A region with a kernel that has none is refused whole."""
    gpu = device.kind == "gpu"
    if gpu:
        options = replace(options, kernel_a_unit=True)
    seconds = dict(planned.seconds)
    shared = (dump or Dump()).sub(SHARED)
    done = compile_kernels(kernels, device, options, shared, seconds, rendered)
    regions, refusals = dict(planned.regions), list(planned.refusals)
    for name, region in planned.regions.items():
        why = next((done.refused[key] for key in region.keys if key in done.refused), None)
        if why is not None:
            del regions[name]
            refusals.append(Refusal(name, why.reason, f"{why.subject}: {why.detail}"))
    libraries = (gpu_tables.table_of(unit) if gpu else unit.library for unit in done.units)
    return CompiledRegions(regions, done.kernels, tuple(libraries), tuple(refusals), seconds)


def extended(
    compiled: CompiledRegions,
    modules: Mapping[str, Module],
    device: Device,
    options: BuildOptions,
    dump: Dump | None = None,
    progress: Progress | None = None,
) -> CompiledRegions:
    """`compiled` with further regions; what is compiled already stays as it is."""
    more = compile_regions(modules, device, options, dump, progress)
    units = len(compiled.libraries)
    kernels = {key: replace(entry, unit=entry.unit + units) for key, entry in more.kernels.items()}
    seconds = {
        name: compiled.seconds.get(name, 0) + more.seconds.get(name, 0)
        for name in {**compiled.seconds, **more.seconds}
    }
    return CompiledRegions(
        {**compiled.regions, **more.regions},
        {**kernels, **compiled.kernels},
        (*compiled.libraries, *more.libraries),
        (*compiled.refusals, *more.refusals),
        seconds,
    )


def outline(module: Module, device: Device, options: BuildOptions) -> RegionProgram:
    """The launches that `module` would have, of kernels that no compiler has seen. Raises
    Refused."""
    state = run(PLANNED, ModuleState(module, device, options, whole=True))
    if (why := _without_kernel(state)) is not None:
        raise Refused(why.subject, why.reason, why.detail)
    pairs = zip(state.keys, state.kernels, strict=True)
    kernels = {key: CompiledKernel(key, kernel, 0) for key, kernel in pairs}
    planned = CompiledRegions({"": _planned(state, module)}, kernels, (), (), {})
    return program(planned, "", device)


def replanned(
    compiled: CompiledRegions, plans: Mapping[str, Plan], device: Device, options: BuildOptions
) -> CompiledRegions:
    """`compiled` with other `plans` of some of its regions. Raises Refused."""
    regions = dict(compiled.regions)
    kernels = {key: entry.kernel for key, entry in compiled.kernels.items()}
    for key, plan in plans.items():
        state = rescheduled(plan, device, options)
        kernels |= dict(zip(state.keys, state.kernels, strict=True))
        made = _planned(state, state.module)
        regions[key] = replace(regions[key], plan=made.plan, keys=made.keys)
    used = {key: kernels[key] for region in regions.values() for key in region.keys}
    return _compiled(replace(compiled, regions=regions), used, device, options)


def _require_known(path: Path | None, regions: Sequence[str], device: Device) -> None:
    """Raises Refused for an edited file that would replace nothing."""
    if path is None:
        return
    stages = restartable(stages_for(device))
    if path.name not in stages:
        detail = f"a file to go on from is called one of {', '.join(stages)}"
        raise Refused(str(path), Reason.PARSE_ERROR, detail)
    shared = path.name not in restartable(PLANNED)
    if path.parent.name not in ([SHARED] if shared else regions):
        where = SHARED if shared else f"one of {', '.join(regions)} (regions of this graph)"
        detail = f"{path.name} must lie in a folder called {where}"
        raise Refused(str(path), Reason.PARSE_ERROR, detail)


def _same_interface(dump: Dump, before: Module, after: Module) -> None:
    """Raises Refused where an edited module no longer takes or returns what its region does."""
    shapes = [
        [[value.shape for value in values] for values in (module.entry.parameters, module.outputs)]
        for module in (before, after)
    ]
    if dump.restart is not None and shapes[0] != shapes[1]:
        detail = "parameters and results must stay those of the region"
        raise Refused(str(dump.restart), Reason.PARSE_ERROR, detail)


def program(compiled: CompiledRegions, key: str, device: Device) -> RegionProgram:
    """The launches of region `key`. Raises Refused where a value has no source."""
    region = compiled.regions[key]
    graph = candidates.build(region.module, {})
    temporaries = map(Temporary, count())
    written: dict[Instruction, Place] = {}
    launches = []
    for pattern, key in zip(region.plan.patterns, region.keys, strict=True):
        entry, estimate = compiled.kernels[key], cost(pattern, device)
        inputs = tuple(_place(value, written) for value in pattern.inputs)
        outputs = tuple(islice(temporaries, len(pattern.outputs)))
        written.update(zip(pattern.outputs, outputs, strict=True))
        launches.append(
            RegionLaunch(
                entry.kernel,
                inputs,
                outputs,
                entry.key,
                entry.unit,
                round(estimate.seconds * device.units * 1e9),
                saved_bytes(pattern, graph, device),
            )
        )
    results = (Result(_place(v, written), v.shape.dims) for v in region.module.outputs)
    return RegionProgram(tuple(launches), tuple(results), region.never_positive)


def saved_bytes(pattern: Pattern, graph: candidates.Graph, device: Device) -> int:
    """Bytes not moved because `pattern` is one kernel; 0 for a single operation."""
    own = [n for n in pattern.instructions if graph.roles[graph.position[n]] is Role.PLACED]
    if len(own) < 2:
        return 0
    return max(0, unfused(own, device).bytes - cost(pattern, device).bytes)


def stitched_share(region: PlannedRegion, device: Device) -> float:
    """Share of a region's traffic, one by one, that kernels of two operations or more take over."""
    graph = candidates.build(region.module, {})
    placed = [
        [n for n in pattern.instructions if graph.roles[graph.position[n]] is Role.PLACED]
        for pattern in region.plan.patterns
    ]
    everything = sum(unfused(own, device).bytes for own in placed)
    together = sum(unfused(own, device).bytes for own in placed if len(own) > 1)
    return together / everything if everything else 0.0


def _place(value: Instruction, written: Mapping[Instruction, Place]) -> Place | Constant:
    """Where `value` is in memory; views are looked through."""
    while True:
        if value in written:
            return written[value]
        if value.opcode == opcodes.PARAMETER:
            return Input(value["number"])
        if value.opcode == opcodes.CONSTANT and value.get("value") is not None:
            return Constant(value["value"])
        if value.opcode not in candidates.VIEWS:
            detail = f"{value.opcode} {value.shape} is made by no kernel"
            raise Refused("region", Reason.UNSUPPORTED_OPCODE, detail)
        value = value.operands[0]
