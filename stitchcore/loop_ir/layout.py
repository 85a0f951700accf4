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
    found = _in_run(flat_index(buffer, indices), loop.variable, length)
    if found is None or index.names(found[0]) & gather_indices(loop.body):
        return False
    first, each = found
    return each == 1 and index.is_multiple(first, length) and index.is_multiple(loop.begin, length)


def _in_run(node: Index, variable: str, length: int) -> tuple[Index, int] | None:
    """`node` where `variable` goes through a run of `length` from a multiple of it on: its value at
    the first of them, over the run's number in place of `variable`, and by how much each makes it
    larger. None where that is not told."""
    if isinstance(node, int):
        return node, 0
    if isinstance(node, index.Variable):
        own = node.name == variable
        return index.multiply(node, length if own else 1), int(own)
    left = _in_run(node.left, variable, length)
    right = _in_run(node.right, variable, length)
    if left is None or right is None:
        return None
    (first, each), (second, other) = left, right
    match node.operator:
        case "+":
            return index.add(first, second), each + other
        case "*" if isinstance(second, int):
            return index.multiply(first, second), each * second
        case "*" if isinstance(first, int):
            return index.multiply(first, second), other * first
        case "//" if (each, other) == (1, 0) and _whole(first, second, length):
            return index.floor_divide(first, second), 0
        case "%" if (each, other) == (1, 0) and _whole(first, second, length):
            return index.modulo(first, second), 1
    return None if each or other else (index.BUILDERS[node.operator](first, second), 0)


def _whole(first: Index, second: Index, length: int) -> bool:
    """Whether no run of `length` from `first` on crosses a multiple of `second`."""
    return index.is_multiple(first, length) and index.is_multiple(second, length)


def is_own(loop: Loop, buffer: Buffer, indices: Sequence[Index]) -> bool:
    """Whether an access in lane loop `loop` is to the element that has its iteration's number,
    counted from where the loop begins: such an element is always the same lane's."""
    number = index.add(index.Variable(loop.variable), index.multiply(loop.begin, -1))
    place = index.add(flat_index(buffer, indices), index.multiply(number, -1))
    return index.gather(place) == 0
