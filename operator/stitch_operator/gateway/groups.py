"""Swap groups: replicas that meet in collectives swap at one step, or none does.

A pure state machine over one durable record per (namespace, owner, group, round). Members
acknowledge; when all have, a step N ahead of all is named; when all have confirmed N, the group is
committed; whoever comes to N first without that aborts it. The decision is made in one place and
never changes, so a member that asks at N acts as all others do (docs/contracts.md section 7).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

GATHERING, NAMED, COMMITTED, ABORTED = "gathering", "named", "committed", "aborted"
MARGIN_STEPS = 50
"""Steps between the furthest member and N, at least: time for each to confirm. Members whose steps
are quick ask for more."""
MOST_MARGIN = 1_000_000
GATHER_SECONDS = 1800.0
MOST_MEMBERS = 4096


@dataclass(frozen=True)
class Member:
    """One rank: the session that speaks for it, its latest step, whether it has confirmed N, and
    how many steps it asks for between its own and N."""

    session: str
    step: int
    confirmed: bool = False
    margin: int = 0


@dataclass(frozen=True)
class Group:
    """One round's state. `step` is N once named, else 0; `reason` why it was aborted."""

    size: int
    key: str
    begun: float
    members: dict[int, Member] = field(default_factory=dict)
    state: str = GATHERING
    step: int = 0
    reason: str = ""


@dataclass(frozen=True)
class Acknowledgement:
    """A member's word. `key` is the artifact it has loaded; `confirm` the N it has understood."""

    session: str
    key: str
    size: int
    rank: int
    step: int
    confirm: int | None
    margin: int = 0


def acknowledge(group: Group | None, said: Acknowledgement, now: float) -> Group:
    """The group after a member's word, which may be said again at any time."""
    if group is None:
        group = Group(said.size, said.key, now)
        if not 1 <= said.size <= MOST_MEMBERS:
            return replace(group, state=ABORTED, reason=f"a group of {said.size}")
    if group.state in (COMMITTED, ABORTED):
        return group
    wrong = _mismatch(group, said, now)
    if wrong:
        return replace(group, state=ABORTED, reason=wrong)
    before = group.members.get(said.rank)
    confirmed = group.state == NAMED and said.confirm == group.step
    confirmed = confirmed or (before is not None and before.confirmed)
    member = Member(said.session, said.step, confirmed, min(said.margin, MOST_MARGIN))
    group = replace(group, members={**group.members, said.rank: member})
    if group.state == GATHERING and len(group.members) == group.size:
        furthest = max(one.step for one in group.members.values())
        margin = max(MARGIN_STEPS, *(one.margin for one in group.members.values()))
        return replace(group, state=NAMED, step=furthest + margin)
    if group.state == NAMED and all(one.confirmed for one in group.members.values()):
        return replace(group, state=COMMITTED)
    if group.state == NAMED and said.step >= group.step:
        reason = f"rank {said.rank} came to step {group.step} before all had confirmed it"
        return replace(group, state=ABORTED, reason=reason)
    return group


def _mismatch(group: Group, said: Acknowledgement, now: float) -> str:
    """Why this word ends the group; empty when it fits."""
    if said.size != group.size or not 0 <= said.rank < group.size:
        return f"rank {said.rank} of {said.size} in a group of {group.size}"
    if said.key != group.key:
        return "members hold different artifacts"
    before = group.members.get(said.rank)
    if before is not None and before.session != said.session:
        return f"rank {said.rank} began anew"
    if group.state == GATHERING and now - group.begun > GATHER_SECONDS:
        return f"not all of {group.size} members acknowledged in {GATHER_SECONDS:g} s"
    return ""
