"""Whatever the order of time, crashes, a second reconciler and rotations by hand: at no moment does
a server show, or the signer sign with, what somebody who asks it does not trust."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stitch_operator.names import AUTHORITIES, PUBLIC_KEYS
from stitch_operator.reconciler import issuing, keys, rotation
from stitch_operator.reconciler.holding import Held, Role, text
from stitch_operator.reconciler.rotation import DAY
from tests.operator.reconciler.world import TIMES, World

API_LAG = 300.0
"""API servers and webhooks see what was written at most so long before."""
FILE_LAG = 1800.0
"""Servers and the signer use files that were written at most so long before."""
SKEW = 100.0
JOB = TIMES.overlap - API_LAG - 2 * SKEW
"""The longest life of a pod that trusts to its end what it was given when it was made."""
RESIGNING = 12 * 3600.0
SERVERS = (Role.WEBHOOK, Role.GATEWAY)

SPANS = st.sampled_from([60.0, 600.0, 3000.0, DAY, 15 * DAY, 40 * DAY])
DEATHS = st.lists(st.integers(0, 4), max_size=4)
ACTIONS = st.one_of(
    st.tuples(st.just("pass"), SPANS, DEATHS),
    st.tuples(st.just("skew"), st.floats(-SKEW, SKEW), st.just([])),
    st.tuples(st.just("read"), st.just(0.0), st.just([])),
    st.tuples(st.just("act"), st.just(0.0), st.just([])),
    st.tuples(st.just("rotate"), st.sampled_from([Role.AUTHORITY, Role.SIGNING, *SERVERS]), DEATHS),
)


@dataclass(frozen=True)
class Span:
    """A value of something, as long as it was so."""

    begin: float
    end: float
    value: frozenset[str]


def play(world: World, actions: list[tuple[str, object, list[int]]], value: str) -> None:
    """The story. A reconciler dies after so many writes; another one that has `read` long before
    may `act` on it at any time."""
    other = world.look()
    world.step()
    for what, given_, deaths in actions:
        if what == "pass":
            for most in deaths:
                world.now += 1.0
                world.step(most)
            world.pass_time(float(str(given_)))
        elif what == "skew":
            world.skew = float(str(given_))
        elif what == "read":
            other = world.look()
        elif what == "act":
            for write in world.decided(other).writes:
                world.apply(write, other)
        elif isinstance(given_, Role) and given_ in world.held:
            world.annotate(given_, value)
            for most in deaths:
                world.step(most)
    world.pass_time(3 * DAY, every=3000.0)


def spans(world: World, role: Role) -> Iterator[tuple[float, float, Held]]:
    """The object's contents, each with when it was so."""
    events = [(time, held) for time, one, held in world.history if one is role]
    events = [(time, held) for time, held in events if held is not None and any(held.data.values())]
    ends = [time for time, _ in events[1:]] + [world.now]
    for (begin, held), end in zip(events, ends, strict=True):
        yield begin, end, held


def bundles(world: World, role: Role, lag: float) -> list[Span]:
    """Who is trusted, as seen by somebody who is `lag` behind at most."""
    made = []
    for begin, end, held in spans(world, role):
        pems = list(held.data.values()) if role is Role.HOOKS else [held.data[AUTHORITIES]]
        trusted = [set(issuing.certificates(pem)) for pem in pems]
        made.append(Span(begin, end + lag, frozenset(set.intersection(*trusted))))
    return made


def leaves(world: World, role: Role) -> list[Span]:
    """Who signed what a server shows."""
    return [
        Span(begin, end + FILE_LAG, frozenset(issuing.certificates(held.data["ca.crt"])))
        for begin, end, held in spans(world, role)
    ]


def signing(world: World, lag: float) -> list[Span]:
    """With which key artifacts are signed."""
    made = []
    for begin, end, held in spans(world, Role.SIGNING):
        signs = next(iter(keys.public_keys(held)))
        made.append(Span(begin, end + lag, frozenset({signs})))
    return made


