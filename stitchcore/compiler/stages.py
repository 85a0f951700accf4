"""The stages of one module, as one printed list: HLO, plan, loop IR, sources, binaries.

Each is a pure function from ModuleState to ModuleState (pipeline.py runs them). Up to the schedule
they are the same for every device, which is data to them; emit and compile are a kind's own.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from stitchcore.artifact.keys import kernel_key
from stitchcore.codegen import c as emit_c
from stitchcore.compiler import latency, performance_library, quickest, restart
from stitchcore.compiler.module import (
    REFUSED,
    CompiledKernel,
    CompiledKernels,
    CompiledModule,
    Unit,
)
from stitchcore.compiler.performance_library import NOTHING_KNOWN, Library
from stitchcore.compiler.pipeline import Dump, Progress, RestartText, Stage, numbered, run
from stitchcore.compiler.restart import Source
from stitchcore.device.records import Device
from stitchcore.errors import Refusal, Refused
from stitchcore.fusion import contraction, mechanisms
from stitchcore.fusion.canonical import pattern_key, pattern_text
from stitchcore.fusion.cost import cost
from stitchcore.fusion.mechanisms import ALL, Mechanism, Mechanisms
from stitchcore.fusion.pattern import Pattern, Plan
from stitchcore.fusion.planners import PLANNERS
from stitchcore.fusion.text import bodies, parse_plan, plan_text
from stitchcore.hlo.ir import opcodes
from stitchcore.hlo.ir.instruction import Computation, Instruction, computation, instruction
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.ir.shape import Shape
from stitchcore.hlo.text.printer import print_module
from stitchcore.hlo.transforms import keep_checks
from stitchcore.hlo.transforms.expand import expand
from stitchcore.loop_ir.nodes import Kernel
from stitchcore.loop_ir.printer import print_kernel
from stitchcore.options import PLANNER, Options
from stitchcore.schedule.pipeline import feasible, passes_text, schedule, trace
from stitchcore.schedule.space import DEFAULT, Schedule
from stitchcore.toolchain import c_compiler, cuda_compiler
from stitchcore.toolchain.c_compiler import CompiledLibrary, compile_c, find_compiler
from stitchcore.toolchain.cuda_compiler import CudaUnit
from stitchcore.toolchain.nvrtc import CompiledProgram

RemoteCompiler = Callable[[Sequence[str]], Sequence[CompiledLibrary | None]]
"""Compiles translation units for a CPU in another process, which may have them already; None for
what it does not compile."""


@dataclass(frozen=True)
class BuildOptions:
    """What a build depends on beside its module and device.

    `cache` is a folder for compiled translation units; `jobs` is how many compilers run at a time.
    With `kernel_a_unit` each kernel is a translation unit that can be loaded alone. With
    `remote_compile` they are that too, without the names of this graph, so that other graphs find
    them there; what it does not compile is compiled here. `verify_passes` holds the loop IR against
    its rules after each pass of the scheduler. `mechanisms` are what planner and scheduler may use.
    `library` has schedules that were found for kernels before.
    """

    planner: str = PLANNER
    jobs: int = 2
    cache: Path | None = None
    compile_seconds: float = 300.0
    kernel_a_unit: bool = False
    remote_compile: RemoteCompiler | None = None
    verify_passes: bool = False
    mechanisms: Mechanisms = ALL
    library: Library = NOTHING_KNOWN

    def schedule_of(self, pattern: Pattern) -> Schedule:
        """The library's, if schedules are to be searched."""
        searches = Mechanism.SEARCH in self.mechanisms
        return self.library.schedule_of(pattern) if searches else DEFAULT


def unsearched(options: BuildOptions, device: Device) -> BuildOptions | None:
    """For another try where a kernel has no binary: the device's own schedules. None where there
    was no other one."""
    if Mechanism.SEARCH not in options.mechanisms:
        return None
    if device.kind == "gpu":
        without = options.mechanisms - {Mechanism.SEARCH}
        return replace(options, library=NOTHING_KNOWN, mechanisms=without)
    return replace(options, library=NOTHING_KNOWN) if options.library.entries else None


