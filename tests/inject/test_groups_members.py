"""Members of a swap group, simulated: real state machines on both sides, the real native timer, and
steps that meet as collectives have them meet; words are lost, gateways die, ranks are slow."""

from __future__ import annotations

import importlib
import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stitch_operator.gateway import groups
from stitchcore.inject import (
    client,
    plugin,
    program,
    reasons,
    swap_group,
    swap_group_member,
    swap_start,
)
from stitchcore.inject import settings as job_settings
from stitchcore.inject.program import ORIGINAL, STITCHED, Instance, Program, View

KEY, DIGEST = "b" * 64, "d" * 64
STEPS = 400


@pytest.fixture(scope="module")
def library(native: Path) -> Iterator[plugin.Plugin]:
    """A step that has been swapped has its memory sampled; that ends here."""
    importlib.import_module("tensorflow")
    made = plugin.Plugin(plugin.open_native(str(native)))
    yield made
    for step in range(made.new_step()):
        made.unwatch_memory(step)


class Register(dict[str, str]):
    """The replicas' register: the first word stands."""

    def read(self, key: str) -> str | None:
        return self.get(key)

    def decide(self, key: str, value: str) -> str | None:
        return self.setdefault(key, value)


class Gateway:
    """The groups of the gateway, which may die for good."""

    def __init__(self) -> None:
        self.rounds: dict[int, groups.Group] = {}
        self.alive = True

    def say(self, rank: int, said: Mapping[str, Any]) -> dict[str, Any] | None:
        if not self.alive:
            return None
        about = (f"s{rank}", said["key"], said["size"], said["rank"], said["step"])
        word = groups.Acknowledgement(*about, said.get("confirm"), said["margin"])
        number = said["round"]
        found = self.rounds[number] = groups.acknowledge(self.rounds.get(number), word, 0.0)
        state = {"state": found.state, "reason": found.reason, "latest_round": max(self.rounds)}
        return {"group": state, "swap_at": found.step}


class Source(client.Folder):
    """A rank's way to the gateway; `deliver` carries its latest word and the answer."""

    def __init__(self, gateway: Gateway, rank: int) -> None:
        self.gateway, self.rank = gateway, rank
        self.fields: Mapping[str, Any] | None = None
        self.last: swap_group.Heard | None = None

    def say(self, fields: Mapping[str, Any], every: float) -> None:
        self.fields = fields

    def heard(self, name: str) -> swap_group.Heard | None:
        return self.last

    def quiet(self, name: str) -> None:
        self.fields = None

    def deliver(self, answered: bool) -> None:
        if self.fields is not None:
            answer = self.gateway.say(self.rank, self.fields)
            if answer is not None and answered:
                self.last = swap_group.heard_of(self.fields["round"], answer)


class Swapper:
    """A swap that cannot fail, due at once."""

    def __init__(self) -> None:
        self.opened = False

    def due(self, instance: Instance) -> bool:
        return True

    def rehearse(self, found: Program, view: View) -> None: ...

    def open(self, found: Program) -> bool:
        found.swapped = True
        return True


