"""Replicas that swap together: one decision, told to all, whoever dies."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stitch_operator.gateway import groups
from stitch_operator.gateway.groups import Acknowledgement, Group
from stitch_operator.gateway.identity import Identity
from stitch_operator.gateway.ledger import Ledger
from tests.operator.gateway.support import KEY

START = 1_000_000.0


@pytest.mark.slow
@settings(max_examples=300)
@given(data=st.data(), size=st.integers(1, 4))
def test_members_that_reach_step_n_all_see_the_same_decision(
    data: st.DataObject, size: int
) -> None:
    """Whatever order members speak in, and whoever dies: a decision is made once, all who ask at N
    get it, and it is to swap only if every member has confirmed N."""
    group: Group | None = None
    steps = dict.fromkeys(range(size), 0)
    told: dict[int, int] = {}
    decisions: set[str] = set()
    alive = set(range(size))
    for _ in range(data.draw(st.integers(1, 12 * size))):
        rank = data.draw(st.sampled_from(sorted(alive)))
        action = data.draw(st.sampled_from(("step", "ask", "ask", "die")))
        if action == "die" and len(alive) > 1:
            alive.remove(rank)
        elif action == "step":
            limit = told.get(rank, 10**9)
            steps[rank] = min(steps[rank] + data.draw(st.integers(1, 80)), limit)
        word = Acknowledgement(f"s{rank}", KEY, size, rank, steps[rank], told.get(rank))
        group = groups.acknowledge(group, word, START)
        if group.step:
            told[rank] = group.step
        if group.state in (groups.COMMITTED, groups.ABORTED):
            decisions.add(group.state)
        if group.state == groups.COMMITTED:
            assert len(group.members) == size
            assert all(member.confirmed for member in group.members.values())
        if told.get(rank) == steps[rank] and word.confirm is not None:
            assert group.state in (groups.COMMITTED, groups.ABORTED)
    assert len(decisions) <= 1


def test_a_group_swaps_at_a_step_that_none_has_reached(place: Path | str) -> None:
    ledger, one = (
        Ledger(place),
        Identity("a", "train", "p1", 2.0, "cpu", START),
    )

    def say(rank: int, step: int, confirm: int | None = None, session: str = "") -> Group:
        word = Acknowledgement(session or f"s{rank}", KEY, 2, rank, step, confirm)
        return ledger.acknowledge(one, "g", 1, word, START)

    assert say(0, 10).state == groups.GATHERING
    named = say(1, 17)
    assert (named.state, named.step) == (groups.NAMED, 17 + groups.MARGIN_STEPS)
    assert say(0, 20, named.step).state == groups.NAMED
    ledger.close()
    ledger = Ledger(place)  # the decision is durable
    assert say(1, 21, named.step).state == groups.COMMITTED
    assert say(0, named.step).state == groups.COMMITTED
    assert ledger.latest_round(one, "g") == 1
    ledger.close()


def test_the_member_with_the_quickest_steps_asks_for_the_margin() -> None:
    group = None
    for rank, (step, margin) in enumerate(((10, 700), (17, 60))):
        word = Acknowledgement(f"s{rank}", KEY, 2, rank, step, None, margin)
        group = groups.acknowledge(group, word, START)
    assert group is not None and group.step == 17 + 700
    alone = Acknowledgement("s", KEY, 1, 0, 5, None, 10**12)
    assert groups.acknowledge(None, alone, START).step == 5 + groups.MOST_MARGIN


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        (Acknowledgement("s1", "00" * 32, 2, 1, 0, None), "different artifacts"),
        (Acknowledgement("s1", KEY, 3, 1, 0, None), "group of 2"),
        (Acknowledgement("s1", KEY, 2, 2, 0, None), "group of 2"),
        (Acknowledgement("other", KEY, 2, 0, 0, None), "began anew"),
    ],
)
def test_a_member_that_does_not_fit_ends_the_group(word: Acknowledgement, reason: str) -> None:
    first = groups.acknowledge(None, Acknowledgement("s0", KEY, 2, 0, 5, None), START)
    after = groups.acknowledge(first, word, START)
    assert after.state == groups.ABORTED
    assert reason in after.reason
    late = Acknowledgement("s1", KEY, 2, 1, 0, None)
    assert groups.acknowledge(after, late, START) == after
