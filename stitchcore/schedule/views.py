"""Index maps of views: where an element of a consumer lies in an operand.

An environment binds axes to indices. A view's operand has axes of its own; they are bound to what
the consumer's indices map to. Indices that a pad or a concatenation would read outside the operand
are clamped into it: the reader selects by `inside`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stitchcore.errors import Reason, Refused
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.loop_ir import index
from stitchcore.loop_ir.index import Index
from stitchcore.loop_ir.nodes import InRange
from stitchcore.schedule.axes import Axes, Axis, Row, segments

Environment = Mapping[Axis, Index]

MOVED = (op.REVERSE, op.SLICE, op.PAD)
"""What reads its operand's elements at other places than their own. Of a concatenation each operand
has lanes of its own (codegen/c_stretches.py)."""


@dataclass(frozen=True)
class _Same:
    """The operand's dimension is indexed as dimension `dim` of the consumer is."""

    dim: int


def is_moved(value: Instruction) -> bool:
    """Whether a value's elements lie elsewhere in its operand. A flipped row is a shuffled one."""
    if value.opcode == op.REVERSE:
        return value.shape.rank - 1 not in value["dimensions"]
    return value.opcode in MOVED


def dim_index(axes: Axes, row: Row | None, environment: Environment) -> Index:
    """Index along a dimension made of the axes `row`; 0 where the value does not vary."""
    total: Index = 0
    for axis in row or ():
        total = index.add(
            index.multiply(total, index.from_dim(axes.extents[axis])), environment[axis]
        )
    return total


def bind_row(axes: Axes, row: Row, position: Index, environment: dict[Axis, Index]) -> None:
    """Bind the axes of a dimension so that its index is `position`."""
    rest = position
    for axis in row[:0:-1]:
        extent = index.from_dim(axes.extents[axis])
        environment[axis] = index.modulo(rest, extent)
        rest = index.floor_divide(rest, extent)
    if row:
        environment[row[0]] = rest


def operand_environment(
    axes: Axes, consumer: Instruction, number: int, environment: Environment
) -> dict[Axis, Index]:
    """The environment of operand `number` of a view, given its consumer's."""
    operand = consumer.operands[number]
    bound: dict[Axis, Index] = {}
    ours = axes.dims[consumer]
    for row, source in zip(
        axes.dims[operand], _sources(axes, consumer, number, environment), strict=True
    ):
        if not row:
            continue
        if isinstance(source, _Same):
            if ours[source.dim] == row:
                bound.update((axis, environment[axis]) for axis in row)
                continue
            source = dim_index(axes, ours[source.dim], environment)
        bind_row(axes, row, source, bound)
    return bound


def _sources(
    axes: Axes, consumer: Instruction, number: int, environment: Environment
) -> Sequence[_Same | Index]:
    operand = consumer.operands[number]
    rank = operand.shape.rank
    same = [_Same(d) for d in range(rank)]
    if op.record(consumer.opcode).kind in op.POINTWISE:
        return same

    def position(d: int) -> Index:
        return dim_index(axes, axes.dims[consumer][d], environment)

    def extent(d: int) -> Index:
        return index.from_dim(operand.shape.dims[d])

    match consumer.opcode:
        case op.BROADCAST:
            return [_Same(d) for d in consumer["dimensions"]]
        case op.TRANSPOSE:
            order = list(consumer["dimensions"])
            return [_Same(order.index(d)) for d in range(rank)]
        case op.RESHAPE | op.BITCAST:
            return _reshape(axes, consumer, environment)
        case op.REVERSE:
            flipped = consumer["dimensions"]
            return [
                index.add(extent(d), index.add(index.multiply(position(d), -1), -1))
                if d in flipped
                else same[d]
                for d in range(rank)
            ]
        case op.SLICE | op.PAD | op.CONCATENATE:
            return [_part(axes, consumer, number, d, environment) for d in range(rank)]
    raise Refused(consumer.opcode, Reason.UNSUPPORTED_OPCODE, "no index map")