def valid(world: World, lag: float) -> list[Span]:
    """Which public keys pods that are made then are given."""
    return [
        Span(begin, end + lag, frozenset(keys.listed(text(held, PUBLIC_KEYS))))
        for begin, end, held in spans(world, Role.TRUST)
    ]


def strangers(shown: list[Span], trusted: list[Span], life: float = 0.0) -> list[tuple[Span, Span]]:
    """What is shown to somebody who lives `life` longer and does not trust it."""
    return [
        (one, two)
        for one in shown
        for two in trusted
        if one.begin < two.end + life and two.begin < one.end and not one.value <= two.value
    ]


def judge_servers(world: World) -> None:
    assert not strangers(leaves(world, Role.WEBHOOK), bundles(world, Role.HOOKS, API_LAG))
    assert not strangers(leaves(world, Role.GATEWAY), bundles(world, Role.TRUST, API_LAG))
    for role in SERVERS:
        for begin, end, held in spans(world, role):
            found = issuing.pair(held.data["tls.crt"], held.data["tls.key"])
            assert found is not None
            life = issuing.life(found.certificate)
            assert life.begin <= begin - SKEW and end + FILE_LAG <= life.end


def judge_rest(world: World) -> None:
    for role in (Role.KERNEL_KEY, Role.BROKER):
        assert len({tuple(held.data.items()) for _, _, held in spans(world, role)}) == 1
    assert max(len(one.value) for one in valid(world, 0.0)) <= 2
    assert world.step() == 0
    by = rotation.authorities(world.held[Role.AUTHORITY])
    assert world.trusted() == world.hooked() == set(by)
    assert set(world.public()) == set(keys.public_keys(world.held[Role.SIGNING]))


@pytest.mark.slow
@settings(max_examples=40)
@given(st.lists(ACTIONS, max_size=12))
def test_with_the_usual_overlap_no_pod_meets_a_stranger(
    actions: list[tuple[str, object, list[int]]],
) -> None:
    world = World()
    play(world, actions, "true")
    judge_servers(world)
    judge_rest(world)
    assert not strangers(leaves(world, Role.GATEWAY), bundles(world, Role.TRUST, API_LAG), JOB)
    assert not strangers(signing(world, FILE_LAG), valid(world, API_LAG), JOB)
    assert not strangers(signing(world, RESIGNING), valid(world, 0.0))


@pytest.mark.slow
@settings(max_examples=40)
@given(st.lists(ACTIONS, max_size=12))
def test_in_a_hurry_no_server_shows_what_is_not_trusted(
    actions: list[tuple[str, object, list[int]]],
) -> None:
    world = World()
    play(world, actions, "now")
    judge_servers(world)
    judge_rest(world)


@pytest.mark.slow
@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(list(Role)),
            st.sampled_from(["gone", "empty", "text", "now"]),
            st.sampled_from([0.0, 700.0, 4000.0]),
            st.integers(0, 3),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_whatever_is_lost_or_spoilt_it_comes_right(
    hurts: list[tuple[Role, str, float, int]],
) -> None:
    world = World()
    world.step()
    for role, how, seconds, most in hurts:
        held = world.held.get(role)
        if how == "now" and held is not None:
            world.annotate(role, "now")
        elif how == "gone" or held is None:
            world.put(role, None)
        else:
            data = dict.fromkeys(held.data, b"" if how == "empty" else b"spoilt")
            if role not in (Role.KERNEL_KEY, Role.BROKER):
                world.put(role, Held(data, held.annotations))
        world.now += seconds
        world.step(most)
    world.pass_time(2 * DAY, every=500.0)
    assert world.step() == 0
    by = rotation.signer(world.held[Role.AUTHORITY])
    assert by is not None
    for role in SERVERS:
        data = world.held[role].data
        found = issuing.pair(data["tls.crt"], data["tls.key"])
        assert found is not None and issuing.signed(found.certificate, by.certificate)
    assert world.trusted() == {issuing.identity(by.certificate)}
    if Role.HOOKS in world.held:
        assert world.hooked() == world.trusted()
    assert len(world.public()) == 1
