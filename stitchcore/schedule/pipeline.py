"""Pattern to Kernel: the whole of scheduling, one stage after another."""

from __future__ import annotations

from stitchcore.device.records import Device
from stitchcore.errors import Reason, Refusal, Refused
from stitchcore.fusion.pattern import Pattern
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.ir.query import reducer_of, scatter_refusal
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.loop_ir.index import Index
from stitchcore.loop_ir.nodes import Kernel, Phase, Section
from stitchcore.schedule import axes as axis_analysis
from stitchcore.schedule import (
    barriers,
    buffers,
    cache_hints,
    input_output_aliasing,
    limits,
    merge_phases,
    register_reuse,
    scans,
    tiling,
    vectorize,
)
from stitchcore.schedule import dominants as dominant
from stitchcore.schedule import sections as scheme
from stitchcore.schedule.constants import CONSTANT_LIMIT
from stitchcore.schedule.context import Surroundings
from stitchcore.schedule.loop_nest import lower_section
from stitchcore.schedule.sections import SinkKind
from stitchcore.schedule.values import Names

MAX_BUFFERS = 1024
MAX_ERRORS = 255
"""Checks that the result of a task range can tell apart (contracts.md 2)."""


def schedule(pattern: Pattern, module: Module, device: Device, name: str) -> Kernel:
    """The kernel of `pattern`. Raises Refused where `feasible` refuses."""
    refusal = feasible(pattern, device)
    if refusal is not None:
        raise Refused(name, refusal.reason, refusal.detail)
    axes = axis_analysis.analyse(pattern)
    dominants = dominant.find(pattern, axes, limits.of(device))
    plan = scheme.assign(pattern, axes, dominants)
    names = Names(frozenset(module.symbols))
    errors = _errors(pattern)
    around = Surroundings(axes, dominants, plan, {}, {}, names, device, errors)
    counts = _parts(around)
    stored = buffers.assign(pattern, axes, dominants, plan, counts)
    around.residences.update(stored.residences)
    around.parts.update(stored.parts)
    phases = tuple(
        Phase(tuple(lower_section(around, number, section) for section in sections))
        for number, sections in enumerate(plan.phases)
        if sections
    )
    phases = merge_phases.join(phases, around.limits.local_bytes)
    phases = tuple(
        Phase(tuple(_finished(section, device, names) for section in phase.sections))
        for phase in phases
    )
    phases = cache_hints.hint(stored.buffers, phases)
    shared = input_output_aliasing.find(stored.buffers, phases)
    phases = input_output_aliasing.settled(stored.buffers, phases, shared)
    offsets, size = buffers.place(stored.buffers, phases)
    provenance = dict.fromkeys(
        origin for value in pattern.instructions for origin in module.provenance.get(value, ())
    )
    return Kernel(
        name=name,
        symbols=module.symbols,
        buffers=stored.buffers,
        phases=phases,
        scratch_offsets=offsets,
        scratch_bytes=size,
        forwards=shared,
        errors=errors,
        provenance=tuple(provenance),
    )


def _finished(section: Section, device: Device, names: Names) -> Section:
    """What a section's lanes take at once, keep to themselves, and wait for."""
    return barriers.insert(register_reuse.keep(vectorize.widen(section, device), device, names.new))


def _errors(pattern: Pattern) -> tuple[str, ...]:
    """Messages of the checks in `pattern`, each once."""
    checks = (value for value in pattern.instructions if value.opcode == op.CHECK)
    return tuple(dict.fromkeys(value["message"] for value in checks))


def _parts(around: Surroundings) -> dict[Instruction, Index]:
    """How many parts each global reduction has."""
    found: dict[Instruction, Index] = {}
    for sections in around.scheme.phases:
        for section in sections:
            geometry = around.geometry(section)
            for sink in section.sinks:
                if sink.kind is SinkKind.PARTIAL:
                    reduced = section.loops is not None and section.loops.lane_reduced
                    found[sink.value] = tiling.parts_of(geometry, reduced)
    return found


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
