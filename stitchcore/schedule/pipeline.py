"""Pattern to Kernel: analysis and lowering, then the passes over the loop IR, a printed list."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from difflib import unified_diff

from stitchcore.device.records import Device
from stitchcore.errors import Reason, Refusal, Refused
from stitchcore.fusion.canonical import symbols_of
from stitchcore.fusion.cost import prices_of
from stitchcore.fusion.mechanisms import ALL, Mechanism, Mechanisms
from stitchcore.fusion.pattern import Pattern
from stitchcore.fusion.reuse import Choice
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.ir.query import reducer_of, scatter_refusal
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.hlo.text.printer import names
from stitchcore.loop_ir.index import Index
from stitchcore.loop_ir.nodes import THREADS, Kernel, Phase, Role, Section
from stitchcore.loop_ir.printer import print_kernel
from stitchcore.loop_ir.verifier import IllegalKernel, check
from stitchcore.schedule import axes as axis_analysis
from stitchcore.schedule import (
    barriers,
    buffers,
    cache_hints,
    input_output_aliasing,
    limits,
    merge_phases,
    product_rows,
    regional_buffers,
    register_reuse,
    row_pieces,
    scans,
    section_reuse,
    tiling,
    vectorize,
)
from stitchcore.schedule.axes import Axes
from stitchcore.schedule.constants import CONSTANT_LIMIT
from stitchcore.schedule.context import SectionContext
from stitchcore.schedule.dominants import find as find_dominants
from stitchcore.schedule.loop_nest import lower_section
from stitchcore.schedule.product_rows import ProductRows
from stitchcore.schedule.sections import SinkKind
from stitchcore.schedule.sections import assign as assign_sections
from stitchcore.schedule.space import DEFAULT, Schedule
from stitchcore.schedule.values import Names

MAX_BUFFERS = 1024
MAX_ERRORS = 255
"""Checks that the result of a task range can tell apart (contracts.md 2)."""


@dataclass(frozen=True)
class Pass:
    """A step of the schedule after analysis and lowering: a kernel in, a kernel out."""

    name: str
    summary: str
    run: Callable[[Kernel, SectionContext], Kernel]


def _of_sections(
    rewrite: Callable[[Section, SectionContext], Section],
) -> Callable[[Kernel, SectionContext], Kernel]:
    """A pass that looks at one section at a time."""

    def run(kernel: Kernel, context: SectionContext) -> Kernel:
        phases = (
            Phase(tuple(rewrite(section, context) for section in phase.sections))
            for phase in kernel.phases
        )
        return replace(kernel, phases=tuple(phases))

    return run


def _merge_phases(kernel: Kernel, context: SectionContext) -> Kernel:
    return replace(kernel, phases=merge_phases.merge(kernel.phases, context.limits.local_bytes))


def _regional_buffers(kernel: Kernel, context: SectionContext) -> Kernel:
    if context.device.kind == "cpu" or Mechanism.REGIONAL not in context.mechanisms:
        return kernel
    return regional_buffers.localize(kernel, context.limits.local_bytes, context.limits.warps)


def _cache_hints(kernel: Kernel, _: SectionContext) -> Kernel:
    return replace(kernel, phases=cache_hints.hint(kernel.buffers, kernel.phases))


def _alias(kernel: Kernel, context: SectionContext) -> Kernel:
    aliases: tuple[tuple[int, int], ...] = ()
    if Mechanism.ALIASING in context.mechanisms:
        aliases = input_output_aliasing.find(kernel.buffers, kernel.phases)
    phases = input_output_aliasing.decide_copies(kernel.buffers, kernel.phases, aliases)
    return replace(kernel, phases=phases, aliases=aliases)


def _place_scratch(kernel: Kernel, _: SectionContext) -> Kernel:
    offsets, size = buffers.place(kernel.buffers, kernel.phases)
    return replace(kernel, scratch_offsets=offsets, scratch_bytes=size)


_ALIASING = Pass(
    "input-output aliasing",
    "outputs that may take over the memory of an input are paired with it",
    _alias,
)
PASSES: tuple[Pass, ...] = (
    Pass(
        "merge phases",
        "phases with nothing to wait for between them become one",
        _merge_phases,
    ),
    Pass(
        "regional buffers",
        "scratch of which each task touches a part of its own is the memory of its lanes",
        _regional_buffers,
    ),
    Pass(
        "row pieces",
        "rows that lie in short pieces are added up with their neighbours",
        _of_sections(
            lambda section, context: row_pieces.together(section, context.limits, context.names.new)
        ),
    ),
    Pass(
        "vectorize",
        "lanes take neighbouring iterations together, where accesses become wider by it",
        _of_sections(lambda section, context: vectorize.vectorize(section, context.limits)),
    ),
    Pass(
        "register reuse",
        "what a lane reads again of a row stays in its registers",
        _of_sections(
            lambda section, context: register_reuse.reuse(
                section, context.limits, context.names.new
            )
        ),
    ),
    Pass(
        "barriers",
        "lanes wait before they touch what another lane touched in shared memory",
        _of_sections(lambda section, _: barriers.insert(section)),
    ),
    Pass(
        "cache hints",
        "large outputs are stored past the caches, and next rows fetched ahead",
        _cache_hints,
    ),
    _ALIASING,
    Pass(
        "scratch placement",
        "scratch buffers that are never needed together share memory",
        _place_scratch,
    ),
)


def passes_text() -> str:
    """The passes in their order, a line each."""
    return "".join(
        f"{number}. {step.name}: {step.summary}\n" for number, step in enumerate(PASSES, 1)
    )


def schedule(
    pattern: Pattern,
    module: Module,
    device: Device,
    name: str,
    verify: bool = False,
    mechanisms: Mechanisms = ALL,
    chosen: Schedule = DEFAULT,
) -> Kernel:
    """The kernel of `pattern`, its loops as `chosen`. Raises Refused where `feasible` refuses, and
    with `verify` IllegalKernel where a pass, which it names, breaks a rule of the loop IR."""
    aliased = False
    for step, kernel in snapshots(pattern, module, device, name, mechanisms, chosen):
        if not verify:
            continue
        aliased = aliased or step == _ALIASING.name
        phases = kernel.phases
        if not aliased:  # any section may still copy for what will be an alias
            phases = input_output_aliasing.decide_copies(kernel.buffers, phases, ())
        try:
            check(replace(kernel, phases=phases))
        except IllegalKernel as error:
            raise IllegalKernel(f"after {step}: {error}") from None
    return kernel


def trace(
    pattern: Pattern,
    module: Module,
    device: Device,
    name: str,
    mechanisms: Mechanisms = ALL,
    chosen: Schedule = DEFAULT,
) -> str:
    """What was chosen for the kernel of `pattern`, the kernel as it was lowered, and what each pass
    changed of it."""
    known = names(module)
    lines = [
        f"# {name}: {known.get(value, value.opcode)} {choice}"
        for value, choice in choices(pattern, module, device, mechanisms)
    ]
    before: list[str] = []
    for step, kernel in snapshots(pattern, module, device, name, mechanisms, chosen):
        after = print_kernel(kernel).splitlines()
        lines.append(f"# {name} after {step}" + ": unchanged" * (after == before))
        lines += list(unified_diff(before, after, lineterm=""))[2:] if before else after
        before = after
    return "\n".join(lines) + "\n"


def choices(
    pattern: Pattern, module: Module, device: Device, mechanisms: Mechanisms = ALL
) -> tuple[tuple[Instruction, str], ...]:
    """Values of `pattern` that are kept in memory or computed again by their price, and why.
    Raises Refused where `feasible` refuses."""
    _require_feasible(pattern, device, "choices")
    _, context = _lower(pattern, module, device, "choices", mechanisms, DEFAULT)
    return tuple(dict.fromkeys(context.choices))


def snapshots(
    pattern: Pattern,
    module: Module,
    device: Device,
    name: str,
    mechanisms: Mechanisms = ALL,
    chosen: Schedule = DEFAULT,
) -> Iterator[tuple[str, Kernel]]:
    """The kernel of `pattern` after lowering and after each pass, with the name of that step."""
    _require_feasible(pattern, chosen.on(device), name)
    kernel, context = _lower(pattern, module, device, name, mechanisms, chosen)
    yield "lowering", kernel
    for step in PASSES:
        kernel = step.run(kernel, context)
        yield step.name, kernel


def _require_feasible(pattern: Pattern, device: Device, name: str) -> None:
    refusal = feasible(pattern, device)
    if refusal is not None:
        raise Refused(name, refusal.reason, refusal.detail)


def _lower(
    pattern: Pattern,
    module: Module,
    device: Device,
    name: str,
    mechanisms: Mechanisms,
    chosen: Schedule,
) -> tuple[Kernel, SectionContext]:
    """Loops as analysis wants them, in phases; nothing is placed in scratch memory yet. Of several
    ways to deal the rows of matrix products that of the fewest steps."""
    axes, on = axis_analysis.analyse(pattern), chosen.on(device)
    ways = product_rows.choices(product_rows.counts(pattern.instructions, axes, device))
    lowered = [
        _lowered(pattern, module, device, name, mechanisms, chosen, axes, way) for way in ways
    ]
    if len(lowered) == 1:
        return lowered[0]
    return min(lowered, key=lambda pair: product_rows.steps(_merge_phases(*pair).phases, on))


def _lowered(
    pattern: Pattern,
    module: Module,
    device: Device,
    name: str,
    mechanisms: Mechanisms,
    chosen: Schedule,
    axes: Axes,
    products: ProductRows | None,
) -> tuple[Kernel, SectionContext]:
    apart = products.counts if products is not None else frozenset()
    bounds, prices = limits.of(device, mechanisms, chosen), prices_of(pattern, device)
    dominants = find_dominants(pattern, axes, bounds)
    plan = assign_sections(pattern, axes, dominants, prices, bounds, mechanisms, apart)
    shared: dict[Instruction, Choice] = {}
    if Mechanism.RECOMPUTE in mechanisms:
        inputs = frozenset(pattern.inputs)
        passed, shared = section_reuse.find(plan, axes, dominants, inputs, prices)
        if passed:
            dominants = find_dominants(pattern, axes, bounds, passed)
            plan = assign_sections(pattern, axes, dominants, prices, bounds, mechanisms, apart)
    errors, symbols = _errors(pattern), symbols_of(pattern, module)
    context = SectionContext(
        axes,
        dominants,
        plan,
        {},
        {},
        Names(frozenset(symbols)),
        device,
        prices,
        [
            *((v, choice.text("a later phase wants it")) for v, choice in plan.choices.items()),
            *((v, choice.text("its phase wants it again")) for v, choice in shared.items()),
        ],
        errors,
        mechanisms,
        products,
        chosen,
    )
    stored = buffers.assign(pattern, axes, dominants, plan, _parts(context))
    context.residences.update(stored.residences)
    context.parts.update(stored.parts)
    phases = tuple(
        Phase(tuple(lower_section(context, number, section) for section in sections))
        for number, sections in enumerate(plan.phases)
        if sections
    )
    provenance = dict.fromkeys(
        origin for value in pattern.instructions for origin in module.provenance.get(value, ())
    )
    own = (b for phase in phases for s in phase.sections for b in buffers.scratch_of(s))
    all_buffers = tuple(dict.fromkeys((*stored.buffers, *own)))
    kernel = Kernel(
        name=name,
        symbols=symbols,
        buffers=all_buffers,
        phases=phases,
        scratch_offsets=(0,) * sum(buffer.role is Role.SCRATCH for buffer in all_buffers),
        errors=errors,
        provenance=tuple(provenance),
        threads=chosen.on(device).lanes if device.kind == "gpu" else THREADS,
    )
    return kernel, context


def _errors(pattern: Pattern) -> tuple[str, ...]:
    """Messages of the checks in `pattern`, each once."""
    checks = (value for value in pattern.instructions if value.opcode == op.CHECK)
    return tuple(dict.fromkeys(value["message"] for value in checks))


def _parts(context: SectionContext) -> dict[Instruction, Index]:
    """How many parts each global reduction has."""
    counts: dict[Instruction, Index] = {}
    for sections in context.scheme.phases:
        for section in sections:
            geometry = context.geometry(section)
            for sink in section.sinks:
                if sink.kind is SinkKind.PARTIAL:
                    reduced = section.loops is not None and section.loops.lane_reduced
                    counts[sink.value] = tiling.parts_of(geometry, reduced)
    return counts


def feasible(pattern: Pattern, device: Device) -> Refusal | None:
    """Why `pattern` cannot be scheduled, or None. Cheap: one look at each instruction."""
    if not pattern.outputs:
        return Refusal("pattern", Reason.NOT_PROFITABLE, "nothing outside reads it")
    if len(pattern.inputs) + len(pattern.outputs) > MAX_BUFFERS:
        detail = f"{len(pattern.inputs)} inputs and {len(pattern.outputs)} outputs"
        return Refusal("pattern", Reason.TOO_MANY_BUFFERS, detail)
    if len(_errors(pattern)) > MAX_ERRORS:
        return Refusal("pattern", Reason.UNSUPPORTED_OPCODE, f"more than {MAX_ERRORS} checks")
    for value in (*pattern.inputs, *pattern.instructions):
        if value.shape.elements is not None or value.shape.dtype not in DTYPES:
            return Refusal(value.opcode, Reason.UNSUPPORTED_TYPE, str(value.shape))
        if value.shape.bounded:
            return Refusal(value.opcode, Reason.UNSUPPORTED_TYPE, "bounded dimension")
    for value in pattern.instructions:
        refusal = _feasible(value, device)
        if refusal is not None:
            return refusal
    return None


def _feasible(value: Instruction, device: Device) -> Refusal | None:
    record = op.record(value.opcode)
    if record.kind == "scatter" and device.kind == "gpu":
        detail = "every block would read all indices one by one"
        return Refusal(value.opcode, Reason.NOT_PROFITABLE, detail)
    if record.kind not in op.STITCHABLE_KINDS:
        return Refusal(value.opcode, Reason.UNSUPPORTED_OPCODE, f"a {record.kind} operation")
    if record.kind == "reduce" and (len(value.operands) != 2 or reducer_of(value) is None):
        return Refusal(value.opcode, Reason.UNSUPPORTED_OPCODE, "not a monoid reduction")
    if record.kind == "scatter" and (why := scatter_refusal(value)) is not None:
        return Refusal(value.opcode, Reason.UNSUPPORTED_OPCODE, f"a scatter with {why}")
    if record.kind == "scan" and (scan := scans.refusal(value, device)) is not None:
        return Refusal(value.opcode, *scan)
    if value.opcode == op.CONSTANT and value.get("value") is not None:
        if value["value"].array.size > CONSTANT_LIMIT:
            return Refusal(value.opcode, Reason.UNSUPPORTED_OPCODE, "large array constant")
    starts = {op.DYNAMIC_SLICE: 1, op.DYNAMIC_UPDATE_SLICE: 2}.get(value.opcode)
    if starts and any(o.shape.rank for o in value.operands[starts:]):
        return Refusal(value.opcode, Reason.UNSUPPORTED_OPCODE, "start indices in one vector")
    if value.opcode == op.BITCAST_CONVERT:
        operand = value.operands[0].shape
        if DTYPES[operand.dtype].bytes != DTYPES[value.shape.dtype].bytes:
            return Refusal(value.opcode, Reason.UNSUPPORTED_OPCODE, "element width changes")
    return None