def build_options(
    options: Options,
    device: Device,
    planner: str | None = None,
    remote_compile: RemoteCompiler | None = None,
) -> BuildOptions:
    """What of the process's settings a build for `device` depends on; `planner` overrules theirs.
    The library is read here, if schedules are to be searched."""
    allowed = mechanisms.without(options.without)
    library = NOTHING_KNOWN
    if options.library is not None and Mechanism.SEARCH in allowed:
        library = performance_library.read(options.library, device)
    return BuildOptions(
        planner or options.planner,
        options.jobs,
        options.cache,
        remote_compile=remote_compile,
        verify_passes=options.verify_passes,
        mechanisms=allowed,
        library=library,
    )


@dataclass(frozen=True)
class ModuleState:
    """What the stages have made of a module so far. Fields are set from left to right.

    `whole`: all of the module is to be in kernels, its products of matrices too, because who cut it
    out of a graph has asked what those cost there (tensorflow/products.py).
    `of[i]` is the kernel of `plan.patterns[i]`, `inner` the same for every loop body and branch.
    `refused` are kernels that have no binary, by name: what they are of stays as it was.
    `unbuildable` are those of earlier tries, by key: the plan is made without them
    (`without_unbuildable`). `rendered` are sources by the names of their kernels.
    """

    module: Module
    device: Device
    options: BuildOptions
    whole: bool = False
    plan: Plan | None = None
    kernels: tuple[Kernel, ...] = ()
    keys: tuple[str, ...] = ()
    of: tuple[int, ...] = ()
    inner: Mapping[Computation, tuple[int, ...]] = field(default_factory=dict)
    sources: tuple[Source, ...] = ()
    units: tuple[Unit, ...] = ()
    refused: tuple[Refusal, ...] = ()
    scheduled: Mapping[str, Kernel | Refusal] = field(default_factory=dict)
    unbuildable: Mapping[str, Refusal] = field(default_factory=dict)
    rendered: Mapping[tuple[str, ...], str] = field(default_factory=dict)


def compile_module(
    module: Module,
    device: Device,
    options: BuildOptions | None = None,
    dump: Dump | None = None,
    progress: Progress | None = None,
) -> CompiledModule:
    """Plan, schedule, render and compile `module`. Raises Refused where its whole must be. What
    single instructions are refused for is in the result's `plan.refusals`, kernels in `refused`.
    """
    seconds: dict[str, float] = {}
    state = ModuleState(module, device, options or BuildOptions())
    state = run(stages_for(device), state, dump, seconds=seconds, progress=progress)
    return compiled(state, seconds)


def compiled(state: ModuleState, seconds: Mapping[str, float]) -> CompiledModule:
    """What all stages made."""
    assert state.plan is not None
    kernels = dict(zip(state.keys, state.kernels, strict=True))
    return CompiledModule(
        state.plan,
        state.device,
        tuple(_compiled_kernels(kernels, state.units)),
        state.of,
        state.units,
        state.refused,
        seconds,
        state.inner,
    )


def _compiled_kernels(
    kernels: Mapping[str, Kernel], units: Sequence[Unit]
) -> Iterator[CompiledKernel]:
    holder = {kernel.name: n for n, unit in enumerate(units) for kernel in unit.kernels}
    for key, kernel in kernels.items():
        yield CompiledKernel(key, kernel, holder.get(kernel.name, REFUSED))


def without_unbuildable(start: ModuleState, tried: ModuleState) -> ModuleState:
    """`start` for another try, which plans without the kernels that `tried` has no binary of: the
    planner halves what they were of, as it does with what the scheduler refuses, and leaves an
    instruction that is refused alone."""
    keys = {kernel.name: key for key, kernel in zip(tried.keys, tried.kernels, strict=True)}
    refused = {keys[refusal.subject]: refusal for refusal in tried.refused}
    return replace(start, unbuildable={**start.unbuildable, **refused})


