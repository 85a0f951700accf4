"""What a patch does not show from outside: the order of launches around a variable."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")

from stitchcore.artifact.launch import FromLaunch, FromRegion, Launch, Operand
from stitchcore.tensorflow.graph import Edge
from stitchcore.tensorflow.ordering import after, after_checks


def launch(*sources: Any, checks: bool = False) -> Launch:
    kernel: Any = SimpleNamespace(errors=("wrong",) if checks else ())
    return Launch("key", kernel, 0, tuple(Operand(source, ()) for source in sources), 0, 0)


def test_launches_after_another_are_found_through_others() -> None:
    launches = [
        launch(FromRegion(0)),
        launch(FromLaunch(0, 0)),
        launch(FromRegion(1)),
        launch(FromLaunch(2, 0), FromLaunch(1, 1)),
    ]
    assert after(launches, 0) == {1, 3}
    assert after(launches, 1) == {3}
    assert after(launches, 2) == {3}
    assert after(launches, 3) == frozenset()


VARIABLE, OTHER = Edge(7, 0), Edge(8, 0)


def test_what_a_check_does_not_need_waits_for_it() -> None:
    launches = [
        launch(FromRegion(0)),  # what the check reads
        launch(FromLaunch(0, 0), checks=True),
        launch(FromLaunch(1, 0)),  # waits for its tensor anyway
        launch(FromRegion(1)),
    ]
    names = ["a", "check", "b", "c"]
    stores = {"store": Operand(FromLaunch(3, 0), ())}
    edges = after_checks(names, launches, stores, {}, {VARIABLE: "store"})
    assert edges == [("+c", "^+check"), ("+store", "^+check")]
    assert after_checks(names[2:], launches[2:], {}, {}, {}) == []


def test_a_reader_that_a_checking_writer_waits_for_does_not_wait_for_it() -> None:
    launches = [launch(FromRegion(0)), launch(FromRegion(1), checks=True), launch(FromLaunch(0, 0))]
    readers = {VARIABLE: ["reads"], OTHER: ["follows"]}
    edges = after_checks(
        ["reads", "check", "follows"], launches, {}, readers, {VARIABLE: "check", OTHER: "follows"}
    )
    assert edges == [("+follows", "^+check")]