def _part(
    axes: Axes, consumer: Instruction, number: int, d: int, environment: Environment
) -> _Same | Index:
    """Dimension `d` of an operand of which the consumer holds a part, or which is part of it."""
    position = dim_index(axes, axes.dims[consumer][d], environment)
    extent = index.from_dim(consumer.operands[number].shape.dims[d])
    if consumer.opcode == op.SLICE:
        start, _, step = consumer["slice"][d]
        if (start, step) == (0, 1):
            return _Same(d)
        return index.add(index.multiply(position, index.from_dim(step)), index.from_dim(start))
    if consumer.opcode == op.CONCATENATE:
        if d not in consumer["dimensions"]:
            return _Same(d)
        return _clamp(index.add(position, _negative(offset(consumer, number))), extent)
    low, high, interior = consumer["padding"][d]
    if (low, high, interior) == (0, 0, 0):
        return _Same(d)
    shifted = index.maximum(index.add(position, _negative(low)), 0)
    return _clamp(index.floor_divide(shifted, index.from_dim(interior + 1)), extent)


def _negative(dim: object) -> Index:
    return index.multiply(index.from_dim(dim), -1)  # type: ignore[arg-type]


def _clamp(position: Index, extent: Index) -> Index:
    return index.maximum(index.minimum(position, index.add(extent, -1)), 0)


def _reshape(
    axes: Axes, consumer: Instruction, environment: Environment
) -> Sequence[_Same | Index]:
    operand = consumer.operands[0]
    theirs, ours = operand.shape.dims, consumer.shape.dims
    sources: list[_Same | Index] = [0] * len(theirs)
    for source, target in segments(theirs, ours):
        linear: Index = 0
        for d in target:
            row = axes.dims[consumer][d]
            linear = index.add(
                index.multiply(linear, index.from_dim(ours[d])),
                dim_index(axes, row, environment),
            )
        for d in source[:0:-1]:
            sources[d] = index.modulo(linear, index.from_dim(theirs[d]))
            linear = index.floor_divide(linear, index.from_dim(theirs[d]))
        if source:
            sources[source[0]] = linear
    return sources


def offset(concatenation: Instruction, number: int) -> object:
    """Where operand `number` begins along the concatenated dimension (a Dim)."""
    d = concatenation["dimensions"][0]
    total = 0
    for operand in concatenation.operands[:number]:
        total = total + operand.shape.dims[d]
    return total


def inside(
    axes: Axes, consumer: Instruction, number: int, environment: Environment
) -> list[InRange]:
    """What must hold for an element of a pad or concatenation to come from operand `number`."""
    operand = consumer.operands[number]
    if consumer.opcode == op.CONCATENATE:
        d = consumer["dimensions"][0]
        position = dim_index(axes, axes.dims[consumer][d], environment)
        low = index.from_dim(offset(consumer, number))  # type: ignore[arg-type]
        return [InRange(position, low, index.add(low, index.from_dim(operand.shape.dims[d])))]
    conditions = []
    for d, (low_pad, high_pad, interior) in enumerate(consumer["padding"]):
        if (low_pad, high_pad, interior) == (0, 0, 0):
            continue
        position = dim_index(axes, axes.dims[consumer][d], environment)
        begin = index.from_dim(low_pad)
        count = operand.shape.dims[d]
        span = index.from_dim(count + (count - 1) * interior)
        conditions.append(InRange(position, begin, index.add(begin, span)))
        if interior != 0:
            step = index.from_dim(interior + 1)
            shifted = index.maximum(index.add(position, _negative(low_pad)), 0)
            conditions.append(InRange(index.modulo(shifted, step), 0, 1))
    return conditions


def piece_environments(
    axes: Axes, consumer: Instruction, number: int, environment: Environment
) -> tuple[dict[Axis, Index], dict[Axis, Index]]:
    """For the loops in which operand `number` of a concatenation or reverse writes its elements
    there: axes of the whole, and of the operand."""
    operand = consumer.operands[number]
    target: dict[Axis, Index] = {}
    source: dict[Axis, Index] = {}
    for d, row in enumerate(axes.pieces[consumer, number]):
        position = dim_index(axes, row, environment)
        there = _place(consumer, number, d, position)
        for bound, wanted, at in (
            (target, axes.dims[consumer][d], there),
            (source, axes.dims[operand][d], position),
        ):
            if wanted and wanted == row and at == position:
                bound.update((axis, environment[axis]) for axis in row)
            elif wanted:
                bind_row(axes, wanted, at, bound)
    return target, source


def _place(consumer: Instruction, number: int, d: int, position: Index) -> Index:
    """Where an element at `position` of an operand's dimension `d` lies in the whole."""
    if d not in consumer["dimensions"]:
        return position
    if consumer.opcode == op.CONCATENATE:
        begin = index.from_dim(offset(consumer, number))  # type: ignore[arg-type]
        return index.add(position, begin)
    last = index.add(index.from_dim(consumer.shape.dims[d]), -1)
    return index.add(last, index.multiply(position, -1))