# ---- import and simplify -----------------------------------------------------------------------
def _import(state: ModuleState) -> ModuleState:
    """The module as it came: unified lowerings, or a file."""
    return state


def _simplify(state: ModuleState) -> ModuleState:
    """Composites into primitives, and both to a fixed point."""

    def dot_pays(dot: Instruction) -> bool:
        product = contraction.product_of(dot)
        if product is None or Mechanism.GEMM not in state.options.mechanisms:
            return False
        return contraction.fits(product) if state.whole else contraction.pays(product, state.device)

    expanded = expand(state.module, dot_pays=dot_pays).module
    return replace(state, module=keep_checks.keep(state.module, expanded))


def _load_module(state: ModuleState, text: RestartText) -> ModuleState:
    return replace(state, module=restart.module(text))


# ---- plan and schedule -------------------------------------------------------------------------
def _plan(state: ModuleState) -> ModuleState:
    """Plan with the scheduler itself as the judge of feasibility; what it made is kept."""
    scheduled: dict[str, Kernel | Refusal] = dict(state.unbuildable)

    def schedulable(pattern: Pattern, device: Device) -> Refusal | None:
        refusal = feasible(pattern, device)
        return refusal or _scheduled(pattern, state, scheduled)

    plan = PLANNERS[state.options.planner](
        state.module, state.device, cost, schedulable, state.options.mechanisms
    )
    return replace(state, plan=plan, scheduled=scheduled)


def _scheduled(
    pattern: Pattern, state: ModuleState, scheduled: dict[str, Kernel | Refusal]
) -> Refusal | None:
    """Schedule `pattern` into `scheduled`, once; why it cannot be, or None."""
    key = _key(pattern, state)
    if key not in scheduled:
        try:
            scheduled[key] = kernel_of(
                pattern,
                state.module,
                state.device,
                symbol_of(key),
                state.options,
                _chosen(pattern, state),
            )
        except Refused as refused:
            scheduled[key] = refused.refusal
    outcome = scheduled[key]
    return outcome if isinstance(outcome, Refusal) else None


def kernel_of(
    pattern: Pattern,
    module: Module,
    device: Device,
    name: str,
    options: BuildOptions,
    chosen: Schedule,
) -> Kernel:
    """The kernel of `pattern` as `chosen`, or as the device's limits have it where that is no
    schedule of this kernel. Raises Refused."""
    try:
        return schedule(
            pattern, module, device, name, options.verify_passes, options.mechanisms, chosen
        )
    except Refused:
        if chosen == DEFAULT:
            raise
        return kernel_of(pattern, module, device, name, options, DEFAULT)


def _chosen(pattern: Pattern, state: ModuleState) -> Schedule:
    """The library's schedule of `pattern`, unless its kernel has no binary."""
    chosen = state.options.schedule_of(pattern)
    return DEFAULT if _key_of(pattern, state, chosen) in state.unbuildable else chosen


def _load_plan(state: ModuleState, text: RestartText) -> ModuleState:
    """An edited plan; every kernel of it must be one that the scheduler takes."""
    parsed = parse_plan(
        text.text, state.module, state.device, cost, text.file, state.options.planner
    )
    scheduled: dict[str, Kernel | Refusal] = {}
    for pattern, line in parsed.lines.items():
        refusal = _scheduled(pattern, state, scheduled)
        if refusal is not None:
            raise Refused(f"{text.file}:{line}", refusal.reason, f"no kernel: {refusal.detail}")
    return replace(state, plan=parsed.plan, scheduled=scheduled)


def symbol_of(key: str) -> str:
    """The exported function of the kernel with this content key."""
    return f"k_{key[:24]}"


def _key(pattern: Pattern, state: ModuleState) -> str:
    return _key_of(pattern, state, _chosen(pattern, state))


