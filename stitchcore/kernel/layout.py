"""Where the elements of a buffer lie."""

from __future__ import annotations

from collections.abc import Sequence

from stitchcore.kernel import index
from stitchcore.kernel.index import Index
from stitchcore.kernel.nodes import Buffer


def flat_index(buffer: Buffer, indices: Sequence[Index]) -> Index:
    """Row-major position of `buffer[indices]`; quotient and remainder of a packed index joined."""
    total: Index = 0
    stride: Index = 1
    for i, extent in zip(reversed(indices), reversed(buffer.dims), strict=True):
        total = index.add(index.multiply(i, stride), total)
        stride = index.multiply(stride, extent)
    return index.collapse(total)
