"""Index maps of lookups: gathers and dynamic slices read where data says, clamped into the operand.

A lookup's element lies in the first operand at a start, which other operands give, and an offset
within the slice, which the consumer's indices give. A start is clamped so that the whole slice lies
inside (the StableHLO specification, `gather` and `dynamic_slice`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.dim import Dim
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.loop_ir import index
from stitchcore.loop_ir.index import Index
from stitchcore.schedule.axes import Axes, Axis
from stitchcore.schedule.views import Environment, bind_row, dim_index


@dataclass(frozen=True)
class Start:
    """Where the slice begins along `dim` of the first operand: the element of operand `number` at
    `environment`, clamped to [0, last]."""

    dim: int
    number: int
    environment: Environment
    last: Index


def starts(axes: Axes, lookup: Instruction, environment: Environment) -> list[Start]:
    """Starts of a lookup's slice at `environment`; none along a dimension that is taken whole."""
    operand = lookup.operands[0]
    begins: list[tuple[int, int, Environment]]
    if lookup.opcode == op.DYNAMIC_SLICE:
        begins = [(d, 1 + d, {}) for d in range(operand.shape.rank)]
    else:
        begins = [
            (d, 1, _component(axes, lookup, environment, component))
            for component, d in enumerate(lookup["start_index_map"])
        ]
    moving = []
    for d, number, at in begins:
        room = operand.shape.dims[d] - sizes(lookup)[d]
        if room != 0:
            moving.append(Start(d, number, at, index.from_dim(room)))
    return moving


def sizes(lookup: Instruction) -> tuple[Dim, ...]:
    """The slice's extent along each dimension of the first operand."""
    sliced = lookup.opcode == op.DYNAMIC_SLICE
    return tuple(lookup["dynamic_slice_sizes" if sliced else "slice_sizes"])


def operand_environment(
    axes: Axes, lookup: Instruction, environment: Environment, at: Mapping[int, Index]
) -> dict[Axis, Index]:
    """The environment of a lookup's first operand; `at` are the positions of its starts."""
    operand = lookup.operands[0]
    offsets = _offsets(axes, lookup, environment)
    bound: dict[Axis, Index] = {}
    for d, row in enumerate(axes.dims[operand]):
        if row:
            bind_row(axes, row, index.add(at.get(d, 0), offsets.get(d, 0)), bound)
    return bound


def _offsets(axes: Axes, lookup: Instruction, environment: Environment) -> dict[int, Index]:
    """By dimension of the operand, what the consumer's indices add to the start."""

    def position(d: int) -> Index:
        return dim_index(axes, axes.dims[lookup][d], environment)

    rank = lookup.operands[0].shape.rank
    if lookup.opcode == op.DYNAMIC_SLICE:
        return {d: position(d) for d in range(rank)}
    batching = tuple(lookup.get("operand_batching_dims", ()))
    hidden = {*lookup["collapsed_slice_dims"], *batching}
    window = [d for d in range(rank) if d not in hidden]
    offsets = {d: position(o) for d, o in zip(window, lookup["offset_dims"], strict=True)}
    batch = _batch_dims(lookup)
    for d, k in zip(batching, lookup.get("start_indices_batching_dims", ()), strict=True):
        offsets[d] = position(batch[k])
    return offsets


def _component(
    axes: Axes, gather: Instruction, environment: Environment, component: int
) -> dict[Axis, Index]:
    """The environment of the indices for one component of a gather's index vector."""
    bound: dict[Axis, Index] = {}
    batch = _batch_dims(gather)
    for k, row in enumerate(axes.dims[gather.operands[1]]):
        if row:
            at: Index = component
            if k in batch:
                at = dim_index(axes, axes.dims[gather][batch[k]], environment)
            bind_row(axes, row, at, bound)
    return bound


def _batch_dims(gather: Instruction) -> dict[int, int]:
    """Dimension of a gather's indices (but the index vector's) -> dimension of its result."""
    rank = gather.operands[1].shape.rank
    index_dims = [k for k in range(rank) if k != gather["index_vector_dim"]]
    batch = [d for d in range(gather.shape.rank) if d not in gather["offset_dims"]]
    return dict(zip(index_dims, batch, strict=True))