def _key_of(pattern: Pattern, state: ModuleState, chosen: Schedule) -> str:
    options = state.options
    left_out = ",".join(mechanisms.words(options.mechanisms))
    settings = f"{options.planner} without {left_out}" if left_out else options.planner
    settings += f" as {chosen}" if chosen != DEFAULT else ""
    return kernel_key(pattern_text(pattern), state.device.target, "loop-ir", settings)


WORTH = 0.02
"""Of what all kernels of a module take by estimate: a kernel of less is not searched for."""


def _searched(state: ModuleState) -> ModuleState:
    """With the schedules that a GPU is estimated to run quickest, of the kernels that take most of
    the time and that the library does not know (quickest.py)."""
    assert state.plan is not None
    if state.device.kind != "gpu" or Mechanism.SEARCH not in state.options.mechanisms:
        return state
    scheduled, library = dict(state.scheduled), state.options.library
    plans = (state.plan, *bodies(state.plan).values())
    seconds: dict[Pattern, float] = defaultdict(float)
    for pattern in (pattern for plan in plans for pattern in plan.patterns):
        kernel = scheduled[_key(pattern, state)]
        assert isinstance(kernel, Kernel)
        seconds[pattern] += latency.seconds(kernel, state.device)
    least = WORTH * sum(seconds.values())
    for pattern in (pattern for pattern in seconds if seconds[pattern] > least):

        def kernel_of(chosen: Schedule, pattern: Pattern = pattern) -> Kernel:
            key = _key_of(pattern, state, chosen)
            if key in state.unbuildable:
                raise quickest.NoBinary(key)
            if key not in scheduled:
                options = (state.options.verify_passes, state.options.mechanisms, chosen)
                scheduled[key] = schedule(
                    pattern, state.module, state.device, symbol_of(key), *options
                )
            kernel = scheduled[key]
            assert isinstance(kernel, Kernel)
            return kernel

        known = pattern_key(pattern)
        if known not in library.entries:
            library = library.with_entries({known: quickest.entry_of(kernel_of, state.device)})
    return replace(state, options=replace(state.options, library=library), scheduled=scheduled)


def _schedule(state: ModuleState) -> ModuleState:
    """One kernel per distinct pattern, in order of first use; loop bodies after the entry."""
    state = _searched(state)
    assert state.plan is not None
    order: dict[str, int] = {}

    def numbers(plan: Plan) -> tuple[int, ...]:
        return tuple(order.setdefault(_key(p, state), len(order)) for p in plan.patterns)

    of = numbers(state.plan)
    inner = {body: numbers(plan) for body, plan in bodies(state.plan).items()}
    outcomes = [state.scheduled[key] for key in order]
    kernels = tuple(kernel for kernel in outcomes if isinstance(kernel, Kernel))
    assert len(kernels) == len(outcomes)
    return replace(state, kernels=kernels, keys=tuple(order), of=of, inner=inner)


def _schedule_trace(state: ModuleState) -> dict[str, str]:
    """The scheduler's passes, then each kernel as it was lowered and after what changed it."""
    assert state.plan is not None
    patterns: dict[str, Pattern] = {}
    for plan in (state.plan, *bodies(state.plan).values()):
        for pattern in plan.patterns:
            patterns.setdefault(_key(pattern, state), pattern)
    comment = "".join(f"# {line}\n" for line in passes_text().splitlines())
    traces = (
        trace(
            pattern,
            state.module,
            state.device,
            symbol_of(key),
            state.options.mechanisms,
            _chosen(pattern, state),
        )
        for key, pattern in patterns.items()
    )
    return {"03_schedule.trace.txt": "\n".join([comment, *traces])}


