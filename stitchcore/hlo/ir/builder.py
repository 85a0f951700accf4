"""Building instructions with their shapes inferred: what rewriting rules, expansion and the fuzzer
share. Each function checks what it would silently get wrong and raises ValueError."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.dim import Dim
from stitchcore.hlo.ir.instruction import Computation, Instruction, computation, instruction
from stitchcore.hlo.ir.literal import Literal, from_array
from stitchcore.hlo.ir.literal import scalar as literal_scalar
from stitchcore.hlo.ir.numerics import Array
from stitchcore.hlo.ir.shape import Shape


def parameter(number: int, dtype: str, dims: Sequence[Dim] = ()) -> Instruction:
    return instruction(op.PARAMETER, Shape(dtype, tuple(dims)), number=number)


def literal(value: Literal) -> Instruction:
    return instruction(op.CONSTANT, Shape(value.dtype, value.dims), value=value)


def constant(value: bool | int | float, dtype: str) -> Instruction:
    """A scalar constant."""
    return literal(literal_scalar(value, dtype))


def array(value: Array, dtype: str) -> Instruction:
    """An array constant."""
    return literal(from_array(value, dtype))


def elementwise(opcode: str, *operands: Instruction, **attributes: Hashable) -> Instruction:
    """An elementwise instruction whose result has the type of its (last) operand."""
    record = op.record(opcode)
    if record.kind != "elementwise" or record.arity != len(operands):
        raise ValueError(f"{opcode} of {len(operands)} operands is not elementwise")
    shaped = operands[1] if opcode in (op.CLAMP, op.SELECT) else operands[0]
    if any(o.shape.dims not in (shaped.shape.dims, ()) for o in operands):
        raise ValueError(f"{opcode} of {[str(o.shape) for o in operands]}")
    dtype = "pred" if opcode in (op.COMPARE, op.IS_FINITE) else shaped.shape.dtype
    return instruction(opcode, Shape(dtype, shaped.shape.dims), operands, **attributes)


def convert(operand: Instruction, dtype: str) -> Instruction:
    """`operand` itself when it already is of `dtype`."""
    if operand.shape.dtype == dtype:
        return operand
    return instruction(op.CONVERT, Shape(dtype, operand.shape.dims), (operand,))


def broadcast(operand: Instruction, dims: Sequence[Dim], axes: Sequence[int]) -> Instruction:
    """`operand`'s dimension i becomes dimension `axes[i]` of the result."""
    if tuple(dims[axis] for axis in axes) != operand.shape.dims:
        raise ValueError(f"broadcast of {operand.shape} to {dims} along {axes}")
    shape = Shape(operand.shape.dtype, tuple(dims))
    return instruction(op.BROADCAST, shape, (operand,), dimensions=tuple(axes))


def splat(value: bool | int | float, like: Instruction) -> Instruction:
    """A constant of `like`'s shape with every element `value`."""
    scalar = constant(value, like.shape.dtype)
    return broadcast(scalar, like.shape.dims, ()) if like.shape.dims else scalar


def reshape(operand: Instruction, dims: Sequence[Dim]) -> Instruction:
    if tuple(dims) == operand.shape.dims:
        return operand
    shape = Shape(operand.shape.dtype, tuple(dims))
    if shape.size != operand.shape.size:
        raise ValueError(f"reshape of {operand.shape} to {shape}")
    return instruction(op.RESHAPE, shape, (operand,))


def transpose(operand: Instruction, permutation: Sequence[int]) -> Instruction:
    if list(permutation) == list(range(operand.shape.rank)):
        return operand
    dims = tuple(operand.shape.dims[axis] for axis in permutation)
    shape = Shape(operand.shape.dtype, dims)
    return instruction(op.TRANSPOSE, shape, (operand,), dimensions=tuple(permutation))


