"""Fuzzed operations on elements that data or an order along an axis names: lookups, updates in
place, scatters, cumulative sums."""

from __future__ import annotations

from collections.abc import Sequence

from stitchcore.hlo.ir import builder
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.attributes import WindowDim
from stitchcore.hlo.ir.instruction import Instruction, computation, instruction
from stitchcore.hlo.ir.shape import DTYPES, Shape
from tests.fuzz.draw import Draw, is_float, numeric

_WIDE = frozenset(n for n, d in DTYPES.items() if d.kind != "pred" and d.bytes > 2)
"""Types that sums are kept in."""


def _places(draw: Draw, dims: Sequence[int]) -> Instruction:
    """Integers of a shape that depend on the data, some outside of whatever they index."""
    node = draw.value(lambda v: numeric(v) and v.shape.dims == tuple(dims))
    dtype = draw.choice(("s32", "s64", "u32", "s8"))
    first = builder.constant(int(draw.rng.integers(0 if dtype == "u32" else -3, 6)), dtype)
    other = builder.broadcast(first, dims, ()) if dims else first
    step = builder.iota(dtype, dims, len(dims) - 1) if dims else builder.constant(2, dtype)
    if node is None:
        return step
    half = builder.constant(1, node.shape.dtype)
    half = builder.broadcast(half, dims, ()) if dims else half
    chosen = builder.elementwise(op.COMPARE, node, half, direction="LT")
    return builder.elementwise(op.SELECT, chosen, step, other)


def gather(draw: Draw) -> Instruction | None:
    """Any dimensions looked up, collapsed or not, their slices anywhere in the result."""
    node = draw.value(lambda v: v.shape.rank > 0)
    if node is None:
        return None
    rank = node.shape.rank
    count = int(draw.rng.integers(1, rank + 1))
    starts = draw.rng.permutation(rank)[:count].tolist()
    dims = list(draw.dims()[:2])
    vector_dim = len(dims)
    if count > 1 or draw.rng.random() < 0.3:
        vector_dim = int(draw.rng.integers(0, len(dims) + 1))
        dims.insert(vector_dim, count)
    indices = _places(draw, dims)
    sizes = [int(draw.rng.integers(1, n + 1)) for n in node.shape.static]
    collapsed = sorted(d for d in starts if draw.rng.random() < 0.7)
    for d in collapsed:
        sizes[d] = 1
    total = len(dims) - (vector_dim < len(dims)) + rank - len(collapsed)
    offsets = sorted(draw.rng.permutation(total)[: rank - len(collapsed)].tolist())
    if total > draw.options.rank + 1:
        return None
    return builder.gather(
        node, indices, starts, sizes,
        vector_dim=vector_dim, offset_dims=offsets, collapsed=collapsed,
    )  # fmt: skip


def dynamic_slice(draw: Draw) -> Instruction | None:
    node = draw.value(lambda v: v.shape.rank > 0)
    if node is None:
        return None
    sizes = [int(draw.rng.integers(1, n + 1)) for n in node.shape.static]
    return builder.dynamic_slice(node, _starts(draw, node), sizes)


def _starts(draw: Draw, node: Instruction) -> list[Instruction]:
    places = _places(draw, ())
    return [places if draw.rng.random() < 0.7 else builder.constant(1, places.shape.dtype)
            for _ in node.shape.dims]  # fmt: skip


def dynamic_update(draw: Draw) -> Instruction | None:
    """A value, or part of the same one, put into another."""
    node = draw.value(lambda v: v.shape.rank > 0 and v.opcode == op.PARAMETER)
    if node is None or draw.rng.random() < 0.5:
        node = draw.value(lambda v: v.shape.rank > 0)
    if node is None:
        return None
    window = builder.slice_(node, [(0, max(n // 2, 1), 1) for n in node.shape.static])
    window = draw.value(lambda other: other.shape == window.shape) or window
    return builder.dynamic_update_slice(node, window, _starts(draw, node))


def scatter(draw: Draw) -> Instruction | None:
    """Rows of what there is, added, taken away or put in place of others, some of them outside."""
    node = draw.value(lambda v: v.shape.rank > 0 and numeric(v) and v.shape.dtype in _WIDE)
    if node is None:
        return None
    rank, dtype = node.shape.rank, node.shape.dtype
    scattered = draw.rng.permutation(rank)[: int(draw.rng.integers(1, min(rank, 2) + 1))].tolist()
    window = [n for d, n in enumerate(node.shape.dims) if d not in scattered]
    batch = list(draw.dims()[:1]) or [1]
    dims = [*batch, *window]
    updates = draw.value(lambda v: (v.shape.dtype, v.shape.static) == (dtype, tuple(dims)))
    if updates is None:
        updates = builder.iota(dtype, dims, 0)
    pair = builder.parameter(0, dtype), builder.parameter(1, dtype)
    kind = draw.choice((op.ADD, op.SUBTRACT, op.MAXIMUM, ""))
    body = computation(pair, builder.elementwise(kind, *pair) if kind else pair[1])
    return builder.scatter(
        node, _places(draw, [*batch, len(scattered)]), updates, body,
        window=range(len(batch), len(dims)), scattered=scattered, vector_dim=len(batch),
    )  # fmt: skip


def scan(draw: Draw) -> Instruction | None:
    """What tf2xla makes of cumulative sums, products and extremes along an axis, from either end,
    with the element itself or without; there also with the total, and cut to part of it."""
    node = draw.value(lambda v: v.shape.rank > 0)
    if node is None:
        return None
    dims, dtype = node.shape.static, node.shape.dtype
    reducer = draw.choice(_cumulative(dtype))
    if reducer == op.MULTIPLY and is_float(node):
        node = builder.elementwise(op.TANH, node)  # products of less than one stay small
    dim = int(draw.rng.integers(len(dims)))
    if draw.rng.random() < 0.6:
        dim = max(range(len(dims)), key=lambda d: dims[d])  # else most windows are expanded
    ways = ["inclusive", "inclusive", "exclusive", "exclusive", "total", "cut"]
    extreme = is_float(node) and reducer in (op.MAXIMUM, op.MINIMUM)  # of nothing: infinite
    way = "inclusive" if extreme else draw.choice(ways)
    with_total = way in ("total", "cut")
    before = dims[dim] - (way == "inclusive")
    after = -int(way == "exclusive")
    reverse = bool(draw.rng.random() < 0.5)
    window = [WindowDim(1)] * len(dims)
    window[dim] = WindowDim(dims[dim], 1, *((after, before) if reverse else (before, after)))
    extents = [n + (d == dim and with_total) for d, n in enumerate(dims)]
    identity = op.record(reducer).identity
    assert identity is not None
    start, body = builder.constant(identity(dtype), dtype), builder.monoid(reducer, dtype)
    made = instruction(
        op.REDUCE_WINDOW, Shape(dtype, tuple(extents)), (node, start),
        window=tuple(window), to_apply=body,
    )  # fmt: skip
    if way != "cut":
        return made
    begin, end = (1, dims[dim] + 1) if reverse else (0, dims[dim])
    return builder.slice_(made, [(begin, end, 1) if d == dim else (0, n, 1)
                               for d, n in enumerate(dims)])  # fmt: skip


def _cumulative(dtype: str) -> tuple[str, ...]:
    """Functions of scans of a type."""
    kind = DTYPES[dtype].kind
    if kind == "pred":
        return op.AND, op.OR
    return op.ADD, op.ADD, op.MULTIPLY, op.MAXIMUM, op.MINIMUM