def _load_kernels(state: ModuleState, text: RestartText) -> ModuleState:
    """Edited kernels. One that was changed gets a key and a name of its own: its plan's key stands
    for what the scheduler makes of it."""
    fresh = _schedule(state)
    keys, kernels = [], []
    for key, old, new in zip(
        fresh.keys, fresh.kernels, restart.kernels(text, fresh.kernels), strict=True
    ):
        same = new == old
        changed = key if same else kernel_key(print_kernel(new), state.device.target, "edited", key)
        keys.append(changed)
        kernels.append(new if same else replace(new, name=symbol_of(changed)))
    return replace(fresh, keys=tuple(keys), kernels=tuple(kernels))


def rescheduled(plan: Plan, device: Device, options: BuildOptions) -> ModuleState:
    """The kernels of another plan of a planned module. Raises Refused where there is none."""
    state = ModuleState(plan.module, device, options, plan=plan)
    scheduled: dict[str, Kernel | Refusal] = {}
    for own in (plan, *bodies(plan).values()):
        for pattern in own.patterns:
            refusal = _scheduled(pattern, state, scheduled)
            if refusal is not None:
                raise Refused("plan", refusal.reason, refusal.detail)
    return _schedule(replace(state, scheduled=scheduled))


# ---- emit and compile --------------------------------------------------------------------------
MOST_SHARED_UNITS = 200
"""An artifact has at most so many libraries of one kernel each; beyond, kernels share them."""


def _batches(state: ModuleState) -> list[tuple[Kernel, ...]]:
    """Kernels by translation unit."""
    kernels, gpu = state.kernels, state.device.kind == "gpu"
    if state.options.remote_compile is not None and not gpu:
        kernels = tuple(replace(kernel, provenance=()) for kernel in kernels)
        size = max(1, math.ceil(len(kernels) / MOST_SHARED_UNITS))
        return [kernels[first : first + size] for first in range(0, len(kernels), size)]
    if state.options.kernel_a_unit:
        return [(kernel,) for kernel in kernels]
    return cuda_compiler.batches(kernels) if gpu else c_compiler.batches(kernels)


def _emit_c(state: ModuleState) -> ModuleState:
    units = {tuple(kernel.name for kernel in batch): batch for batch in _batches(state)}
    texts = (state.rendered.get(names) or emit_c.render(batch) for names, batch in units.items())
    return replace(state, sources=tuple(map(Source, texts)))


def _emit_cuda(state: ModuleState) -> ModuleState:
    target = state.device.target
    sources = (Source(cuda_compiler.rendered(batch, target)) for batch in _batches(state))
    return replace(state, sources=tuple(sources))


def _load_sources(state: ModuleState, text: RestartText) -> ModuleState:
    return replace(state, sources=restart.sources(text, _batches(state)))


def _compile_c(state: ModuleState) -> ModuleState:
    """Compile `options.jobs` units at a time; equal sources come from the cache."""
    options, device = state.options, state.device
    compiler = find_compiler() if state.sources else None
    known: Sequence[CompiledLibrary | None] = [None] * len(state.sources)
    if options.remote_compile is not None and compiler is not None:
        known = options.remote_compile([source.text for source in state.sources])

    def compile_one(source: Source, library: CompiledLibrary | None) -> CompiledLibrary:
        if library is not None:
            return library
        try:
            return compile_c(
                source.text,
                device,
                compiler=compiler,
                cache=options.cache,
                timeout=options.compile_seconds,
            )
        except Refused as refused:
            raise source.located(refused) from None

    with ThreadPoolExecutor(max_workers=max(options.jobs, 1)) as pool:
        libraries = list(pool.map(compile_one, state.sources, known))
    units = zip(_batches(state), state.sources, libraries, strict=True)
    return replace(state, units=tuple(Unit(k, source.text, binary) for k, source, binary in units))