class Rank:
    """One replica: its member, and the arms that its steps have run."""

    def __init__(self, native: plugin.Plugin, gateway: Gateway, register: Register,
                 rank: int, size: int, per_call: int) -> None:  # fmt: skip
        found = Program(DIGEST, joined=True)
        found.artifact = client.Artifact({"key": KEY}, ())
        self.step = native.new_step()
        native.schedule(self.step, ORIGINAL, 0, 0)
        pointers = (native.step_arm(self.step), native.step_begun(self.step))
        self.instance = Instance(found, self.step, ORIGINAL, *pointers, True)
        self.native, self.source = native, Source(gateway, rank)
        self.refused: list[tuple[str, str, str]] = []
        place = swap_group.Place("c", size, rank, f"/job:worker/replica:0/task:{rank}")
        config = replace(job_settings.read({"STITCH_STORE": "x"}), group=place)
        events = client.Events(tempfile.gettempdir(), "unused", lambda kind, fields: None)
        events.write = lambda kind, **fields: None  # type: ignore[method-assign,assignment]
        parts = swap_group_member.Parts(
            config, native, self.source, events, Swapper(), self._rolled_back,  # type: ignore[arg-type]
            lambda *said: self.refused.append(said), register,
        )  # fmt: skip
        view = View(None, None, frozenset(), {})  # type: ignore[arg-type]
        self.member = swap_group_member.Member(self.instance, view, place, parts)
        self.instance.member = self.member
        self.arms: list[int] = []
        self.per_call = per_call
        self.calling = ORIGINAL  # the arm of the present call, which may run several steps

    def _rolled_back(self, instance: Instance, reason: str, detail: str) -> None:
        instance.program.reason = reason

    @property
    def held(self) -> bool:
        between = len(self.arms) % self.per_call == 0
        return between and bool(self.instance.arm[0] == plugin.HELD)

    def run_step(self) -> None:
        if len(self.arms) % self.per_call == 0:
            self.calling = int(self.instance.arm[0])
        self.native.pass_step(self.step, self.calling)
        self.arms.append(self.calling)


def may_step(ranks: list[Rank], one: Rank) -> bool:
    """A step ends only when all have begun it: none is more than one ahead."""
    return not one.held and len(one.arms) <= min(len(other.arms) for other in ranks)


def settle(ranks: list[Rank], steps: int = STEPS) -> None:
    """All that is under way comes to its end, with `steps` run, or as many as who ran most."""
    steps = max([steps, *(len(one.arms) for one in ranks)])
    for _ in range(40 * steps):
        for one in ranks:
            one.source.deliver(True)
            one.member.tick()
            if may_step(ranks, one) and len(one.arms) < steps:
                one.run_step()
        if all(len(one.arms) == steps for one in ranks):
            return
    raise AssertionError([(len(one.arms), one.held, one.member.state) for one in ranks])


def check_equal(ranks: list[Rank]) -> None:
    first = min((one.arms for one in ranks), key=len)
    for one in ranks:
        assert one.arms[: len(first)] == first
        assert set(one.arms) <= {ORIGINAL, STITCHED}


def group_of(
    native: plugin.Plugin, size: int, per_call: int = 1
) -> tuple[list[Rank], Gateway, Register]:
    gateway, register = Gateway(), Register()
    ranks = [Rank(native, gateway, register, n, size, per_call) for n in range(size)]
    return ranks, gateway, register


ACTIONS = ("step", "step", "step", "tick", "tick", "deliver", "deliver", "lost", "back", "dies")


@pytest.mark.slow
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), size=st.integers(1, 3), rare=st.integers(0, 40), calls=st.integers(1, 5))
def test_no_step_is_run_by_two_replicas_differently(
    library: plugin.Plugin, data: st.DataObject, size: int, rare: int, calls: int
) -> None:
    """Whatever is lost and whoever asks to go back, all run the same arm at the same step, and
    none is held for good, gateway or not."""
    ranks, gateway, _ = group_of(library, size, calls)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(swap_group_member, "AGAIN_SECONDS", 0.0)
        script = data.draw(
            st.lists(
                st.tuples(st.integers(0, size - 1), st.sampled_from(ACTIONS), st.integers(1, 30)),
                max_size=60,
            )
        )
        for rank, action, count in script:
            one = ranks[rank]
            if action == "dies":
                gateway.alive = gateway.alive and rare > 4
            elif action == "back" and count > 25:
                one.member.ask_back(reasons.SLOWER, "test")
            elif action == "step":
                for _ in range(count):
                    for each in [one, *ranks]:
                        if may_step(ranks, each):
                            each.run_step()
            elif action == "tick":
                one.member.tick()
            elif action in ("deliver", "lost"):
                one.source.deliver(action == "deliver")
            check_equal(ranks)
        settle(ranks)
    check_equal(ranks)


