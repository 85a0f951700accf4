"""The compiler's stages as one plain list: module in, compiled module out.

Each stage is a pure function from State to State, timed, and prints what it made: with a dump
folder every stage writes `NN_stage.txt` (`.c` or `.cu` for sources). A stage whose text can be read
back (`load`) may be replaced from an edited file; the stages after it then run on the edit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from stitchcore.artifact.keys import kernel_key
from stitchcore.codegen import c as emit_c
from stitchcore.compiler import restart as edited
from stitchcore.compiler.module import CompiledKernel, CompiledModule
from stitchcore.compiler.restart import Edited, Source
from stitchcore.device.records import Device
from stitchcore.errors import Reason, Refusal, Refused
from stitchcore.fusion.canonical import pattern_text
from stitchcore.fusion.cost import cost
from stitchcore.fusion.pattern import Pattern, Plan
from stitchcore.fusion.planners import PLANNERS
from stitchcore.fusion.text import bodies, parse_plan, plan_text
from stitchcore.hlo.ir import opcodes
from stitchcore.hlo.ir.instruction import Computation, computation, instruction
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.ir.shape import Shape
from stitchcore.hlo.text.printer import print_module
from stitchcore.hlo.transforms import keep_checks
from stitchcore.hlo.transforms.expand import expand
from stitchcore.loop_ir.nodes import Kernel
from stitchcore.loop_ir.printer import print_kernel
from stitchcore.options import PLANNER
from stitchcore.schedule.pipeline import feasible, schedule
from stitchcore.toolchain import c_compiler, cuda_compiler
from stitchcore.toolchain.c_compiler import CompiledLibrary, compile_c, find_compiler
from stitchcore.toolchain.cuda_compiler import CudaUnit
from stitchcore.toolchain.launch_bounds import Fit
from stitchcore.toolchain.nvrtc import CompiledProgram

Elsewhere = Callable[[Sequence[str]], Sequence[CompiledLibrary | None]]
"""Compiles translation units for a CPU in another process, which may have them already; None for
what it does not compile."""


@dataclass(frozen=True)
class BuildOptions:
    """What a build depends on beside its module and device.

    `cache` is a folder for compiled translation units and `dump` one for the stages' texts; `jobs`
    is how many compilers run at a time. `restart` replaces the output of the stage named by the
    file (`02_plan.txt`) with the file's contents. With `elsewhere` each kernel is a translation
    unit, without the names of this graph, so that other graphs find it there; what `elsewhere` does
    not compile is compiled here.
    """

    planner: str = PLANNER
    jobs: int = 2
    cache: Path | None = None
    dump: Path | None = None
    restart: Path | None = None
    compile_seconds: float = 300.0
    elsewhere: Elsewhere | None = None


Progress = Callable[[str, int, int], None]
"""(stage, done, total)."""


@dataclass(frozen=True)
class Unit:
    """A translation unit: its kernels, source and binary (a shared object, or a cubin, and then how
    each kernel fits its GPU)."""

    kernels: tuple[Kernel, ...]
    source: str
    binary: CompiledLibrary | CompiledProgram
    fits: tuple[Fit, ...] = ()


@dataclass(frozen=True)
class State:
    """What the stages have made so far. Fields are set from left to right.

    `of[i]` is the kernel of `plan.patterns[i]`, `inner` the same for every loop body and branch.
    `refused` are kernels that have no binary, by name: what they are of stays as it was.
    `unbuildable` are those of earlier tries, by key: the plan is made without them (`again`).
    """

    module: Module
    device: Device
    options: BuildOptions
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


@dataclass(frozen=True)
class Stage:
    """`run` does the work, `text` prints its result, `load` reads an edited text back (or None)."""

    name: str
    run: Callable[[State], State]
    text: Callable[[State], str]
    load: Callable[[State, Edited], State] | None = None


def compile_module(
    module: Module,
    device: Device,
    options: BuildOptions | None = None,
    progress: Progress | None = None,
) -> CompiledModule:
    """Plan, schedule, render and compile `module` for a CPU. Raises Refused where its whole must
    be. What single instructions are refused for is in the result's `plan.refusals`.
    """
    state = State(module, device, options or BuildOptions())
    seconds: dict[str, float] = {}
    return compiled(run_stages(state, STAGES, seconds, progress), seconds)


def compiled(state: State, seconds: Mapping[str, float]) -> CompiledModule:
    """What all stages made for a CPU."""
    assert state.plan is not None
    return CompiledModule(
        state.plan,
        state.device,
        tuple(_compiled_kernels(dict(zip(state.keys, state.kernels, strict=True)), state).values()),
        state.of,
        _libraries(state.units),
        tuple(unit.source for unit in state.units),
        seconds,
        state.inner,
    )


def _libraries(units: Sequence[Unit]) -> tuple[CompiledLibrary, ...]:
    return tuple(unit.binary for unit in units if isinstance(unit.binary, CompiledLibrary))


def _compiled_kernels(kernels: Mapping[str, Kernel], state: State) -> dict[str, CompiledKernel]:
    library = {kernel.name: n for n, unit in enumerate(state.units) for kernel in unit.kernels}
    return {
        key: CompiledKernel(key, kernel, library[kernel.name]) for key, kernel in kernels.items()
    }


def file_name(stage: Stage, device: Device) -> str:
    """The file of a stage's text: `04_emit.c`."""
    suffix = "txt"
    if stage.name == "emit":
        suffix = "c" if device.kind == "cpu" else "cu"
    return f"{STAGES.index(stage):02d}_{stage.name}.{suffix}"


