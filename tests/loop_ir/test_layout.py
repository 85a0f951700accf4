"""Which accesses of a lane loop move whole runs: what is said of an index holds for all values."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from stitchcore.loop_ir import index
from stitchcore.loop_ir.index import Index, Variable
from stitchcore.loop_ir.layout import is_vector_access
from stitchcore.loop_ir.nodes import Buffer, Loop, LoopKind, Role, Scope
from tests.loop_ir.test_index import Tree, build, trees

LANE = Variable("i")
X = Buffer("x", "f32", (1 << 20,), Scope.DEVICE, Role.INPUT)


def loop(begin: Index = 0) -> Loop:
    return Loop("i", begin, 1024, LoopKind.LANES, ())


@settings(max_examples=400, deadline=None)
@given(trees())
def test_runs_lie_side_by_side_at_a_multiple_of_their_length(tree: Tree) -> None:
    place = build(tree)
    for length in (2, 4):
        if not is_vector_access(loop(), X, (place,), length):
            continue
        for symbol in range(1, 4):
            for first in range(0, 64, length):
                at = [index.evaluate(place, {"i": first + n, "B": symbol}) for n in range(length)]
                assert at[0] % length == 0 and at == list(range(at[0], at[0] + length))


TASK = Variable("task")
PACKED = (TASK * 32 + LANE // 64) % 12 * 8192 + (TASK * 32 + LANE // 64) // 12 * 64 + LANE % 64


@pytest.mark.parametrize(
    ("place", "length", "whole"),
    [
        (LANE, 4, True),
        (LANE + 1, 4, False),
        (TASK * 6 + LANE, 4, False),
        (TASK * 6 + LANE, 2, True),
        (PACKED, 4, True),  # rows of 64 that a task has side by side, transposed
        (PACKED, 8, True),
        (LANE % 64 + LANE // 64 * 768, 4, True),
        (LANE % 6 + LANE // 6 * 768, 4, False),  # a run would cross the end of a row
        (LANE % 6 + LANE // 6 * 768, 2, True),
        (LANE % 64 * 2, 2, False),
        (LANE // 64, 4, False),  # all of a run are one element
        ((LANE + 2) % 64, 4, False),
        ((TASK * 4 + LANE) % 64, 4, True),
        (LANE % 12 * TASK, 4, False),
    ],
)
def test_which_accesses_are_of_whole_runs(place: Index, length: int, whole: bool) -> None:
    assert is_vector_access(loop(), X, (place,), length) is whole


def test_a_loop_has_to_begin_at_a_multiple() -> None:
    assert not is_vector_access(loop(begin=2), X, (LANE,), 4)
    assert is_vector_access(loop(begin=TASK * 4), X, (LANE,), 4)