def test_all_swap_at_the_named_step_and_go_back_at_another(library: plugin.Plugin) -> None:
    ranks, gateway, _ = group_of(library, 3)
    settle(ranks, 200)
    agreed = gateway.rounds[1].step
    assert gateway.rounds[1].state == groups.COMMITTED
    for one in ranks:
        assert one.arms.index(STITCHED) == agreed
    ranks[1].member.ask_back(reasons.SLOWER, "1.5 of the original's time")
    settle(ranks, 400)
    check_equal(ranks)
    back = gateway.rounds[2].step
    assert set(ranks[0].arms[back:]) == {ORIGINAL} and STITCHED in ranks[0].arms[200:back]
    assert [one.instance.program.reason for one in ranks] == ["swap_group", "slower", "swap_group"]


def test_a_revoked_artifact_leaves_all_replicas_at_one_step(library: plugin.Plugin) -> None:
    """What keeps a graph on its original for good does so for all of a group, or at once alone."""
    ranks, gateway, _ = group_of(library, 2)
    settle(ranks, 120)
    one = ranks[1].instance
    assert STITCHED in ranks[0].arms
    nothing: Any = None
    keeper = swap_start.Swapper(job_settings.read({}), library, nothing, nothing, nothing)
    shown = int(one.arm[0])
    keeper.back(one, reasons.REVOKED, "artifact bbbb")
    assert one.arm[0] == shown, "not alone"
    settle(ranks, 400)
    check_equal(ranks)
    assert set(ranks[0].arms[gateway.rounds[2].step :]) == {ORIGINAL}
    one.member = None
    library.schedule(one.step, STITCHED, 0, 0)
    keeper.back(one, reasons.REVOKED, "artifact bbbb")
    assert one.arm[0] == ORIGINAL


def test_blocks_grow_equally_and_are_random(library: plugin.Plugin) -> None:
    ranks, _, register = group_of(library, 2)
    settle(ranks, 3000)
    check_equal(ranks)
    lengths, run = [], 0
    for arm in ranks[0].arms:
        run, ended = (run + 1, 0) if arm == STITCHED else (0, run)
        lengths += [ended] if ended else []
    assert lengths[0] == program.CANARY_FIRST and max(lengths) > 60 and len(set(lengths)) > 8
    decision = json.loads(register[f"stitch/{ranks[0].member.name}/1"])
    assert decision["seed"] == swap_group.seed_of(ranks[0].member.name) != 0


def until_named(ranks: list[Rank], gateway: Gateway) -> int:
    """All hold at N, which is returned, and have yet to say so."""
    while any(one.member.state != swap_group_member.HOLDING for one in ranks):
        for one in ranks:
            one.member.tick()
            if one.member.state != swap_group_member.HOLDING:
                one.source.deliver(True)
    return gateway.rounds[1].step


def come_to(ranks: list[Rank], agreed: int) -> None:
    while any(len(one.arms) < agreed for one in ranks):
        for one in ranks:
            if may_step(ranks, one):
                one.run_step()


def test_a_gateway_that_dies_before_the_commit_leaves_all_as_they_were(
    library: plugin.Plugin,
) -> None:
    ranks, gateway, _ = group_of(library, 2)
    agreed = until_named(ranks, gateway)
    gateway.alive = False
    come_to(ranks, agreed)
    assert all(one.held for one in ranks)
    settle(ranks, agreed + 50)
    for one in ranks:
        assert set(one.arms) == {ORIGINAL}
        assert [said[:2] for said in one.refused] == [(DIGEST, reasons.SWAP_GROUP)]


@pytest.mark.parametrize("first", ["knows", "waits"])
def test_a_gateway_that_dies_between_two_answers_parts_nobody(
    first: str, library: plugin.Plugin
) -> None:
    """One replica has heard of the commit; the other has not and comes to N. Who is first to write
    in the register decides for both."""
    ranks, gateway, _ = group_of(library, 2)
    knows, waits = ranks
    agreed = until_named(ranks, gateway)
    knows.source.deliver(True)
    waits.source.deliver(False)
    knows.source.deliver(True)
    assert gateway.rounds[1].state == groups.COMMITTED
    gateway.alive = False
    come_to(ranks, agreed)
    assert knows.held and waits.held
    for one in (knows, waits) if first == "knows" else (waits, knows):
        one.member.tick()
    settle(ranks, agreed + 60)
    check_equal(ranks)
    assert (STITCHED in knows.arms) == (first == "knows")
    if first == "knows":
        assert knows.arms.index(STITCHED) == agreed