def restartable(device: Device) -> dict[str, Stage]:
    """Stages that can be replaced from an edited text, by the file's name."""
    return {file_name(stage, device): stage for stage in STAGES if stage.load is not None}


def run_stages(
    state: State,
    stages: Sequence[Stage],
    seconds: dict[str, float],
    progress: Progress | None = None,
) -> State:
    """Run `stages` in order; wall seconds by stage are added to `seconds`."""
    options = state.options
    for number, stage in enumerate(stages):
        if progress is not None:
            progress(stage.name, number, len(stages))
        name = file_name(stage, state.device)
        start = time.perf_counter()
        if options.restart is not None and options.restart.name == name:
            if stage.load is None:
                raise Refused(name, Reason.PARSE_ERROR, "this stage's text cannot be read back")
            state = stage.load(state, edited.read(options.restart))
        else:
            state = stage.run(state)
        seconds[stage.name] = seconds.get(stage.name, 0.0) + time.perf_counter() - start
        if options.dump is not None:
            options.dump.mkdir(parents=True, exist_ok=True)
            (options.dump / name).write_text(stage.text(state), encoding="utf-8")
    return state


def again(start: State, made: State) -> State:
    """`start` for another try, which plans without the kernels that `made` has no binary of: the
    planner halves what they were of, as it does with what the scheduler refuses, and leaves an
    instruction that is refused alone."""
    keys = {kernel.name: key for key, kernel in zip(made.keys, made.kernels, strict=True)}
    refused = {keys[refusal.subject]: refusal for refusal in made.refused}
    return replace(start, unbuildable={**start.unbuildable, **refused})


# ---- import and simplify -----------------------------------------------------------------------
def _import(state: State) -> State:
    """The module as it came: unified lowerings, or a file."""
    return state


def _simplify(state: State) -> State:
    """Composites into primitives, and both to a fixed point."""
    return replace(state, module=keep_checks.keep(state.module, expand(state.module).module))


def _load_module(state: State, text: Edited) -> State:
    return replace(state, module=edited.module(text))


# ---- plan and schedule -------------------------------------------------------------------------
def _plan(state: State) -> State:
    """Plan with the scheduler itself as the judge of feasibility; what it made is kept."""
    scheduled: dict[str, Kernel | Refusal] = dict(state.unbuildable)

    def schedulable(pattern: Pattern, device: Device) -> Refusal | None:
        refusal = feasible(pattern, device)
        return refusal or _scheduled(pattern, state, scheduled)

    plan = PLANNERS[state.options.planner](state.module, state.device, cost, schedulable)
    return replace(state, plan=plan, scheduled=scheduled)


