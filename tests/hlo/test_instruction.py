"""Walks over instructions: each once, users first, down to where a caller stops."""

from __future__ import annotations

from stitchcore.hlo.ir.instruction import instruction, reachable
from stitchcore.hlo.ir.shape import Shape

F32 = Shape("f32", (4,))


def test_a_walk_ends_where_it_is_stopped_and_follows_the_operands_it_is_given() -> None:
    x, y = (instruction("parameter", F32, number=n) for n in range(2))
    inner = instruction("negate", F32, (x,))
    shared = instruction("add", F32, (inner, y))
    root = instruction("multiply", F32, (shared, shared))
    assert list(reachable((root,))) == [root, shared, y, inner, x]
    assert list(reachable((root,), lambda node: node is inner)) == [root, shared, y, inner]
    first_only = reachable((root,), operands=lambda node: node.operands[:1])
    assert list(first_only) == [root, shared, inner, x]