def _compile_cuda(state: ModuleState) -> ModuleState:
    """Cubins, one program after the other: NVRTC does one at a time. A kernel that does not compile
    or fit is refused alone; an edited source as a whole, at its line."""
    target, cache = state.device.target, state.options.cache
    cuda_compiler.require(target)
    programs: list[CudaUnit] = []
    refused: list[Refusal] = []
    for batch, source in zip(_batches(state), state.sources, strict=True):
        if source.text.strip() == cuda_compiler.rendered(batch, target).strip():
            compiled_here, refused_here = cuda_compiler.compile_kernels(batch, target, cache)
            programs += compiled_here
            refused += refused_here
            continue
        try:
            programs.append(cuda_compiler.compile_edited(batch, source.text, target, cache))
        except Refused as error:
            raise source.located(error) from None
    units = tuple(Unit(unit.kernels, unit.source, unit.program, unit.fits) for unit in programs)
    return replace(state, units=units, refused=tuple(refused))


def compile_kernels(
    kernels: Mapping[str, Kernel],
    device: Device,
    options: BuildOptions,
    dump: Dump | None = None,
    seconds: dict[str, float] | None = None,
    rendered: Mapping[tuple[str, ...], str] = MappingProxyType({}),
) -> CompiledKernels:
    """Emit and compile kernels by key, of any number of modules. `rendered` are sources that there
    are already, by the names of their kernels."""
    nothing = instruction(opcodes.TUPLE, Shape("tuple", (), ()))
    module = Module("kernels", computation((), nothing))
    state = ModuleState(module, device, options, kernels=tuple(kernels.values()), rendered=rendered)
    state = run(stages_for(device)[len(PLANNED) :], state, dump, seconds=seconds)
    keys = {kernel.name: key for key, kernel in kernels.items()}
    refused = {keys[refusal.subject]: refusal for refusal in state.refused}
    entries = _compiled_kernels(kernels, state.units)
    built = {entry.key: entry for entry in entries if entry.key not in refused}
    return CompiledKernels(built, state.units, refused)


def _compile_text(state: ModuleState) -> str:
    lines = []
    for number, unit in enumerate(state.units):
        binary = unit.binary
        head = f"unit {number}: {len(unit.kernels)} kernels, {len(binary.data)} bytes"
        if isinstance(binary, CompiledProgram):
            lines.append(f"{head}, NVRTC {binary.version} for {binary.target}")
            lines += [f"  {fit}" for fit in unit.fits]
            continue
        lines.append(f"{head}, {binary.compiler}")
        lines += [
            f"  {loop.loop}: "
            + (f"{loop.vector_bytes} byte vectors" if loop.vector_bytes else "scalar")
            + (f" ({loop.reason})" if loop.reason else "")
            for loop in binary.loops
        ]
    lines += [f"refused: {refusal}" for refusal in state.refused]
    return "\n".join(lines) + "\n"


# ---- the lists ---------------------------------------------------------------------------------
def _sources_text(state: ModuleState) -> str:
    return restart.sources_text(state.sources)


PLANNED: tuple[Stage[ModuleState], ...] = numbered(
    Stage("import", _import, lambda s: print_module(s.module), _load_module),
    Stage("simplify", _simplify, lambda s: print_module(s.module), _load_module),
    Stage("plan", _plan, lambda s: plan_text(s.plan) if s.plan else "", _load_plan),
    Stage(
        "schedule",
        _schedule,
        lambda s: restart.kernels_text(s.kernels),
        _load_kernels,
        beside=_schedule_trace,
    ),
)
"""From an imported module to its kernels, on every device: what is run module by module where the
kernels of many are compiled together."""
_STAGES: Mapping[str, tuple[Stage[ModuleState], ...]] = {
    "cpu": numbered(
        *PLANNED,
        Stage("emit", _emit_c, _sources_text, _load_sources, suffix="c"),
        Stage("compile", _compile_c, _compile_text),
    ),
    "gpu": numbered(
        *PLANNED,
        Stage("emit", _emit_cuda, _sources_text, _load_sources, suffix="cu"),
        Stage("compile", _compile_cuda, _compile_text),
    ),
}


def stages_for(device: Device) -> tuple[Stage[ModuleState], ...]:
    """From an imported module to binaries, in order."""
    return _STAGES[device.kind]