def _scheduled(
    pattern: Pattern, state: State, scheduled: dict[str, Kernel | Refusal]
) -> Refusal | None:
    """Schedule `pattern` into `scheduled`, once; why it cannot be, or None."""
    key = _key(pattern, state)
    if key not in scheduled:
        try:
            scheduled[key] = schedule(pattern, state.module, state.device, symbol_of(key))
        except Refused as refused:
            scheduled[key] = refused.refusal
    found = scheduled[key]
    return found if isinstance(found, Refusal) else None


def _load_plan(state: State, text: Edited) -> State:
    """An edited plan; every kernel of it must be one that the scheduler takes."""
    found = parse_plan(
        text.text, state.module, state.device, cost, text.file, state.options.planner
    )
    scheduled: dict[str, Kernel | Refusal] = {}
    for pattern, line in found.lines.items():
        refusal = _scheduled(pattern, state, scheduled)
        if refusal is not None:
            raise Refused(f"{text.file}:{line}", refusal.reason, f"no kernel: {refusal.detail}")
    return replace(state, plan=found.plan, scheduled=scheduled)


def symbol_of(key: str) -> str:
    """The exported function of the kernel with this content key."""
    return f"k_{key[:24]}"


def _key(pattern: Pattern, state: State) -> str:
    return kernel_key(pattern_text(pattern), state.device.target, "loop-ir", state.options.planner)


def _schedule(state: State) -> State:
    """One kernel per distinct pattern, in order of first use; loop bodies after the entry."""
    assert state.plan is not None
    order: dict[str, int] = {}

    def numbers(plan: Plan) -> tuple[int, ...]:
        return tuple(order.setdefault(_key(p, state), len(order)) for p in plan.patterns)

    of = numbers(state.plan)
    inner = {body: numbers(plan) for body, plan in bodies(state.plan).items()}
    kernels = [state.scheduled[key] for key in order]
    made = tuple(kernel for kernel in kernels if isinstance(kernel, Kernel))
    assert len(made) == len(kernels)
    return replace(state, kernels=made, keys=tuple(order), of=of, inner=inner)


def _load_kernels(state: State, text: Edited) -> State:
    """Edited kernels. One that was changed gets a key and a name of its own: its plan's key stands
    for what the scheduler makes of it."""
    fresh = _schedule(state)
    keys, kernels = [], []
    for key, old, new in zip(
        fresh.keys, fresh.kernels, edited.kernels(text, fresh.kernels), strict=True
    ):
        same = new == old
        changed = key if same else kernel_key(print_kernel(new), state.device.target, "edited", key)
        keys.append(changed)
        kernels.append(new if same else replace(new, name=symbol_of(changed)))
    return replace(fresh, keys=tuple(keys), kernels=tuple(kernels))


def rescheduled(plan: Plan, device: Device, options: BuildOptions) -> State:
    """The kernels of another plan of a planned module. Raises Refused where there is none."""
    state = State(plan.module, device, options, plan=plan)
    scheduled: dict[str, Kernel | Refusal] = {}
    for one in (plan, *bodies(plan).values()):
        for pattern in one.patterns:
            refusal = _scheduled(pattern, state, scheduled)
            if refusal is not None:
                raise Refused("plan", refusal.reason, refusal.detail)
    return _schedule(replace(state, scheduled=scheduled))


# ---- emit and compile --------------------------------------------------------------------------
MOST_SHARED_UNITS = 200
"""An artifact has at most so many libraries of one kernel each; beyond, kernels share them."""


def _batches(state: State) -> list[tuple[Kernel, ...]]:
    if state.device.kind == "gpu":
        return cuda_compiler.batches(state.kernels)
    if state.options.elsewhere is None:
        return c_compiler.batches(state.kernels)
    kernels = tuple(replace(kernel, provenance=()) for kernel in state.kernels)
    size = max(1, math.ceil(len(kernels) / MOST_SHARED_UNITS))
    return [kernels[first : first + size] for first in range(0, len(kernels), size)]


def _emit(state: State) -> State:
    """C for a CPU, CUDA C++ for a GPU, in batches."""
    return replace(state, sources=tuple(Source(_rendered(b, state)) for b in _batches(state)))


def _rendered(batch: Sequence[Kernel], state: State) -> str:
    if state.device.kind == "cpu":
        return emit_c.render(batch)
    return cuda_compiler.rendered(batch, state.device.target)


