"""Quotients and remainders by sizes known only at run time, named before the lanes that they are
the same for.

A division by a symbol may trap, so a compiler leaves it in the loop that it is written in, and then
makes no vectors of the lanes (gcc 12: no vector instruction divides integers).
"""

from __future__ import annotations

from collections.abc import Iterable

from stitchcore.loop_ir import index
from stitchcore.loop_ir.index import Binary, Index
from stitchcore.loop_ir.nodes import Loop
from stitchcore.loop_ir.visitor import gather_indices, statements


def quotients(loop: Loop, indices: Iterable[Index]) -> dict[Binary, str]:
    """Divisions by symbols among `indices`, of what is in lane loop `loop`, that no lane changes:
    a name for each, inner ones before those that divide them again."""
    inner = {one.variable for one in statements(loop.body) if isinstance(one, Loop)}
    changing = {loop.variable} | inner | gather_indices(loop.body)
    names: dict[Binary, str] = {}

    def visit(node: Index) -> None:
        if not isinstance(node, Binary):
            return
        visit(node.left)
        visit(node.right)
        divides = node.operator in ("//", "%") and not isinstance(node.right, int)
        if divides and not index.names(node) & changing:
            names.setdefault(node, f"{loop.variable}_quotient{len(names)}")

    for one in indices:
        visit(one)
    return names
