"""Random well-typed modules of stitchable opcodes, for differential tests of every stage.

A module is a function of the generator's state alone, so a failing seed is a reproducer. Values
stay in a tame range (expensive growth is damped), so that precisions can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stitchcore.hlo.ir import builder
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction, computation
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.ir.numerics import Array
from stitchcore.hlo.ir.shape import DTYPES
from tests.fuzz import indexed
from tests.fuzz.draw import Draw, FuzzOptions, is_float, numeric

MAXIMUM_ELEMENTS = 4096


def random_module(rng: np.random.Generator, options: FuzzOptions | None = None) -> Module:
    """A module with static shapes; the last values drawn and random others are its outputs."""
    options = options or FuzzOptions()
    draw = Draw(rng, options)
    parameters = [
        builder.parameter(i, draw.choice(options.dtypes), draw.dims())
        for i in range(options.parameters)
    ]
    draw.pool.extend(parameters)
    kinds = [kind for kind, _ in options.weights]
    weights = np.array([weight for _, weight in options.weights])
    while len(draw.pool) < options.parameters + options.instructions:
        kind = kinds[int(rng.choice(len(kinds), p=weights / weights.sum()))]
        made = _MAKERS[kind](draw)
        if made is not None and _acceptable(made):
            draw.pool.append(made)
    drawn = draw.pool[options.parameters :]
    chosen = dict.fromkeys([drawn[-1], *(draw.choice(drawn) for _ in range(options.outputs - 1))])
    return Module("fuzz", computation(parameters, builder.tuple_(list(chosen))))


def random_arguments(module: Module, rng: np.random.Generator) -> list[Array]:
    """Ordinary values: floats around zero and not tiny, small integers."""
    arguments = []
    for parameter in module.entry.parameters:
        dtype, dims = DTYPES[parameter.shape.dtype], parameter.shape.static
        value: Array
        if dtype.kind == "float":
            signs = rng.choice([-1.0, 1.0], dims)
            value = signs * rng.uniform(0.05, 2.0, dims)
        elif dtype.kind == "pred":
            value = rng.integers(0, 2, dims)
        else:
            value = rng.integers(0 if dtype.kind == "unsigned" else -9, 10, dims)
        arguments.append(np.asarray(value).astype(dtype.numpy))
    return arguments


def _acceptable(node: Instruction) -> bool:
    size = node.shape.size
    return isinstance(size, int) and 0 < size <= MAXIMUM_ELEMENTS


_GROWING = frozenset({op.POWER, "tan", "exponential-minus-one"})
_DIVIDING = frozenset({op.DIVIDE, op.REMAINDER})
_BY_OTHER_MAKERS = frozenset(
    {op.COMPARE, op.SELECT, op.CONVERT, op.BITCAST_CONVERT, op.REDUCE_PRECISION, op.COPY}
)


def _elementwise(draw: Draw) -> Instruction | None:
    first = draw.value(numeric)
    if first is None:
        return None
    dtype = first.shape.dtype
    names = [
        name
        for name, record in op.OPCODES.items()
        if record.kind == "elementwise"
        and dtype in record.dtypes
        and name not in _BY_OTHER_MAKERS
        and name not in _GROWING
    ]
    name = draw.choice(names)
    arity = op.record(name).arity or 0
    others = [_like(draw, first) for _ in range(arity - 1)]
    if name in _DIVIDING and not is_float(first):
        # XLA itself dies of a division by zero on the CPU: integer divisors are constants here.
        others = [builder.splat(int(draw.rng.integers(1, 5)), first)]
    operands = [first, *others]
    if name in (op.EXPONENTIAL,):
        operands[0] = builder.elementwise(op.MINIMUM, first, builder.splat(4.0, first))
    low, _ = op.record(name).domain
    if low >= 0 and is_float(first):
        absolute = builder.elementwise(op.ABS, first)
        operands[0] = builder.elementwise(op.ADD, absolute, builder.splat(0.125, first))
    if name == op.CLAMP:
        operands = [others[0], first, others[1]]
    return builder.elementwise(name, *operands)


def _like(draw: Draw, node: Instruction) -> Instruction:
    """A value of the same type and shape: an existing one, a broadcast one, or a constant."""
    same = draw.value(lambda v: v.shape == node.shape)
    if same is not None and draw.rng.random() < 0.7:
        return same
    smaller = draw.value(
        lambda v: (
            v.shape.dtype == node.shape.dtype
            and 0 < v.shape.rank < node.shape.rank
            and _subsequence(v.shape.dims, node.shape.dims) is not None
        )
    )
    if smaller is not None and draw.rng.random() < 0.7:
        axes = _subsequence(smaller.shape.dims, node.shape.dims)
        assert axes is not None
        return builder.broadcast(smaller, node.shape.dims, axes)
    kind = DTYPES[node.shape.dtype].kind
    value: float | int = float(draw.rng.integers(1, 8)) / 4
    return builder.splat(value if kind == "float" else int(draw.rng.integers(1, 5)), node)


def _subsequence(small: Sequence[Any], large: Sequence[Any]) -> list[int] | None:
    axes, start = [], 0
    for extent in small:
        found = next((i for i in range(start, len(large)) if large[i] == extent), None)
        if found is None:
            return None
        axes.append(found)
        start = found + 1
    return axes


def _broadcast(draw: Draw) -> Instruction | None:
    node = draw.value(lambda v: v.shape.rank < draw.options.rank)
    if node is None:
        return None
    dims: list[int] = []
    axes: list[int] = []
    for extent in node.shape.static:
        axes.append(len(dims))
        dims.append(extent)
    position = int(draw.rng.integers(0, len(dims) + 1))
    dims.insert(position, int(draw.choice(draw.options.extents)))
    return builder.broadcast(node, dims, [a + (a >= position) for a in axes])


def _reduce(draw: Draw) -> Instruction | None:
    node = draw.value(lambda v: v.shape.rank > 0)
    if node is None:
        return None
    count = int(draw.rng.integers(1, node.shape.rank + 1))
    axes = sorted(draw.rng.choice(node.shape.rank, count, replace=False).tolist())
    dtype = node.shape.dtype
    usable = {"pred": (op.AND, op.OR), "float": (op.ADD, op.MAXIMUM, op.MINIMUM)}
    names = usable.get(DTYPES[dtype].kind, (op.ADD, op.MAXIMUM, op.MINIMUM, op.AND, op.XOR))
    return builder.reduce(node, axes, draw.choice(names))


def _reshape(draw: Draw) -> Instruction | None:
    node = draw.value(lambda v: v.shape.rank > 0)
    if node is None:
        return None
    dims = list(node.shape.static)
    way = int(draw.rng.integers(3))
    if way == 0 and len(dims) > 1:
        at = int(draw.rng.integers(len(dims) - 1))
        dims[at : at + 2] = [dims[at] * dims[at + 1]]
    elif way == 1:
        at = int(draw.rng.integers(len(dims)))
        extent = dims[at]
        divisors = [d for d in range(2, int(extent)) if extent % d == 0]
        if not divisors:
            return None
        low = draw.choice(divisors)
        dims[at : at + 1] = [extent // low, low]
    else:
        dims.insert(int(draw.rng.integers(len(dims) + 1)), 1)
    return builder.reshape(node, dims) if len(dims) <= draw.options.rank + 1 else None


def _transpose(draw: Draw) -> Instruction | None:
    node = draw.value(lambda v: v.shape.rank > 1)
    return (
        None
        if node is None
        else builder.transpose(node, draw.rng.permutation(node.shape.rank).tolist())
    )


def _slice(draw: Draw) -> Instruction | None:
    node = draw.value(lambda v: v.shape.rank > 0)
    if node is None:
        return None
    ranges: list[tuple[Any, Any, int]] = []
    for extent in node.shape.static:
        begin = int(draw.rng.integers(0, extent))
        end = int(draw.rng.integers(begin + 1, extent + 1))
        ranges.append((begin, end, int(draw.choice((1, 1, 1, 2)))))
    return builder.slice_(node, ranges)


def _pad(draw: Draw) -> Instruction | None:
    node = draw.value(lambda v: v.shape.rank > 0 and numeric(v))
    if node is None:
        return None
    amounts: list[tuple[Any, Any, int]] = [
        (
            int(draw.rng.integers(-1, 3)),
            int(draw.rng.integers(-1, 3)),
            int(draw.choice((0, 0, 0, 1))),
        )
        for _ in node.shape.dims
    ]
    sizes = [
        low + high + n + (n - 1) * inner
        for (low, high, inner), n in zip(amounts, node.shape.dims, strict=True)
    ]
    if min(sizes) <= 0:
        return None
    value = builder.constant(draw.choice((0, 1)), node.shape.dtype)
    return builder.pad(node, value, amounts)


def _concatenate(draw: Draw) -> Instruction | None:
    node = draw.value(lambda v: v.shape.rank > 0)
    if node is None:
        return None
    axis = int(draw.rng.integers(node.shape.rank))

    def fits(other: Instruction) -> bool:
        same = other.shape.dtype == node.shape.dtype and other.shape.rank == node.shape.rank
        if not same:
            return False
        pairs = zip(other.shape.dims, node.shape.dims, strict=True)
        return all(a == b for i, (a, b) in enumerate(pairs) if i != axis)

    partner = draw.value(fits)
    return None if partner is None else builder.concatenate([node, partner], axis)


def _reverse(draw: Draw) -> Instruction | None:
    node = draw.value(lambda v: v.shape.rank > 0)
    return (
        None if node is None else builder.reverse(node, [int(draw.rng.integers(node.shape.rank))])
    )


def _iota(draw: Draw) -> Instruction | None:
    dims = draw.dims()
    if not dims:
        return None
    dtype = draw.choice([name for name in draw.options.dtypes if name != "pred"])
    return builder.iota(dtype, dims, int(draw.rng.integers(len(dims))))


def _compare_select(draw: Draw) -> Instruction | None:
    left = draw.value(numeric)
    if left is None:
        return None
    direction = draw.choice(sorted(op.COMPARE_OPERATORS))
    predicate = builder.elementwise(op.COMPARE, left, _like(draw, left), direction=direction)
    return builder.elementwise(op.SELECT, predicate, _like(draw, left), left)


def _convert(draw: Draw) -> Instruction | None:
    node = draw.value()
    target = draw.choice(draw.options.dtypes)
    return None if node is None or node.shape.dtype == target else builder.convert(node, target)


_MAKERS: dict[str, Callable[[Draw], Instruction | None]] = {
    "elementwise": _elementwise,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "gather": indexed.gather,
    "dynamic_slice": indexed.dynamic_slice,
    "dynamic_update": indexed.dynamic_update,
    "scatter": indexed.scatter,
    "scan": indexed.scan,
    "pad": _pad,
    "concatenate": _concatenate,
    "reverse": _reverse,
    "iota": _iota,
    "compare_select": _compare_select,
    "convert": _convert,
}
