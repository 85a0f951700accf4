"""The compiler's stages as one plain list: module in, compiled module out.

Each stage is a pure function from State to State, timed, and prints what it made: with a dump
folder every stage writes `NN_stage.txt`. A stage whose text can be read back (`restart`) may be
replaced from an edited file; the stages after it then run on the edit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from stitchcore.artifact.keys import kernel_key
from stitchcore.compiled import CompiledKernel, CompiledModule
from stitchcore.device.records import Device
from stitchcore.emit import c as emit_c
from stitchcore.errors import Reason, Refusal, Refused
from stitchcore.hlo.expand import expand
from stitchcore.hlo.instruction import Instruction
from stitchcore.hlo.module import Module
from stitchcore.hlo.parse import parse
from stitchcore.hlo.print import names, print_module
from stitchcore.kernel.nodes import Kernel
from stitchcore.kernel.text import parse_kernel, print_kernel
from stitchcore.plan.canonical import pattern_text
from stitchcore.plan.cost import cost
from stitchcore.plan.pattern import Pattern, Plan
from stitchcore.plan.planners import PLANNERS
from stitchcore.schedule.schedule import feasible, schedule
from stitchcore.target.toolchain import CompiledLibrary, compile_all, find_compiler

KERNEL_TEXT_SEPARATOR = "\n// ----\n"


@dataclass(frozen=True)
class BuildOptions:
    """What a build depends on beside its module and device.

    `cache` is a folder for compiled translation units and `dump` one for the stages' texts; `jobs`
    is how many compilers run at a time. `restart` replaces the output of the stage named by the
    file `NN_stage.txt` with the file's contents.
    """

    planner: str = "exhaustive"
    jobs: int = 2
    cache: Path | None = None
    dump: Path | None = None
    restart: Path | None = None
    compile_seconds: float = 300.0


Progress = Callable[[str, int, int], None]
"""(stage, done, total)."""


@dataclass(frozen=True)
class State:
    """What the stages have made so far. Fields are set from left to right."""

    module: Module
    device: Device
    options: BuildOptions
    plan: Plan | None = None
    kernels: tuple[Kernel, ...] = ()
    keys: tuple[str, ...] = ()
    of: tuple[int, ...] = ()
    units: tuple[tuple[tuple[Kernel, ...], str, CompiledLibrary], ...] = ()
    scheduled: Mapping[str, Kernel | Refusal] = field(default_factory=dict)


@dataclass(frozen=True)
class Stage:
    """`run` does the work, `text` prints its result, `load` reads an edited text back (or None)."""

    name: str
    run: Callable[[State], State]
    text: Callable[[State], str]
    load: Callable[[State, str], State] | None = None


def compile_module(
    module: Module,
    device: Device,
    options: BuildOptions | None = None,
    progress: Progress | None = None,
) -> CompiledModule:
    """Plan, schedule, render and compile `module`. Raises Refused where its whole must be.

    What single instructions are refused for is in the result's `plan.refusals`.
    """
    state = State(module, device, options or BuildOptions())
    seconds: dict[str, float] = {}
    state = run_stages(state, STAGES, seconds, progress)
    assert state.plan is not None
    library = {kernel.name: number for number, unit in enumerate(state.units) for kernel in unit[0]}
    kernels = tuple(
        CompiledKernel(key, kernel, library[kernel.name])
        for key, kernel in zip(state.keys, state.kernels, strict=True)
    )
    libraries = tuple(unit[2] for unit in state.units)
    sources = tuple(unit[1] for unit in state.units)
    return CompiledModule(state.plan, device, kernels, state.of, libraries, sources, seconds)


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
        name = f"{number:02d}_{stage.name}.txt"
        start = time.perf_counter()
        if options.restart is not None and options.restart.name == name:
            if stage.load is None:
                raise Refused(name, Reason.PARSE_ERROR, "this stage's text cannot be read back")
            state = stage.load(state, options.restart.read_text())
        else:
            state = stage.run(state)
        seconds[stage.name] = seconds.get(stage.name, 0.0) + time.perf_counter() - start
        if options.dump is not None:
            options.dump.mkdir(parents=True, exist_ok=True)
            (options.dump / name).write_text(stage.text(state))
    return state


def _simplify(state: State) -> State:
    """Composites into primitives, and both to a fixed point."""
    return replace(state, module=expand(state.module).module)


def _load_module(state: State, text: str) -> State:
    return replace(state, module=parse(text))


def _plan(state: State) -> State:
    """Plan with the scheduler itself as the judge of feasibility; what it made is kept."""
    scheduled: dict[str, Kernel | Refusal] = {}

    def schedulable(pattern: Pattern, device: Device) -> Refusal | None:
        refusal = feasible(pattern, device)
        if refusal is not None:
            return refusal
        key = _key(pattern, state)
        if key not in scheduled:
            try:
                scheduled[key] = schedule(pattern, state.module, device, symbol_of(key))
            except Refused as refused:
                scheduled[key] = refused.refusal
        found = scheduled[key]
        return found if isinstance(found, Refusal) else None

    plan = PLANNERS[state.options.planner](state.module, state.device, cost, schedulable)
    return replace(state, plan=plan, scheduled=scheduled)


def symbol_of(key: str) -> str:
    """The exported function of the kernel with this content key."""
    return f"k_{key[:24]}"


def _key(pattern: Pattern, state: State) -> str:
    return kernel_key(pattern_text(pattern), state.device.target, "loop-ir", state.options.planner)


def _schedule(state: State) -> State:
    """One kernel per distinct pattern, in order of first use."""
    assert state.plan is not None
    order: dict[str, int] = {}
    of = []
    for pattern in state.plan.patterns:
        of.append(order.setdefault(_key(pattern, state), len(order)))
    kernels = [state.scheduled[key] for key in order]
    made = tuple(kernel for kernel in kernels if isinstance(kernel, Kernel))
    assert len(made) == len(kernels)
    return replace(state, kernels=made, keys=tuple(order), of=tuple(of))


def _load_kernels(state: State, text: str) -> State:
    fresh = _schedule(state)
    kernels = tuple(parse_kernel(part) for part in text.split(KERNEL_TEXT_SEPARATOR))
    if [kernel.name for kernel in kernels] != [kernel.name for kernel in fresh.kernels]:
        raise Refused("edited kernels", Reason.PARSE_ERROR, "kernel names do not match the plan")
    return replace(fresh, kernels=kernels)


def _compile(state: State) -> State:
    """Render and compile in batches; equal sources come from the cache."""
    return replace(state, units=_units(state.kernels, state.device, state.options))


def _units(
    kernels: Sequence[Kernel], device: Device, options: BuildOptions
) -> tuple[tuple[tuple[Kernel, ...], str, CompiledLibrary], ...]:
    if not kernels:
        return ()
    return tuple(
        compile_all(
            kernels,
            emit_c.render,
            device,
            jobs=options.jobs,
            compiler=find_compiler(),
            cache=options.cache,
            timeout=options.compile_seconds,
        )
    )


def compile_kernels(
    kernels: Mapping[str, Kernel], device: Device, options: BuildOptions, seconds: dict[str, float]
) -> tuple[dict[str, CompiledKernel], tuple[CompiledLibrary, ...]]:
    """Compile kernels by key: the compiled ones by key, and their libraries."""
    start = time.perf_counter()
    units = _units(tuple(kernels.values()), device, options)
    library = {kernel.name: number for number, unit in enumerate(units) for kernel in unit[0]}
    seconds["compile"] = seconds.get("compile", 0.0) + time.perf_counter() - start
    made = {
        key: CompiledKernel(key, kernel, library[kernel.name]) for key, kernel in kernels.items()
    }
    return made, tuple(unit[2] for unit in units)


def plan_text(plan: Plan) -> str:
    """A plan to read: every pattern with its estimate, then what was left out and why."""
    name = names(plan.module)
    lines = [
        f"planner {plan.planner}: {len(plan.patterns)} kernels, "
        f"{plan.unfused.launches} launches and {plan.unfused.bytes:,} bytes unfused, "
        f"{plan.planned.bytes:,} bytes planned"
    ]

    def listed(values: Sequence[Instruction]) -> str:
        return " ".join(name.get(value, "?") for value in values)

    for number, pattern in enumerate(plan.patterns):
        lines += [
            f"kernel {number}: {len(pattern.instructions)} instructions",
            f"  inputs {listed(pattern.inputs)}",
            f"  instructions {listed(pattern.instructions)}",
            f"  outputs {listed(pattern.outputs)}",
        ]
    lines += [f"left out {refusal}" for refusal in plan.refusals]
    return "\n".join(lines) + "\n"


def _compile_text(state: State) -> str:
    lines = []
    for kernels, source, library in state.units:
        lines.append(f"{library.compiler}: {len(kernels)} kernels, {len(library.data)} bytes")
        lines += [
            f"  {loop.loop}: {loop.vector_bytes} byte vectors {loop.reason}"
            for loop in library.loops
        ]
        lines.append(source)
    return "\n".join(lines) + "\n"


STAGES: tuple[Stage, ...] = (
    Stage("simplify", _simplify, lambda s: print_module(s.module), _load_module),
    Stage("plan", _plan, lambda s: plan_text(s.plan) if s.plan else ""),
    Stage(
        "schedule",
        _schedule,
        lambda s: KERNEL_TEXT_SEPARATOR.join(map(print_kernel, s.kernels)),
        _load_kernels,
    ),
    Stage("compile", _compile, _compile_text),
)
"""From an imported module to libraries, in order."""
