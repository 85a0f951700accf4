"""Certificates and keys over the years: made, replaced, and never in the way of a request."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stitch_operator.reconciler import bundle, issuing, keys, rotation
from stitch_operator.reconciler.bundle import Bundle
from stitch_operator.reconciler.holding import ROTATE, Held, Role, text
from stitch_operator.reconciler.rotation import DAY
from tests.operator.reconciler.world import START, TIMES, World
from tests.operator.webhook import support

HOUR = 3600.0
SERVERS = (Role.WEBHOOK, Role.GATEWAY)


@pytest.fixture
def world() -> World:
    made = World()
    made.step()
    return made


def shown(world: World, role: Role) -> str:
    """Who signed what a server shows, by its identity."""
    (found,) = issuing.certificates(world.held[role].data["ca.crt"])
    return found


def test_everything_is_made_from_nothing(world: World) -> None:
    assert set(world.held) == set(Role)
    by = rotation.signer(world.held[Role.AUTHORITY])
    assert by is not None
    for role in SERVERS:
        data = world.held[role].data
        made = issuing.pair(data["tls.crt"], data["tls.key"])
        assert made is not None and issuing.signed(made.certificate, by.certificate)
        assert data["ca.crt"] == by.pem
    assert world.trusted() == world.hooked() == {issuing.identity(by.certificate)}
    assert len(world.public()) == 1
    assert len(bytes.fromhex(world.held[Role.KERNEL_KEY].data["secret"].decode())) == 32
    password = text(world.held[Role.BROKER], "password")
    url = f"redis://:{password}@stitch-redis.stitch.svc:6379/0"
    assert len(password) == 48 and text(world.held[Role.BROKER], "url") == url


def test_at_rest_nothing_is_written(world: World) -> None:
    for hours in (0, 1, 24 * 50):
        world.now = START + hours * HOUR
        assert world.decided(world.look()).writes == ()


def test_a_servers_names_are_its_services(world: World) -> None:
    for role, names in (
        (Role.WEBHOOK, ["stitch-webhook.stitch.svc", "stitch-webhook.stitch.svc.cluster.local"]),
        (Role.GATEWAY, ["stitch-gateway.stitch.svc", "stitch-gateway.stitch.svc.cluster.local"]),
        (Role.STORE, ["stitch-store.stitch.svc", "stitch-store.stitch.svc.cluster.local"]),
    ):
        found = issuing.pair(world.held[role].data["tls.crt"], world.held[role].data["tls.key"])
        assert found is not None and issuing.serves(found.certificate, names)


def test_other_names_are_another_certificate(world: World) -> None:
    before = world.leaf(Role.WEBHOOK), world.leaf(Role.GATEWAY)
    world.release = support.release(
        gatewayUrl="https://stitch.example.com:443",
        certificates={"webhookNames": ["127.0.0.1", "0:0:0:0:0:0:0:1"]},
    )
    world.pass_time(TIMES.propagation)
    after = world.leaf(Role.WEBHOOK), world.leaf(Role.GATEWAY)
    assert before[0] != after[0] and before[1] != after[1]
    assert world.step() == 0


def test_servers_certificates_are_replaced_in_time_by_the_same_authority(world: World) -> None:
    signer, before = world.signer(), world.leaf(Role.WEBHOOK)
    world.pass_time(59 * DAY)
    assert world.leaf(Role.WEBHOOK) == before
    world.pass_time(2 * DAY)
    assert world.leaf(Role.WEBHOOK) != before and world.signer() == signer
    assert len(world.trusted()) == 1


def test_an_authority_is_replaced_a_year_before_its_end(world: World) -> None:
    signer, old = world.signer(), world.trusted()
    world.pass_time(3284 * DAY, every=20 * DAY)
    assert world.signer() == signer and world.trusted() == old
    world.pass_time(3 * DAY)
    assert world.signer() == signer and len(world.trusted()) == len(world.hooked()) == 2
    world.pass_time(29 * DAY)
    assert world.signer() != signer
    world.pass_time(2 * HOUR, every=600)
    assert world.trusted() == world.hooked() == {shown(world, Role.GATEWAY)} != old


def test_by_hand_an_authority_is_replaced_with_the_usual_overlap(world: World) -> None:
    signer, before = world.signer(), {role: world.leaf(role) for role in SERVERS}
    world.annotate(Role.AUTHORITY, "true")
    world.step()
    assert len(world.trusted()) == len(world.hooked()) == 2
    world.pass_time(TIMES.overlap - 1)
    assert world.signer() == signer and {r: world.leaf(r) for r in SERVERS} == before
    world.pass_time(2)
    assert world.signer() != signer and ROTATE not in world.held[Role.AUTHORITY].annotations
    assert all(world.leaf(role) != before[role] for role in SERVERS)
    assert len(world.trusted()) == 2, "somebody may still show the old one's"
    world.pass_time(TIMES.grace + 1, every=60)
    assert len(world.trusted()) == len(world.hooked()) == 1
    world.pass_time(DAY)
    assert len(world.trusted()) == 1, "once is enough"


def test_in_a_hurry_it_takes_minutes(world: World) -> None:
    signer = world.signer()
    world.annotate(Role.AUTHORITY, "now")
    world.step()
    world.pass_time(TIMES.propagation - 1, every=60)
    assert world.signer() == signer
    world.pass_time(2)
    assert world.signer() != signer
    world.pass_time(TIMES.grace + 60, every=60)
    assert len(world.trusted()) == 1


def test_a_servers_certificate_is_replaced_by_hand(world: World) -> None:
    before = world.leaf(Role.GATEWAY)
    world.annotate(Role.GATEWAY, "true")
    world.pass_time(TIMES.propagation)
    assert world.leaf(Role.GATEWAY) != before
    assert ROTATE not in world.held[Role.GATEWAY].annotations and world.step() == 0


def test_the_key_that_signs_is_replaced_by_age_with_two_valid_meanwhile(world: World) -> None:
    (old,) = world.public()
    world.pass_time(366 * DAY)
    (other,) = set(world.public()) - {old}
    signs = keys.public_keys(world.held[Role.SIGNING])
    assert next(iter(signs)) == old and set(signs) == {old, other}
    world.pass_time(30 * DAY)
    assert next(iter(keys.public_keys(world.held[Role.SIGNING]))) == other
    world.pass_time(2 * DAY)
    assert world.public() == [other]
    assert keys.NEXT not in world.held[Role.SIGNING].data


def test_the_key_that_signs_is_replaced_by_hand_in_minutes(world: World) -> None:
    (old,) = world.public()
    world.annotate(Role.SIGNING, "now")
    world.step()
    assert len(world.public()) == 2
    world.pass_time(TIMES.propagation + 60, every=60)
    assert next(iter(keys.public_keys(world.held[Role.SIGNING]))) != old
    world.pass_time(TIMES.propagation + 60, every=60)
    assert len(world.public()) == 1 and old not in world.public()
    assert ROTATE not in world.held[Role.SIGNING].annotations
    world.pass_time(DAY)
    assert len(world.public()) == 1


def test_a_signing_key_that_leaked_is_trusted_by_no_new_pod_and_signs_nothing_again(
    world: World,
) -> None:
    """`now` would have everything signed again, what the leaked key signed too."""
    (old,) = world.public()
    world.annotate(Role.SIGNING, "leaked")
    world.step()
    (new,) = world.public()
    held = world.held[Role.SIGNING]
    assert new != old and keys.also_valid(held) == "" and keys.distrusted(held) == [old]
    assert ROTATE not in held.annotations
    world.pass_time(400 * DAY)
    assert keys.distrusted(world.held[Role.SIGNING]) == [old], "also after later ones"
    assert old not in world.public() and new not in world.public()


def test_a_signing_key_that_was_lost_leaves_the_old_one_valid_for_a_while(world: World) -> None:
    (old,) = world.public()
    world.put(Role.SIGNING, None)
    world.step()
    assert old in world.public() and len(world.public()) == 2
    world.pass_time(2 * DAY)
    assert old not in world.public()


def test_what_is_made_once_never_changes(world: World) -> None:
    before = world.held[Role.KERNEL_KEY], world.held[Role.BROKER]
    world.pass_time(400 * DAY, every=10 * DAY)
    assert (world.held[Role.KERNEL_KEY], world.held[Role.BROKER]) == before


def test_an_upgrade_that_wipes_the_bundle_is_mended(world: World) -> None:
    trusted = world.hooked()
    world.put(Role.HOOKS, Held({"pods": b"", "workloads": b"", "new": b""}))
    world.step()
    assert world.hooked() == trusted and len(world.held[Role.HOOKS].data) == 3


@pytest.mark.parametrize("wiped", [("pods", "workloads"), ("workloads",)], ids=len)
def test_a_wiped_bundle_starts_the_wait_anew(world: World, wiped: tuple[str, ...]) -> None:
    """The API servers may have forgotten the successor for a moment: nobody shows it yet."""
    signer = world.signer()
    world.annotate(Role.AUTHORITY, "now")
    world.step()
    world.now += TIMES.propagation - 1
    held = world.held[Role.HOOKS]
    world.put(Role.HOOKS, replace(held, data={**held.data, **dict.fromkeys(wiped, b"")}))
    world.step()
    world.now += 10
    world.step()
    assert world.signer() == signer
    world.pass_time(TIMES.propagation)
    assert world.signer() != signer


def test_without_a_webhook_configuration_nobody_waits_for_it() -> None:
    world = World()
    world.put(Role.HOOKS, None)
    world.step()
    assert world.leaf(Role.WEBHOOK)
    world.annotate(Role.AUTHORITY, "now")
    world.pass_time(2 * HOUR, every=300)
    assert len(world.trusted()) == 1


def test_trust_that_was_deleted_in_the_middle_comes_back_whole(world: World) -> None:
    world.annotate(Role.AUTHORITY, "now")
    world.pass_time(TIMES.propagation + 1)
    both = world.trusted()
    assert len(both) == 2
    world.put(Role.TRUST, None)
    world.step()
    assert shown(world, Role.GATEWAY) in world.trusted() <= both


@pytest.mark.parametrize("role", [Role.AUTHORITY, *SERVERS], ids=str)
@pytest.mark.parametrize("wrong", [b"", b"no PEM", b"\xff\xfe"], ids=["empty", "text", "bytes"])
def test_what_cannot_be_read_is_made_again(world: World, role: Role, wrong: bytes) -> None:
    name = "ca.crt" if role is Role.AUTHORITY else "tls.crt"
    data = world.held[role].data
    world.put(role, Held({**data, name: wrong}))
    world.pass_time(2 * HOUR, every=300)
    assert world.held[role].data[name] not in (wrong, data[name])
    assert world.trusted() == world.hooked() == {shown(world, Role.GATEWAY)}
    assert shown(world, Role.WEBHOOK) == shown(world, Role.GATEWAY)


def test_servers_wait_until_a_new_authority_is_known(world: World) -> None:
    before = {role: world.leaf(role) for role in SERVERS}
    world.put(Role.AUTHORITY, Held({"ca.crt": b"spoilt"}))
    world.step()
    assert len(world.trusted()) == len(world.hooked()) == 2
    world.pass_time(TIMES.propagation - 1, every=60)
    assert {role: world.leaf(role) for role in SERVERS} == before
    world.pass_time(2)
    assert all(world.leaf(role) != before[role] for role in SERVERS)


@pytest.mark.parametrize("role", [Role.TRUST, Role.HOOKS], ids=str)
def test_an_authority_that_not_all_know_signs_nothing(world: World, role: Role) -> None:
    signer = world.signer()
    world.annotate(Role.AUTHORITY, "now")
    world.refused = {role}
    world.pass_time(DAY, every=HOUR)
    assert world.signer() == signer
    world.refused = set()
    world.pass_time(HOUR, every=60)
    assert world.signer() != signer


@pytest.mark.parametrize("role", SERVERS, ids=str)
def test_what_is_shown_stays_trusted_however_long_it_is(world: World, role: Role) -> None:
    before = shown(world, role)
    world.annotate(Role.AUTHORITY, "now")
    world.refused = {role}
    world.pass_time(DAY, every=HOUR)
    trusted = world.hooked() if role is Role.WEBHOOK else world.trusted()
    assert before in trusted and len(trusted) == 2
    world.refused = set()
    world.pass_time(2 * HOUR, every=60)
    assert world.hooked() == world.trusted() == {shown(world, role)} != {before}


def test_a_successor_that_has_ended_signs_nothing(world: World) -> None:
    signer = world.signer()
    ended = issuing.authority("stitch-ca", START - 20 * DAY, 10 * DAY)
    held = world.held[Role.AUTHORITY]
    data = {**held.data, "next.crt": ended.pem, "next.key": ended.key_pem}
    world.put(Role.AUTHORITY, replace(held, data=data))
    world.pass_time(35 * DAY)
    assert world.signer() == signer
    world.annotate(Role.AUTHORITY, "now")
    world.pass_time(2 * HOUR, every=300)
    assert world.signer() not in (signer, ended.pem.decode())


def test_a_certificate_ends_with_its_authority_and_begins_before_slow_clocks() -> None:
    by = issuing.authority("stitch-ca", START, 10 * DAY)
    life = issuing.life(by.certificate)
    assert (life.begin, life.end) == (START - HOUR, START + 10 * DAY)
    short, long = (issuing.server(["host"], by, START, days * DAY) for days in (5, 90))
    assert issuing.life(short.certificate) == issuing.Life(START - HOUR, START + 5 * DAY)
    assert issuing.life(long.certificate).end == life.end


def test_an_authority_that_has_ended_is_replaced_in_minutes(world: World) -> None:
    world.now += TIMES.authority + DAY  # nobody looked for ten years
    world.pass_time(2 * HOUR, every=300)
    by = rotation.signer(world.held[Role.AUTHORITY])
    assert by is not None and issuing.life(by.certificate).end > world.now + 9 * 365 * DAY
    for role in SERVERS:
        data = world.held[role].data
        found = issuing.pair(data["tls.crt"], data["tls.key"])
        assert found is not None and issuing.life(found.certificate).end > world.now
        assert issuing.signed(found.certificate, by.certificate)


@pytest.mark.parametrize("hours", [-0.9, 0.9])
def test_an_hour_of_another_clock_changes_nothing(world: World, hours: float) -> None:
    before = dict(world.held)
    world.now += DAY
    world.skew = hours * HOUR
    assert world.step() == 0 and world.held == before


@pytest.mark.parametrize("hours", [0.5, 2])
def test_a_clock_that_was_years_ahead_only_makes_it_wait(world: World, hours: float) -> None:
    world.skew = 5000 * DAY
    world.pass_time(hours * HOUR, every=300)
    world.skew = 0.0
    world.pass_time(31 * DAY)
    for role in SERVERS:
        data = world.held[role].data
        found = issuing.pair(data["tls.crt"], data["tls.key"])
        assert found is not None
        life = issuing.life(found.certificate)
        assert life.begin <= world.now < life.end
    assert len(world.trusted()) == len(world.hooked()) == 1
    assert world.step() == 0


# ---- somebody else's ---------------------------------------------------------------------------
def given(names: str, **changes: object) -> Held:
    other = issuing.authority(names, START, 100 * DAY)
    made = issuing.server([names], other, START, 50 * DAY)
    return Held(
        {"tls.crt": made.pem, "tls.key": made.key_pem, "ca.crt": other.pem, **changes}, ours=False
    )


def test_of_others_nothing_is_made_and_trust_follows() -> None:
    world = World(support.release(certificates={"mode": "existing"}))
    world.step()
    assert not {Role.AUTHORITY, *SERVERS, Role.TRUST} & set(world.held)
    problems = world.decided(world.look()).problems
    assert len(problems) == 2 and "stitch-webhook-tls" in problems[0]
    held = {role: given(str(role)) for role in SERVERS}
    for role, one in held.items():
        world.put(role, one)
    world.step()
    assert world.hooked() == {shown(world, Role.WEBHOOK)}
    assert world.trusted() == {shown(world, Role.GATEWAY)} != world.hooked()
    assert {role: world.held[role] for role in SERVERS} == held
    assert world.decided(world.look()).problems == ()


def test_the_stores_authority_is_trusted_beside_the_gateways() -> None:
    """Its clients read the same ConfigMap as jobs do."""
    world = World(support.release(certificates={"mode": "existing"}))
    for role in (*SERVERS, Role.STORE):
        world.put(role, given(str(role)))
    world.step()
    assert world.trusted() == {shown(world, Role.GATEWAY), shown(world, Role.STORE)}
    assert world.hooked() == {shown(world, Role.WEBHOOK)}
    both = world.trusted()
    world.put(Role.GATEWAY, None)  # for so long nobody says that it is not needed
    world.pass_time(2 * HOUR, every=300)
    assert world.trusted() == both


def test_of_others_the_old_one_is_trusted_until_nobody_shows_it() -> None:
    world = World(support.release(certificates={"mode": "existing"}))
    for role in SERVERS:
        world.put(role, given("before"))
    world.step()
    old = world.trusted()
    world.put(Role.GATEWAY, given("after"))
    world.step()
    assert world.trusted() == old | {shown(world, Role.GATEWAY)}
    world.put(Role.GATEWAY, None)  # cert-manager makes it anew
    world.pass_time(HOUR / 2, every=60)
    assert len(world.trusted()) == 2
    world.put(Role.GATEWAY, given("after"))
    world.pass_time(2 * HOUR, every=60)
    assert world.trusted() == {shown(world, Role.GATEWAY)}


def test_given_keys_are_read_and_not_written() -> None:
    secrets = {"signing": "mine", "kernelKey": "mine-too", "broker": "outside"}
    world = World(support.release(secrets=secrets))
    world.step()
    assert not {Role.SIGNING, Role.KERNEL_KEY, Role.BROKER, Role.TRUST} & set(world.held)
    assert "mine" in world.decided(world.look()).problems[0]
    world.put(Role.SIGNING, Held({keys.SIGNS: b"k" * 32}, ours=False))
    world.step()
    (first,) = world.public()
    world.put(Role.SIGNING, Held({keys.SIGNS: b"l" * 32, keys.ALSO_VALID: first.encode()}))
    world.pass_time(500 * DAY, every=30 * DAY)
    assert first in world.public() and len(world.public()) == 2


def test_what_has_our_name_and_is_not_ours_stays(world: World) -> None:
    for role in (Role.AUTHORITY, Role.WEBHOOK, Role.SIGNING):
        world.held[role] = replace(world.held[role], ours=False)
        world.annotate(role, "now")
    before = {role: world.held[role].data for role in world.held}
    world.pass_time(2 * HOUR, every=300)
    assert {role: world.held[role].data for role in world.held} == before
    assert any("not of this release" in one for one in world.decided(world.look()).problems)


# ---- the bundle --------------------------------------------------------------------------------
def test_a_bundle_keeps_its_times() -> None:
    held = Bundle().needing({"a": "A"}, 100.0, 50)
    held = held.needing({"b": "B"}, 110.0, 50)
    assert held.text == "AB" and held.age("a", 130.0) == 30 and held.age("b", 130.0) == 20
    assert held.age("c", 130.0) is None
    again = bundle.read(held.items, {bundle.STATE: held.state})
    assert again == held
    assert again.needing({"b": "B"}, 159.0, 50).text == "AB"
    assert again.needing({"b": "B"}, 160.0, 50).text == "B"
    assert again.needing({"a": "A", "b": "B"}, 160.0, 50).times.unneeded == {}


@pytest.mark.parametrize("state", ["", "{", "[]", '{"since": 5}', '{"since": {"a": 900}}'])
def test_times_that_nobody_can_read_or_believe_begin_now(state: str) -> None:
    found = bundle.read({"a": "A"}, {bundle.STATE: state})
    assert found.age("a", 100.0) == 0