def _load_sources(state: State, text: Edited) -> State:
    return replace(state, sources=edited.sources(text, _batches(state)))


def _compile(state: State) -> State:
    return _compile_c(state) if state.device.kind == "cpu" else _compile_cuda(state)


def _compile_c(state: State) -> State:
    """Compile `options.jobs` units at a time; equal sources come from the cache."""
    options, device = state.options, state.device
    compiler = find_compiler() if state.sources else None
    known: Sequence[CompiledLibrary | None] = [None] * len(state.sources)
    if options.elsewhere is not None and compiler is not None:
        known = options.elsewhere([source.text for source in state.sources])

    def one(source: Source, found: CompiledLibrary | None) -> CompiledLibrary:
        if found is not None:
            return found
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
        made = list(pool.map(one, state.sources, known))
    units = zip(_batches(state), state.sources, made, strict=True)
    return replace(state, units=tuple(Unit(k, source.text, b) for k, source, b in units))


def _compile_cuda(state: State) -> State:
    """Cubins, one program after the other: NVRTC does one at a time. A kernel that does not compile
    or fit is refused alone; an edited source as a whole, at its line."""
    target, cache = state.device.target, state.options.cache
    cuda_compiler.require(target)
    units: list[CudaUnit] = []
    refused: list[Refusal] = []
    for batch, source in zip(_batches(state), state.sources, strict=True):
        if source.text.strip() == _rendered(batch, state).strip():
            made, left = cuda_compiler.compile_kernels(batch, target, cache)
            units += made
            refused += left
            continue
        try:
            units.append(cuda_compiler.compile_edited(batch, source.text, target, cache))
        except Refused as error:
            raise source.located(error) from None
    made_units = tuple(Unit(one.kernels, one.source, one.program, one.fits) for one in units)
    return replace(state, units=made_units, refused=tuple(refused))


def compile_kernels(
    kernels: Mapping[str, Kernel],
    device: Device,
    options: BuildOptions,
    seconds: dict[str, float],
    progress: Progress | None = None,
) -> tuple[dict[str, CompiledKernel], tuple[CompiledLibrary, ...]]:
    """Emit and compile kernels by key, of any number of modules: the compiled ones by key, and
    their libraries."""
    nothing = instruction(opcodes.TUPLE, Shape("tuple", (), ()))
    module = Module("kernels", computation((), nothing))
    state = State(module, device, options, kernels=tuple(kernels.values()))
    state = run_stages(state, STAGES[STAGES.index(EMIT) :], seconds, progress)
    return _compiled_kernels(kernels, state), _libraries(state.units)


def _compile_text(state: State) -> str:
    lines = []
    for number, unit in enumerate(state.units):
        made = unit.binary
        head = f"unit {number}: {len(unit.kernels)} kernels, {len(made.data)} bytes"
        if isinstance(made, CompiledProgram):
            lines.append(f"{head}, NVRTC {made.version} for {made.target}")
            lines += [f"  {one}" for one in unit.fits]
            continue
        lines.append(f"{head}, {made.compiler}")
        lines += [
            f"  {loop.loop}: "
            + (f"{loop.vector_bytes} byte vectors" if loop.vector_bytes else "scalar")
            + (f" ({loop.reason})" if loop.reason else "")
            for loop in made.loops
        ]
    lines += [f"refused: {refusal}" for refusal in state.refused]
    return "\n".join(lines) + "\n"


EMIT = Stage("emit", _emit, lambda s: edited.sources_text(s.sources), _load_sources)
STAGES: tuple[Stage, ...] = (
    Stage("import", _import, lambda s: print_module(s.module), _load_module),
    Stage("simplify", _simplify, lambda s: print_module(s.module), _load_module),
    Stage("plan", _plan, lambda s: plan_text(s.plan) if s.plan else "", _load_plan),
    Stage("schedule", _schedule, lambda s: edited.kernels_text(s.kernels), _load_kernels),
    EMIT,
    Stage("compile", _compile, _compile_text),
)
"""From an imported module to binaries, in order."""
PLANNED = STAGES[: STAGES.index(EMIT)]
"""Those that are run module by module where kernels of many are compiled together."""