@pytest.mark.parametrize("begun", range(200, 212))
def test_a_way_back_that_comes_to_nothing_leaves_blocks_equal(
    library: plugin.Plugin, begun: int
) -> None:
    """One replica has heard that there is none before N, which lies within a call; the other is
    held. Blocks go on as they were on both."""
    ranks, gateway, _ = group_of(library, 2, 4)
    settle(ranks, begun)
    ranks[0].member.ask_back(reasons.SLOWER, "test")
    while 2 not in gateway.rounds or any(
        o.member.state != swap_group_member.HOLDING for o in ranks
    ):
        for one in ranks:
            one.member.tick()
            one.source.deliver(True)
    gateway.alive = False
    agreed = gateway.rounds[2].step
    dropped = swap_group.Decision(swap_group.DROP, agreed)
    ranks[0].member._parts.coordination.decide(
        f"stitch/{ranks[0].member.name}/2", swap_group.encode(dropped)
    )
    ranks[0].member.tick()
    for _ in range(agreed + 8):
        for one in ranks:
            if may_step(ranks, one):
                one.run_step()
    assert ranks[1].held and not ranks[0].held
    settle(ranks, 600)
    check_equal(ranks)
    assert STITCHED in ranks[0].arms[agreed:]


def test_a_member_that_never_confirms_keeps_all_from_swapping(library: plugin.Plugin) -> None:
    ranks, gateway, _ = group_of(library, 2)
    agreed = until_named(ranks, gateway)
    come_to(ranks, agreed)
    ranks[0].member.tick()
    ranks[0].source.deliver(True)
    assert gateway.rounds[1].state == groups.ABORTED
    settle(ranks, agreed + 20)
    assert set(ranks[0].arms) == set(ranks[1].arms) == {ORIGINAL}


def test_a_member_that_cannot_swap_never_acknowledges(library: plugin.Plugin) -> None:
    """The others gather, and run on."""
    ranks, gateway, _ = group_of(library, 2)
    ranks[0].member.ask_back(reasons.BAD_ARTIFACT, "refused by this rank")
    settle(ranks)
    assert [one.member.state for one in ranks] == [
        swap_group_member.OUT,
        swap_group_member.GATHERING,
    ]
    assert set(ranks[1].arms) == {ORIGINAL} and gateway.rounds[1].state == groups.GATHERING


def test_a_held_step_whose_watcher_is_gone_does_what_the_others_do(
    library: plugin.Plugin,
) -> None:
    ranks, gateway, _ = group_of(library, 2)
    agreed = until_named(ranks, gateway)
    for one in (ranks[0], ranks[1], ranks[0]):
        one.source.deliver(one is ranks[0])
    come_to(ranks, agreed)
    ranks[0].member.tick()
    assert ranks[0].instance.arm[0] == STITCHED and ranks[1].held
    swap_group_member.hold(ranks[1].instance, lambda: True)
    assert ranks[1].instance.arm[0] == STITCHED


def test_a_held_step_is_let_go_when_nothing_is_decided(
    library: plugin.Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks, _, _ = group_of(library, 1)
    one = ranks[0]
    assert library.hold(one.step, 2) and not library.hold(one.step, 3)
    one.run_step()
    one.run_step()
    assert one.held
    monkeypatch.setattr(swap_group_member, "HOLD_SECONDS", 0.05)
    begun = time.monotonic()
    swap_group_member.hold(one.instance, lambda: False)
    assert one.instance.arm[0] == ORIGINAL and time.monotonic() - begun >= 0.05
    assert not library.hold(one.step, 2), "that step has begun"