def slice_(operand: Instruction, ranges: Sequence[tuple[Dim, Dim, int]]) -> Instruction:
    """`ranges` are (start, limit, stride); strides above 1 need static bounds."""
    dims: list[Dim] = []
    for start, limit, stride in ranges:
        span = limit - start
        if stride == 1:
            dims.append(span)
        elif isinstance(span, int):
            dims.append(-(-span // stride))
        else:
            raise ValueError("a strided slice needs static bounds")
    shape = Shape(operand.shape.dtype, tuple(dims))
    return instruction(op.SLICE, shape, (operand,), slice=tuple(ranges))


def dynamic_slice(
    operand: Instruction, starts: Sequence[Instruction], sizes: Sequence[int]
) -> Instruction:
    """`sizes` elements of each dimension from scalar `starts`, which are clamped to fit."""
    if len(starts) != operand.shape.rank or any(start.shape.dims for start in starts):
        raise ValueError(f"dynamic-slice of {operand.shape} from {len(starts)} starts")
    shape = Shape(operand.shape.dtype, tuple(sizes))
    return instruction(
        op.DYNAMIC_SLICE, shape, (operand, *starts), dynamic_slice_sizes=tuple(sizes)
    )


def dynamic_update_slice(
    operand: Instruction, window: Instruction, starts: Sequence[Instruction]
) -> Instruction:
    """`operand` with `window` in it from scalar `starts`, which are clamped to fit."""
    if len(starts) != operand.shape.rank or any(start.shape.dims for start in starts):
        raise ValueError(f"dynamic-update-slice of {operand.shape} from {len(starts)} starts")
    return instruction(op.DYNAMIC_UPDATE_SLICE, operand.shape, (operand, window, *starts))


def gather(
    operand: Instruction,
    indices: Instruction,
    starts: Sequence[int],
    sizes: Sequence[int],
    *,
    vector_dim: int,
    offset_dims: Sequence[int],
    collapsed: Sequence[int],
) -> Instruction:
    """Slices of `sizes` from the dimensions `starts`, one a component of the vectors that lie along
    `vector_dim` of `indices` (its rank: of one component). Slices are the result's `offset_dims`,
    without the `collapsed` dimensions of the operand; its other dimensions are those of `indices`.
    """
    batch = [extent for k, extent in enumerate(indices.shape.dims) if k != vector_dim]
    window = [extent for d, extent in enumerate(sizes) if d not in collapsed]
    dims: list[Dim] = list(batch)
    for at, extent in zip(offset_dims, window, strict=True):
        dims.insert(at, extent)
    return instruction(
        op.GATHER,
        Shape(operand.shape.dtype, tuple(dims)),
        (operand, indices),
        offset_dims=tuple(offset_dims),
        collapsed_slice_dims=tuple(collapsed),
        start_index_map=tuple(starts),
        index_vector_dim=vector_dim,
        slice_sizes=tuple(sizes),
    )


def scatter(
    operand: Instruction,
    indices: Instruction,
    updates: Instruction,
    to_apply: Computation,
    *,
    window: Sequence[int],
    scattered: Sequence[int],
    vector_dim: int,
) -> Instruction:
    """Rows of `operand`, named along dimensions `scattered` by the vectors that lie along
    `vector_dim` of `indices` (its rank: of one component), combined with those of `updates`, whose
    dimensions `window` are the row's."""
    return instruction(
        op.SCATTER,
        operand.shape,
        (operand, indices, updates),
        update_window_dims=tuple(window),
        inserted_window_dims=tuple(sorted(scattered)),
        scatter_dims_to_operand_dims=tuple(scattered),
        index_vector_dim=vector_dim,
        to_apply=to_apply,
    )


def pad(
    operand: Instruction, value: Instruction, padding: Sequence[tuple[Dim, Dim, int]]
) -> Instruction:
    """`padding` is (low, high, interior) per dimension."""
    dims = tuple(
        low + high + extent + (extent - 1) * interior
        for (low, high, interior), extent in zip(padding, operand.shape.dims, strict=True)
    )
    shape = Shape(operand.shape.dtype, dims)
    return instruction(op.PAD, shape, (operand, value), padding=tuple(padding))


def concatenate(operands: Sequence[Instruction], axis: int) -> Instruction:
    total: Dim = 0
    for operand in operands:
        total = total + operand.shape.dims[axis]
    first = operands[0].shape
    shape = Shape(first.dtype, (*first.dims[:axis], total, *first.dims[axis + 1 :]))
    return instruction(op.CONCATENATE, shape, operands, dimensions=(axis,))


def reverse(operand: Instruction, axes: Sequence[int]) -> Instruction:
    return instruction(op.REVERSE, operand.shape, (operand,), dimensions=tuple(axes))


def iota(dtype: str, dims: Sequence[Dim], axis: int) -> Instruction:
    return instruction(op.IOTA, Shape(dtype, tuple(dims)), iota_dimension=axis)


def monoid(opcode: str, dtype: str) -> Computation:
    """The computation of two scalars that reductions apply."""
    left, right = parameter(0, dtype), parameter(1, dtype)
    return computation((left, right), elementwise(opcode, left, right))


def reduce(
    operand: Instruction, axes: Sequence[int], reducer: str, initial: Instruction | None = None
) -> Instruction:
    """Over `axes` with a monoid, from `initial` or the reducer's identity."""
    dtype = operand.shape.dtype
    if initial is None:
        identity = op.record(reducer).identity
        if identity is None:
            raise ValueError(f"{reducer} does not reduce")
        initial = constant(identity(dtype), dtype)
    dims = tuple(d for axis, d in enumerate(operand.shape.dims) if axis not in axes)
    return instruction(
        op.REDUCE,
        Shape(dtype, dims),
        (operand, initial),
        dimensions=tuple(axes),
        to_apply=monoid(reducer, dtype),
    )


def tuple_(operands: Sequence[Instruction]) -> Instruction:
    shape = Shape("tuple", elements=tuple(operand.shape for operand in operands))
    return instruction(op.TUPLE, shape, operands)


def get_tuple_element(operand: Instruction, index: int) -> Instruction:
    if operand.opcode == op.TUPLE:
        return operand.operands[index]
    if operand.shape.elements is None:
        raise ValueError(f"{operand.shape} is not a tuple")
    return instruction(op.GET_TUPLE_ELEMENT, operand.shape.elements[index], (operand,), index=index)
