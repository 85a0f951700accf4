"""Buffers of a kernel: inputs, outputs, scratch and where scratch lies.

Scratch buffers of static size whose lifetimes (in phases) do not meet share memory; symbolic ones
follow one another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stitchcore.fusion.pattern import Pattern
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.loop_ir import index
from stitchcore.loop_ir.index import Index
from stitchcore.loop_ir.layout import bytes_of
from stitchcore.loop_ir.nodes import Buffer, Phase, Role, Scope, Section
from stitchcore.loop_ir.visitor import buffers_of
from stitchcore.schedule.axes import Axes, Axis
from stitchcore.schedule.dominants import Dominants
from stitchcore.schedule.sections import KernelScheme
from stitchcore.schedule.values import Residence, accumulation_dtype

ALIGNMENT = 64


@dataclass(frozen=True)
class Storage:
    """Buffers in the kernel's order, where values lie, and parts of global reductions."""

    buffers: tuple[Buffer, ...]
    residences: dict[Instruction, Residence]
    parts: dict[Instruction, tuple[Buffer, tuple[Axis, ...]]]


def assign(
    pattern: Pattern,
    axes: Axes,
    dominants: Dominants,
    scheme: KernelScheme,
    counts: Mapping[Instruction, Index],
) -> Storage:
    """A buffer for every value that lies in memory; `counts` are the parts of reductions."""
    buffers: list[Buffer] = []
    residences: dict[Instruction, Residence] = {}
    for role, stem, values in (
        (Role.INPUT, "in", pattern.inputs),
        (Role.OUTPUT, "out", pattern.outputs),
        (Role.SCRATCH, "scratch", _scratch(pattern, scheme)),
    ):
        for number, value in enumerate(values):
            order = axes.of(value)
            if role is Role.SCRATCH:
                order = dominants.layouts[value]
            buffer = Buffer(
                f"{stem}{number}", value.shape.dtype, _dims(axes, order), Scope.DEVICE, role
            )
            buffers.append(buffer)
            residences[value] = Residence(buffer, order)
    parts: dict[Instruction, tuple[Buffer, tuple[Axis, ...]]] = {}
    for number, (value, count) in enumerate(counts.items()):
        order = dominants.layouts[value]
        dtype = accumulation_dtype(value.shape.dtype)
        dims = (count, *_dims(axes, order))
        buffer = Buffer(f"part{number}", dtype, dims, Scope.DEVICE, Role.SCRATCH)
        buffers.append(buffer)
        parts[value] = (buffer, order)
    return Storage(tuple(buffers), residences, parts)


def scratch_of(section: Section) -> list[Buffer]:
    """Scratch buffers that a section touches, in one order."""
    touched = frozenset.union(*buffers_of(section))
    return sorted((b for b in touched if b.role is Role.SCRATCH), key=lambda buffer: buffer.name)


def _scratch(pattern: Pattern, scheme: KernelScheme) -> list[Instruction]:
    outside = frozenset(pattern.outputs)
    return [value for value in scheme.stored if value not in outside]


def _dims(axes: Axes, order: Sequence[Axis]) -> tuple[Index, ...]:
    return tuple(index.from_dim(axes.extents[axis]) for axis in order)


def aligned_bytes(buffer: Buffer) -> Index:
    """Size of a buffer, rounded up to the alignment."""
    return index.multiply(index.ceil_divide(bytes_of(buffer), ALIGNMENT), ALIGNMENT)


def place(buffers: Sequence[Buffer], phases: Sequence[Phase]) -> tuple[tuple[Index, ...], Index]:
    """Offsets of the scratch buffers, in order, and the size of the scratch block."""
    lifetimes = _lifetimes(phases)
    offsets: dict[Buffer, Index] = {}
    placed: list[tuple[int, int, int, int]] = []  # first phase, last phase, begin, end
    scratch = [b for b in buffers if b.role is Role.SCRATCH]
    static = [(b, size) for b in scratch if isinstance(size := aligned_bytes(b), int)]
    top = 0
    for buffer, size in sorted(static, key=lambda pair: -pair[1]):
        first, last = lifetimes.get(buffer, (0, len(phases)))
        begin = 0
        for other_first, other_last, low, high in sorted(placed, key=lambda p: p[2]):
            meets = other_first <= last and first <= other_last
            if meets and low < begin + size and begin < high:
                begin = high
        placed.append((first, last, begin, begin + size))
        offsets[buffer] = begin
        top = max(top, begin + size)
    end: Index = top
    for buffer in scratch:
        if buffer not in offsets:
            offsets[buffer] = end
            end = index.add(end, aligned_bytes(buffer))
    return tuple(offsets[b] for b in scratch), end


def _lifetimes(phases: Sequence[Phase]) -> dict[Buffer, tuple[int, int]]:
    lifetimes: dict[Buffer, tuple[int, int]] = {}
    for number, phase in enumerate(phases):
        for section in phase.sections:
            for buffer in frozenset.union(*buffers_of(section)):
                first, _ = lifetimes.get(buffer, (number, number))
                lifetimes[buffer] = (first, number)
    return lifetimes
