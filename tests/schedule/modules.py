"""Random modules of stitchable opcodes, drawn step by step so that failures shrink."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from stitchcore.fusion.pattern import Pattern
from stitchcore.hlo.ir import builder, literal
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction, computation, instruction, topological
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.ir.shape import DTYPES, Shape

UNARY = (op.NEGATE, op.ABS, op.EXPONENTIAL, op.TANH, op.LOGISTIC)
BINARY = (op.ADD, op.SUBTRACT, op.MULTIPLY, op.MAXIMUM)
SHAPES = ((6, 4), (4, 6), (24,), (2, 3, 4), (4,), (6,), (5, 7), (1, 6), (4, 4), (3, 40))


def parameter(number: int, dims: tuple[Any, ...], dtype: str = "f32") -> Instruction:
    return instruction(op.PARAMETER, Shape(dtype, dims), number=number)


def scalar(value: float, dtype: str = "f32") -> Instruction:
    return instruction(op.CONSTANT, Shape(dtype), value=literal.scalar(value, dtype))


def reducer(opcode: str, dtype: str = "f32") -> Any:
    left, right = (parameter(i, (), dtype) for i in (0, 1))
    return computation((left, right), instruction(opcode, Shape(dtype), (left, right)))


def reduce(value: Instruction, dimensions: tuple[int, ...], opcode: str = op.ADD) -> Instruction:
    dims = tuple(e for d, e in enumerate(value.shape.dims) if d not in dimensions)
    dtype = value.shape.dtype
    identity = op.record(opcode).identity
    assert identity is not None
    return instruction(
        op.REDUCE,
        Shape(dtype, dims),
        (value, scalar(identity(dtype), dtype)),
        dimensions=dimensions,
        to_apply=reducer(opcode, dtype),
    )


def broadcast(value: Instruction, dims: tuple[Any, ...], at: tuple[int, ...]) -> Instruction:
    return instruction(op.BROADCAST, Shape(value.shape.dtype, dims), (value,), dimensions=at)


def apply(opcode: str, *operands: Instruction, **attributes: Any) -> Instruction:
    shape = operands[-1].shape
    return instruction(opcode, shape, operands, **attributes)


def module_of(
    outputs: list[Instruction], parameters: list[Instruction], symbols: tuple[str, ...] = ()
) -> Module:
    root = instruction(
        op.TUPLE, Shape("tuple", (), tuple(o.shape for o in outputs)), tuple(outputs)
    )
    return Module("random", computation(parameters, root), symbols)


def whole(module: Module) -> Pattern:
    """Everything but the parameters as one pattern."""
    body = tuple(v for v in topological(module.outputs) if v.opcode != op.PARAMETER)
    used = {operand for value in body for operand in value.operands}
    inputs = tuple(p for p in module.entry.parameters if p in used)
    return Pattern(body, inputs, tuple(dict.fromkeys(module.outputs)))


@st.composite
def modules(draw: st.DrawFn) -> Module:
    """A module over a few f32 parameters, with up to a dozen operations."""
    shapes = draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3))
    values = [parameter(number, dims) for number, dims in enumerate(shapes)]
    parameters = list(values)
    for _ in range(draw(st.integers(1, 12))):
        made = _step(draw, values)
        if made.shape.size != 0 and made.shape.size <= 2000:
            values.append(made)
    made_here = [v for v in dict.fromkeys(values) if v.opcode != op.PARAMETER]
    if not made_here:
        made_here = [apply(op.NEGATE, values[0])]
    chosen = draw(st.lists(st.sampled_from(made_here), min_size=1, max_size=3, unique=True))
    return module_of(list(dict.fromkeys([made_here[-1], *chosen])), parameters)


def _step(draw: st.DrawFn, values: list[Instruction]) -> Instruction:
    value = draw(st.sampled_from(values))
    kinds = (_unary, _binary, _broadcast, _transpose, _reshape, _reduce, _slice, _pad)
    others = (_concatenate, _reverse, _mask, _normalise, _gather, _dynamic_slice)
    return draw(st.sampled_from((*kinds, *others)))(draw, value, values)


def _unary(draw: st.DrawFn, value: Instruction, values: list[Instruction]) -> Instruction:
    return apply(draw(st.sampled_from(UNARY)), apply(op.TANH, value))


def _binary(draw: st.DrawFn, value: Instruction, values: list[Instruction]) -> Instruction:
    alike = [v for v in values if v.shape == value.shape]
    return apply(draw(st.sampled_from(BINARY)), value, draw(st.sampled_from(alike)))


def _broadcast(draw: st.DrawFn, value: Instruction, values: list[Instruction]) -> Instruction:
    if value.shape.rank > 2:
        return apply(op.NEGATE, value)
    other = draw(st.sampled_from(values))
    for at in ([*range(value.shape.rank)], [*range(1, value.shape.rank + 1)]):
        dims = other.shape.dims
        if at and at[-1] < len(dims) and tuple(dims[d] for d in at) == value.shape.dims:
            return apply(op.ADD, broadcast(value, dims, tuple(at)), other)
    extent = draw(st.sampled_from((2, 3, 4, 6)))
    first = draw(st.booleans())
    dims = (extent, *value.shape.dims) if first else (*value.shape.dims, extent)
    return broadcast(value, dims, tuple(range(first, value.shape.rank + first)))


def _transpose(draw: st.DrawFn, value: Instruction, values: list[Instruction]) -> Instruction:
    order = tuple(draw(st.permutations(range(value.shape.rank))))
    shape = Shape(value.shape.dtype, tuple(value.shape.dims[d] for d in order))
    return instruction(op.TRANSPOSE, shape, (value,), dimensions=order)


def _reshape(draw: st.DrawFn, value: Instruction, values: list[Instruction]) -> Instruction:
    size = int(np.prod(value.shape.dims))
    options = [dims for dims in SHAPES if int(np.prod(dims)) == size] + [(size,), (1, size)]
    for factor in (2, 3, 4):
        if size % factor == 0:
            options += [(factor, size // factor), (size // factor, factor)]
    dims = draw(st.sampled_from(options))
    return instruction(op.RESHAPE, Shape(value.shape.dtype, dims), (value,))


def _reduce(draw: st.DrawFn, value: Instruction, values: list[Instruction]) -> Instruction:
    if not value.shape.rank:
        return apply(op.NEGATE, value)
    dimensions = draw(
        st.lists(st.integers(0, value.shape.rank - 1), min_size=1, max_size=3, unique=True)
    )
    return reduce(value, tuple(sorted(dimensions)), draw(st.sampled_from((op.ADD, op.MAXIMUM))))


def _slice(draw: st.DrawFn, value: Instruction, values: list[Instruction]) -> Instruction:
    ranges, dims = [], []
    for extent in value.shape.dims:
        start = draw(st.integers(0, extent - 1))
        limit = draw(st.integers(start + 1, extent))
        step = draw(st.integers(1, 2))
        ranges.append((start, limit, step))
        dims.append(-(-(limit - start) // step))
    return instruction(
        op.SLICE, Shape(value.shape.dtype, tuple(dims)), (value,), slice=tuple(ranges)
    )


def _places(draw: st.DrawFn, value: Instruction) -> Instruction:
    """Integers by the sign of a value, some outside of whatever they index."""
    dims, dtype = value.shape.dims, draw(st.sampled_from(("s32", "s64", "u8")))
    first = builder.constant(draw(st.integers(0 if dtype == "u8" else -2, 6)), dtype)
    other = broadcast(first, dims, ()) if dims else first
    step = builder.iota(dtype, dims, len(dims) - 1) if dims else builder.constant(2, dtype)
    zero = broadcast(scalar(0.0), dims, ()) if dims else scalar(0.0)
    chosen = builder.elementwise(op.COMPARE, value, zero, direction="LT")
    return builder.elementwise(op.SELECT, chosen, step, other)


def _gather(draw: st.DrawFn, value: Instruction, values: list[Instruction]) -> Instruction:
    """One or two dimensions looked up; slices before or after the dimensions of the indices."""
    if not value.shape.rank:
        return apply(op.NEGATE, value)
    rank = value.shape.rank
    indices = _places(
        draw,
        draw(
            st.sampled_from([v for v in values if v.shape.rank <= 2])
            if any(v.shape.rank <= 2 for v in values)
            else st.just(value)
        ),
    )
    starts = list(draw(st.permutations(range(rank))))[: draw(st.integers(1, 2))]
    sizes = [draw(st.integers(1, extent)) for extent in value.shape.dims]
    collapsed = [d for d in sorted(starts) if draw(st.booleans())]
    for d in collapsed:
        sizes[d] = 1
    vector_dim = indices.shape.rank
    if len(starts) > 1:
        indices = broadcast(
            indices, (len(starts), *indices.shape.dims), tuple(range(1, vector_dim + 1))
        )
        vector_dim = 0
    batch = indices.shape.rank - (vector_dim < indices.shape.rank)
    window = rank - len(collapsed)
    begin = draw(st.sampled_from((0, batch)))
    return builder.gather(
        value,
        indices,
        starts,
        sizes,
        vector_dim=vector_dim,
        offset_dims=range(begin, begin + window),
        collapsed=collapsed,
    )


def _dynamic_slice(draw: st.DrawFn, value: Instruction, values: list[Instruction]) -> Instruction:
    scalars = [v for v in values if not v.shape.rank]
    place = _places(draw, draw(st.sampled_from(scalars)) if scalars else scalar(-1.0))
    sizes = [draw(st.integers(1, extent)) for extent in value.shape.dims]
    return builder.dynamic_slice(value, [place] * value.shape.rank, sizes)


def _pad(draw: st.DrawFn, value: Instruction, values: list[Instruction]) -> Instruction:
    pads = [
        (draw(st.integers(-1, 2)), draw(st.integers(0, 2)), draw(st.integers(0, 1)))
        for _ in value.shape.dims
    ]
    dims = tuple(
        low + high + extent + (extent - 1) * interior
        for (low, high, interior), extent in zip(pads, value.shape.dims, strict=True)
    )
    if any(extent < 1 for extent in dims):
        return apply(op.NEGATE, value)
    shape = Shape(value.shape.dtype, dims)
    return instruction(op.PAD, shape, (value, scalar(0.5)), padding=tuple(pads))


def _concatenate(draw: st.DrawFn, value: Instruction, values: list[Instruction]) -> Instruction:
    if not value.shape.rank:
        return apply(op.NEGATE, value)
    along = draw(st.integers(0, value.shape.rank - 1))

    def fits(other: Instruction) -> bool:
        ours, theirs = list(value.shape.dims), list(other.shape.dims)
        return len(ours) == len(theirs) and all(
            d == along or a == b for d, (a, b) in enumerate(zip(ours, theirs, strict=True))
        )

    others = draw(st.lists(st.sampled_from([v for v in values if fits(v)]), min_size=1, max_size=2))
    parts = (value, *others)
    dims = list(value.shape.dims)
    dims[along] = sum(part.shape.dims[along] for part in parts)
    return instruction(
        op.CONCATENATE, Shape(value.shape.dtype, tuple(dims)), parts, dimensions=(along,)
    )


def _reverse(draw: st.DrawFn, value: Instruction, values: list[Instruction]) -> Instruction:
    if not value.shape.rank:
        return apply(op.NEGATE, value)
    d = draw(st.integers(0, value.shape.rank - 1))
    return instruction(op.REVERSE, value.shape, (value,), dimensions=(d,))


def _mask(draw: st.DrawFn, value: Instruction, values: list[Instruction]) -> Instruction:
    if not value.shape.rank:
        return apply(op.NEGATE, value)
    d = draw(st.integers(0, value.shape.rank - 1))
    place = instruction(op.IOTA, Shape("f32", value.shape.dims), iota_dimension=d)
    shape = Shape("pred", value.shape.dims)
    holds = instruction(op.COMPARE, shape, (place, value), direction="LT")
    return instruction(op.SELECT, value.shape, (holds, value, place))


def _normalise(draw: st.DrawFn, value: Instruction, values: list[Instruction]) -> Instruction:
    """value - its maximum along a dimension, exponential, over its sum: softmax."""
    if not value.shape.rank:
        return apply(op.NEGATE, value)
    d = draw(st.integers(0, value.shape.rank - 1))
    rest = tuple(k for k in range(value.shape.rank) if k != d)
    dims = value.shape.dims
    small = apply(op.TANH, value)
    shifted = apply(op.SUBTRACT, small, _along(reduce(small, (d,)), dims, rest))
    raised = apply(op.EXPONENTIAL, shifted)
    return apply(op.DIVIDE, raised, _along(reduce(raised, (d,)), dims, rest))


def _along(value: Instruction, dims: tuple[Any, ...], rest: tuple[int, ...]) -> Instruction:
    return broadcast(value, dims, rest)


def draw_inputs(pattern: Pattern, seed: int, bindings: dict[str, int] | None = None) -> list[Any]:
    from stitchcore.hlo.ir import dim

    random = np.random.default_rng(seed)
    made = []
    for value in pattern.inputs:
        dims = tuple(dim.evaluate(d, bindings or {}) for d in value.shape.dims)
        dtype = DTYPES[value.shape.dtype].numpy
        if dtype.kind == "b":
            made.append(random.random(dims) < 0.5)
        elif dtype.kind in "iu":
            made.append(random.integers(0, 5, dims).astype(dtype))
        else:
            made.append(random.normal(size=dims).astype(dtype))
    return made
