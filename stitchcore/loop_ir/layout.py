"""How large a buffer is, and where its elements lie."""

from __future__ import annotations

from collections.abc import Sequence

from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.loop_ir import index
from stitchcore.loop_ir.index import Index
from stitchcore.loop_ir.nodes import Buffer, Loop
from stitchcore.loop_ir.visitor import gather_indices


def size_of(buffer: Buffer) -> Index:
    """Number of elements."""
    return index.product(buffer.dims)


def bytes_of(buffer: Buffer) -> Index:
    """Bytes of all elements."""
    return index.product((DTYPES[buffer.dtype].bytes, *buffer.dims))


def flat_index(buffer: Buffer, indices: Sequence[Index]) -> Index:
    """Row-major position of `buffer[indices]`; quotient and remainder of a packed index joined."""
    total: Index = 0
    stride: Index = 1
    for i, extent in zip(reversed(indices), reversed(buffer.dims), strict=True):
        total = index.add(index.multiply(i, stride), total)
        stride = index.multiply(stride, extent)
    return index.collapse(total)


def is_vector_access(loop: Loop, buffer: Buffer, indices: Sequence[Index], length: int) -> bool:
    """Whether what `length` neighbouring iterations of `loop` touch lies side by side, the first at
    a multiple of `length`, where the loop is walked from its beginning in such steps."""
    lane = index.multiply(index.Variable(loop.variable), -1)
    rest = index.gather(index.add(flat_index(buffer, indices), lane))
    if index.names(rest) & ({loop.variable} | gather_indices(loop.body)):
        return False
    return index.is_multiple(rest, length) and index.is_multiple(loop.begin, length)


def is_own(loop: Loop, buffer: Buffer, indices: Sequence[Index]) -> bool:
    """Whether an access in lane loop `loop` is to the element that has its iteration's number,
    counted from where the loop begins: such an element is always the same lane's."""
    number = index.add(index.Variable(loop.variable), index.multiply(loop.begin, -1))
    place = index.add(flat_index(buffer, indices), index.multiply(number, -1))
    return index.gather(place) == 0
