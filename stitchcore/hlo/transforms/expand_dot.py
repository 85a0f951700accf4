"""Small dots as multiplications and sums, so that they join kernels (FusionStitching 2018, 2019).

A dot of one row, one column or one contracted element, batched or not, reads each element of its
larger operand once: it is as memory-intensive as a reduction, and a library call between the
kernels around it only costs their fusion. Attention with one query is the case that matters.

Any other dot is the sum over its contracted dimensions of the products of two broadcasts. That is
for dots whose library call takes longer than its work in a kernel: who asks says which
(fusion/contraction.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from stitchcore.hlo.ir import builder
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.dim import Dim
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.hlo.ir.shape import DTYPES


@dataclass(frozen=True)
class _Side:
    """One operand: its value in the type that is summed in, and the dimensions of each kind."""

    value: Instruction
    batch: tuple[int, ...]
    contracting: tuple[int, ...]

    @property
    def free(self) -> tuple[int, ...]:
        bound = (*self.batch, *self.contracting)
        return tuple(d for d in range(self.value.shape.rank) if d not in bound)

    def dims(self, axes: Sequence[int]) -> tuple[Dim, ...]:
        return tuple(self.value.shape.dims[axis] for axis in axes)

    def is_one(self, axes: Sequence[int]) -> bool:
        return all(extent == 1 for extent in self.dims(axes))


Predicate = Callable[[Instruction], bool]


def no_other(_: Instruction) -> bool:
    """Only dots of one row, one column or one contracted element are written out."""
    return False


def small_dot(node: Instruction, pays: Predicate = no_other) -> Instruction | None:
    """A float dot with one row, one column or one contracted element, summed in at least f32; one
    that `pays`; and one with nothing to multiply."""
    if DTYPES[node.shape.dtype].kind != "float":
        return None
    if 0 in (node.shape.size, *(operand.shape.size for operand in node.operands)):
        return builder.splat(0.0, node)
    left, right = _sides(node)
    if left.is_one(left.contracting):
        product = _outer(left, right)
    elif left.is_one(left.free):
        product = _summed(right, left)
    elif right.is_one(right.free):
        product = _summed(left, right)
    elif pays(node):
        product = _contraction(left, right)
    else:
        return None
    return builder.convert(builder.reshape(product, node.shape.dims), node.shape.dtype)


def _sides(node: Instruction) -> tuple[_Side, _Side]:
    wide = [DTYPES[o.shape.dtype].bytes == 8 for o in (node, *node.operands)]
    dtype = "f64" if any(wide) else "f32"
    left, right = (builder.convert(operand, dtype) for operand in node.operands)
    return (
        _Side(left, tuple(node.get("lhs_batch_dims", ())), tuple(node["lhs_contracting_dims"])),
        _Side(right, tuple(node.get("rhs_batch_dims", ())), tuple(node["rhs_contracting_dims"])),
    )


def _outer(left: _Side, right: _Side) -> Instruction:
    """Nothing to sum: each pair of elements multiplied, in the order of the dot's result."""
    dims = (*left.dims(left.batch), *left.dims(left.free), *right.dims(right.free))
    batch, rows = len(left.batch), len(left.free)
    places = [range(batch + rows), [*range(batch), *range(batch + rows, len(dims))]]
    factors = []
    for side, places_of in zip((left, right), places, strict=True):
        ordered = _ordered(side.value, (*side.batch, *side.free, *side.contracting))
        squeezed = builder.reshape(ordered, ordered.shape.dims[: len(places_of)])
        factors.append(builder.broadcast(squeezed, dims, places_of))
    return builder.elementwise(op.MULTIPLY, *factors)


def _contraction(left: _Side, right: _Side) -> Instruction:
    """Products over [batch, rows, contracted, columns], summed over what is contracted."""
    groups = [left.dims(left.batch), left.dims(left.free), left.dims(left.contracting),
              right.dims(right.free)]  # fmt: skip
    ends = list(accumulate(map(len, groups), initial=0))
    batch, rows, contracted, columns = (range(*pair) for pair in pairwise(ends))
    dims = tuple(dim for group in groups for dim in group)
    factors = [
        builder.broadcast(_ordered(left.value, (*left.batch, *left.free, *left.contracting)), dims,
                          [*batch, *rows, *contracted]),
        builder.broadcast(_ordered(right.value, (*right.batch, *right.contracting, *right.free)),
                          dims, [*batch, *contracted, *columns]),
    ]  # fmt: skip
    return builder.reduce(builder.elementwise(op.MULTIPLY, *factors), contracted, op.ADD)


def _summed(large: _Side, single: _Side) -> Instruction:
    """`single` spread over `large` (whose elements stay in their order), multiplied and summed."""
    place = dict(zip((*single.batch, *single.contracting), (*large.batch, *large.contracting),
                     strict=True))  # fmt: skip
    order = sorted(place, key=lambda axis: place[axis])
    ordered = _ordered(single.value, (*order, *single.free))
    squeezed = builder.reshape(ordered, ordered.shape.dims[: len(order)])
    spread = builder.broadcast(squeezed, large.value.shape.dims, [place[axis] for axis in order])
    product = builder.elementwise(op.MULTIPLY, large.value, spread)
    total = builder.reduce(product, sorted(large.contracting), op.ADD)
    remaining = [axis for axis in range(large.value.shape.rank) if axis not in large.contracting]
    return _ordered(total, [remaining.index(axis) for axis in (*large.batch, *large.free)])


def _ordered(value: Instruction, permutation: Sequence[int]) -> Instruction:
    return builder.transpose(value, tuple(permutation))
