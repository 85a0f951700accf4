"""Breakers open for what is ours, close by themselves, stay bounded, and come back from a map."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stitch_operator.reconciler import breakers
from stitch_operator.reconciler.breakers import (
    EARLY_SECONDS,
    IMAGE_SECONDS,
    MOST,
    MOST_OF_NAMESPACE,
    RENEWED_SECONDS,
    SETTLED_SECONDS,
    WORKLOAD_SECONDS,
    Line,
    Refusal,
    Seen,
    step,
)
from stitch_operator.reconciler.pods import Failure, Pod
from stitch_operator.reports import Workload
from stitch_operator.webhook.cluster import IMAGES, WORKLOADS, breakers_of
from tests.operator.reconciler.strategies import NOW, any_pod, pod, row

IMAGE = "runtime:1"
LINE = (IMAGES, "team", IMAGE)
JOB = (WORKLOADS, "team", "train")


def seen(*pods: Pod, refusals: tuple[Refusal, ...] = (), read: float | None = NOW,
         **rows: Workload) -> Seen:  # fmt: skip
    return Seen(pods, refusals, {one.pod: one for one in rows.values()}, read, IMAGE)


def stuck(number: int = 0, **more: Any) -> Pod:
    waiting = {"phase": "Pending", "started": None, "delivered": False}
    return pod(number, **{**waiting, "stuck": "ImagePullBackOff", **more})


def early(number: int = 0, ago: float = SETTLED_SECONDS, lasted: float = 5, **more: Any) -> Pod:
    failure = Failure(NOW - ago - lasted, NOW - ago)
    return pod(number, **{"phase": "Failed", "failure": failure, **more})


def test_the_first_pod_that_cannot_pull_opens_its_namespace() -> None:
    assert step({}, seen(stuck()), NOW) == {LINE: NOW}
    assert step({}, seen(stuck(image="runtime:0")), NOW) == {}  # of an older release
    assert step({}, seen(stuck(injected="")), NOW) == {}
    assert step({}, seen(stuck(leaving=True)), NOW) == {}


def test_it_stays_open_as_long_as_that_pod_waits_and_a_while_after() -> None:
    opened = step({}, seen(stuck()), NOW)
    later = NOW + 5 * IMAGE_SECONDS
    still = step(opened, seen(stuck()), later)
    assert still == {LINE: later}
    assert step(still, seen(), later + IMAGE_SECONDS) == still
    assert step(still, seen(), later + IMAGE_SECONDS + 1) == {}


def test_it_closes_when_the_image_has_come() -> None:
    opened = step({}, seen(stuck()), NOW)
    came = pod(started=NOW + 30)
    assert step(opened, seen(came), NOW + 31) == {}
    before = pod(1, started=NOW - 600)  # it was on that node already
    assert step(opened, seen(before, stuck()), NOW + 31) == {LINE: NOW + 31}
    assert LINE in step(opened, seen(before), NOW + 31)


def test_a_pod_that_our_container_has_ended_opens_it_for_a_while() -> None:
    failed = stuck(phase="Failed", stuck="StartError", gave_up=NOW - 5)
    assert step({}, seen(failed), NOW) == {LINE: NOW - 5}
    assert step({}, seen(failed), NOW + IMAGE_SECONDS) == {}


def test_another_image_of_the_runtime_is_tried_at_once() -> None:
    opened = step({}, seen(stuck()), NOW)
    assert step(opened, replace(seen(), image="runtime:2"), NOW + 1) == {}


def test_the_map_is_written_again_while_a_breaker_stays_open_but_not_each_second() -> None:
    assert not breakers.differs({LINE: NOW}, {LINE: NOW + RENEWED_SECONDS})
    assert breakers.differs({LINE: NOW}, {LINE: NOW + RENEWED_SECONDS + 1})
    assert RENEWED_SECONDS < IMAGE_SECONDS / 2  # else it closes under a pod that waits
    assert breakers.differs({}, {LINE: NOW}) and breakers.differs({LINE: NOW}, {})


def test_a_refused_pod_opens_it_too() -> None:
    refusals = (Refusal("team", NOW - 5), Refusal("old", NOW - IMAGE_SECONDS - 1))
    assert step({}, seen(refusals=refusals), NOW) == {LINE: NOW - 5}


def test_who_fails_before_the_first_step_is_left_alone_for_an_hour() -> None:
    opened = step({}, seen(early()), NOW)
    assert opened == {JOB: NOW - SETTLED_SECONDS}
    assert step(opened, seen(), NOW + WORKLOAD_SECONDS - SETTLED_SECONDS) == opened
    assert step(opened, seen(early()), NOW + WORKLOAD_SECONDS) == {}


@pytest.mark.parametrize(
    "innocent",
    [
        seen(early(), of=row(0, stepped=True)),
        seen(early(lasted=EARLY_SECONDS)),
        seen(early(), read=None),
        seen(early(ago=SETTLED_SECONDS - 1)),
        seen(early(leaving=True)),
        seen(pod(phase="Succeeded")),
        seen(early(workload="two words")),
        seen(early(injected="", skipped="limit_range")),
    ],
    ids=["stepped", "long", "unknown", "too soon", "evicted", "well", "no line", "not ours"],
)
def test_nobody_is_blamed_without_need(innocent: Seen) -> None:
    assert step({}, innocent, NOW) == {}


def test_who_also_fails_alone_was_not_ours() -> None:
    alone = {"injected": "", "skipped": "failed_before_start"}
    opened = step({}, seen(early(0, ago=100)), NOW)
    assert step(opened, seen(early(0, ago=100), early(1, ago=60, **alone)), NOW) == {}
    assert JOB in step({}, seen(early(0, ago=60), early(1, ago=100, **alone)), NOW)


lines = st.dictionaries(
    st.tuples(st.sampled_from([IMAGES, WORKLOADS]), st.sampled_from("abc"), st.sampled_from("xyz")),
    st.integers(int(NOW) - 7200, int(NOW)).map(float),
)


@settings(max_examples=200)
@given(lines)
def test_the_webhook_reads_what_is_written_and_so_do_we(held: dict[Line, float]) -> None:
    data = breakers.data(held)
    assert breakers.parse(data) == held
    read = breakers_of({"data": data})
    for kind in (IMAGES, WORKLOADS):
        assert read[kind] == {(where, name) for one, where, name in held if one == kind}
    assert not breakers.differs(held, breakers.parse(data))


@pytest.mark.slow
@settings(max_examples=200)
@given(lines, st.lists(st.integers(0, 5).flatmap(any_pod), max_size=6))
def test_a_second_step_changes_nothing(before: dict[Line, float], pods: list[Pod]) -> None:
    first = step(before, seen(*pods), NOW)
    assert step(first, seen(*pods), NOW) == first


def test_no_tenant_fills_the_map_alone_and_none_grows_it_for_ever() -> None:
    many = {(WORKLOADS, "a", f"w{n}"): NOW - n for n in range(MOST_OF_NAMESPACE + 50)}
    other = {(WORKLOADS, "b", "w"): NOW - 3000}
    made = step({**many, **other}, seen(), NOW)
    assert len(made) == MOST_OF_NAMESPACE + 1 and (WORKLOADS, "b", "w") in made
    assert (WORKLOADS, "a", "w0") in made
    wide = {(WORKLOADS, f"n{n}", "w"): NOW for n in range(2 * MOST)}
    kept = step(wide, seen(), NOW)
    assert len(kept) == MOST
    assert sum(len(text) for text in breakers.data(kept).values()) < 2**20


def test_a_map_somebody_else_wrote_is_no_harm() -> None:
    assert breakers.parse({"seen": "nonsense\nimages a b\nimages a b -1\nother a b 3\n"}) == {}
