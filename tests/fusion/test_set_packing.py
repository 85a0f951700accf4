"""Set packing against all packings: bounds are bounds, answers are optimal, limits are kept."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stitchcore.fusion import (
    planner_exact,
    set_packing,
    set_packing_bound,
    set_packing_search,
    set_packing_solver,
)
from stitchcore.fusion.cost import cost
from stitchcore.fusion.set_packing import Pool
from tests.fusion.test_exhaustive import DEVICE, anything, load

SETS = st.lists(
    st.tuples(st.frozensets(st.integers(0, 6), min_size=1, max_size=4), st.integers(1, 40)),
    min_size=1,
    max_size=9,
    unique_by=lambda one: one[0],
)
TRIANGLE = [frozenset(one) for one in ((0, 1), (1, 2), (0, 2))]
"""Three sets of which one can be taken; the relaxation takes half of each."""
NEVER = float("inf")


def disjoint(sets: Sequence[frozenset[int]], some: Sequence[int]) -> bool:
    return all(not sets[a] & sets[b] for a, b in combinations(some, 2))


def best(
    sets: Sequence[frozenset[int]], values: Sequence[float], forbidden: Sequence[frozenset[int]]
) -> float:
    """The most that a packing is worth, by trying all."""
    return max(
        sum(values[n] for n in some)
        for count in range(len(sets) + 1)
        for some in combinations(range(len(sets)), count)
        if disjoint(sets, some) and not any(one <= set(some) for one in forbidden)
    )


@settings(max_examples=300)
@given(SETS, st.data())
def test_prices_never_bound_below_the_optimum(
    drawn: list[tuple[frozenset[int], int]], data: st.DataObject
) -> None:
    """From any packing as a start, also a bad one."""
    sets, values = [one for one, _ in drawn], [float(value) for _, value in drawn]
    chosen: list[int] = []
    for n in data.draw(st.permutations(range(len(sets)))):
        if disjoint(sets, [*chosen, n]) and data.draw(st.booleans()):
            chosen.append(n)
    assert set_packing_bound.bound(sets, values, chosen).limit >= best(sets, values, ()) * (
        1 - 1e-9
    )


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4), st.integers(1, 40)), max_size=9))
def test_prices_close_where_sets_are_intervals(drawn: list[tuple[int, int, int]]) -> None:
    """A packing of intervals has no gap to its relaxation: within a percent of the optimum."""
    sets = [frozenset(range(start, start + length)) for start, length, _ in drawn]
    values = [float(value) for *_, value in drawn]
    packed = set_packing.pack(Pool(sets, values, ()), NEVER)
    assert set_packing_bound.bound(sets, values, packed.chosen).limit <= packed.limit * 1.01 + 1e-9


def test_prices_leave_the_gap_that_is_there() -> None:
    assert set_packing_bound.bound(TRIANGLE, [2.0, 2.0, 2.0], [0]).limit == pytest.approx(
        3.0, rel=0.05
    )


def unbranched(monkeypatch: pytest.MonkeyPatch) -> None:
    """What prices leave open is asked of the solver."""
    monkeypatch.setattr(set_packing_search, "BRANCHES", 0)


@pytest.mark.slow
@pytest.mark.parametrize("asked", [False, True], ids=["branches", "solver"])
@settings(max_examples=30)
@given(drawn=SETS, data=st.data())
def test_packings_are_optimal(
    asked: bool, drawn: list[tuple[frozenset[int], int]], data: st.DataObject
) -> None:
    """With combinations forbidden, and known packings to start from."""
    sets, values = [one for one, _ in drawn], [float(value) for _, value in drawn]
    numbers = st.frozensets(st.integers(0, len(sets) - 1), min_size=1, max_size=3)
    forbidden = data.draw(st.lists(numbers, max_size=3))
    with pytest.MonkeyPatch.context() as monkeypatch:
        if asked:
            unbranched(monkeypatch)
        packed = set_packing.pack(Pool(sets, values, [frozenset()], forbidden), NEVER)
    assert disjoint(sets, sorted(packed.chosen))
    assert not any(one <= packed.chosen for one in forbidden)
    expected = best(sets, values, forbidden)
    assert sum(values[n] for n in packed.chosen) == pytest.approx(expected)
    assert packed.limit == pytest.approx(expected)
    assert packed.closed


def test_at_the_end_of_the_time_the_best_known_stands_with_its_bound() -> None:
    pool = Pool(TRIANGLE, [2.0, 2.1, 2.0], [frozenset({0})])
    packed = set_packing.pack(pool, time.monotonic() - 1)
    assert packed.chosen == {1}
    assert not packed.closed
    assert 2.1 < packed.limit < 3.3


def test_without_the_solver_the_bound_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    unbranched(monkeypatch)
    monkeypatch.setattr(set_packing_solver, "ask", lambda *rest: None)
    packed = set_packing.pack(Pool(TRIANGLE, [2.0, 2.0, 2.0], ()), NEVER)
    assert len(packed.chosen) == 1
    assert not packed.closed


def test_parts_that_share_nothing_are_solved_once() -> None:
    """A second search with a new cut asks only for the part that it touches."""
    sets = [*TRIANGLE, *(frozenset({e + 10 for e in one}) for one in TRIANGLE)]
    memory: dict[object, set_packing.Packed] = {}
    pool = Pool(sets, [2.0, 3.0, 2.0, 2.0, 3.0, 2.0], ())
    assert set_packing.pack(pool, NEVER, memory).chosen == {1, 4}
    cut = Pool(pool.sets, pool.values, (), [frozenset({1})])
    assert set_packing.pack(cut, NEVER, memory).chosen <= {0, 2, 4}
    assert len(memory) == 3


# ---- branches ----------------------------------------------------------------------------------
PRICES = st.lists(st.floats(0, 50), min_size=7, max_size=7)


@settings(max_examples=300)
@given(SETS, PRICES, st.data())
def test_branches_find_the_optimum_whatever_the_prices(
    drawn: list[tuple[frozenset[int], int]], given_: list[float], data: st.DataObject
) -> None:
    sets, values = [one for one, _ in drawn], [float(value) for _, value in drawn]
    numbers = st.frozensets(st.integers(0, len(sets) - 1), min_size=2, max_size=3)
    forbidden = data.draw(st.lists(numbers, max_size=3)) if len(sets) > 1 else []
    known = frozenset(data.draw(st.sets(st.integers(0, len(sets) - 1), max_size=1)))
    price = {e: given_[e] for members in sets for e in members}
    chosen = set_packing_search.best(sets, values, forbidden, known, price)
    assert chosen is not None
    assert disjoint(sets, sorted(chosen))
    assert not any(one <= chosen for one in forbidden)
    assert sum(values[n] for n in chosen) == pytest.approx(best(sets, values, forbidden))


def test_a_packing_that_none_betters_stands() -> None:
    """Of equally good packings the known one."""
    price = dict.fromkeys(range(3), 1.5)
    for n in range(3):
        assert set_packing_search.best(TRIANGLE, [2.0] * 3, (), frozenset({n}), price) == {n}


def test_branches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve triangles at prices that tell nothing."""
    sets = [frozenset(e + 3 * n for e in one) for n in range(12) for one in TRIANGLE]
    price = dict.fromkeys(range(36), 100.0)
    assert set_packing_search.best(sets, [2.0] * 36, (), frozenset(), price) is None
    problem_sizes: list[int] = []

    def ask(sets: Sequence[frozenset[int]], *rest: object) -> None:
        problem_sizes.append(len(sets))

    monkeypatch.setattr(set_packing_solver, "ask", ask)
    monkeypatch.setattr(set_packing_search, "BRANCHES", 1)
    packed = set_packing.pack(Pool(TRIANGLE, [2.0, 3.0, 2.0], ()), NEVER)
    assert (problem_sizes, packed.closed, packed.chosen) == ([3], False, {1})


@pytest.mark.slow
def test_no_solver_is_started_for_a_workload(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts that their prices leave open, up to 77 sets, are within few branches."""
    problem_sizes: list[int] = []
    searches: list[bool] = []

    def ask(sets: Sequence[frozenset[int]], *rest: object) -> None:
        problem_sizes.append(len(sets))

    def counted(*arguments: object) -> object:
        searches.append(True)
        return searched(*arguments)

    searched = set_packing._searched
    monkeypatch.setattr(set_packing_solver, "ask", ask)
    monkeypatch.setattr(set_packing, "_searched", counted)
    plan = planner_exact.planner(planner_exact.ExactOptions(NEVER))(
        load("asr_train"), DEVICE, cost, anything
    )
    assert plan.bound is not None
    assert (problem_sizes, plan.bound.closed) == ([], True)
    assert len(searches) >= 9
