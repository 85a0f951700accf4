"""What is taken for sizes that nobody knows before a step runs."""

from __future__ import annotations

from stitchcore.hlo.ir import dim as dims

NOMINAL_EXTENT = 64
"""The size a symbolic dimension is taken to have where a plan must compare."""


def extent(dim: dims.Dim) -> int:
    """`dim` with every symbol at its nominal extent."""
    if isinstance(dim, int):
        return dim
    return dims.evaluate(dim, dict.fromkeys(dims.symbols_of(dim), NOMINAL_EXTENT))
