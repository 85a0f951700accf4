"""Two reconcilers of one release: one acts, the other succeeds it, and nothing is told twice."""

from __future__ import annotations

import signal

import pytest
from kubernetes import client

from stitch_operator.reconciler.__main__ import SUCCEEDED
from stitch_operator.reconciler.election import ACT_SECONDS, LEASE_SECONDS, Election
from tests.cluster.reconciling import Place, Running, running
from tests.cluster.test_reconciler import becomes, train
from tests.cluster.test_reconciler_faults import own_namespace as own_namespace
from tests.cluster.test_reconciler_faults import place as place
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_one_leads_until_it_is_silent_for_a_leases_life(place: Place, own_namespace: str) -> None:
    """By the follower's clock from when it saw the last change, whatever the time says."""
    clocks = Clock(), Clock()
    first, second = (
        Election(place.api, own_namespace, "lease", name, clock)
        for name, clock in zip(("first", "second"), clocks, strict=True)
    )
    first.step()
    second.step()
    assert (first.leads(), second.leads()) == (True, False)
    clocks[1].now += LEASE_SECONDS - 1
    first.step()  # renewed
    second.step()
    clocks[1].now += LEASE_SECONDS - 1
    second.step()
    assert not second.leads()
    clocks[0].now += ACT_SECONDS
    assert not first.leads(), "it stops before another one may begin"
    clocks[1].now += 2
    second.step()
    assert second.leads()
    first.step()
    assert first.lost.is_set() and not first.leads()
    second.give_back()
    third = Election(place.api, own_namespace, "lease", "third", Clock())
    third.step()
    assert third.leads(), "what is given back is free at once"
    lease = client.CoordinationV1Api(place.api).read_namespaced_lease("lease", own_namespace)
    assert (lease.spec.holder_identity, lease.spec.lease_transitions) == ("third", 3)


def test_of_two_that_take_it_at_once_one_has_it(place: Place, own_namespace: str) -> None:
    both = [Election(place.api, own_namespace, "raced", name) for name in ("a", "b")]
    read = both[0]._api.read_namespaced_lease

    def late(*given: object, **named: object) -> object:
        """The other one writes between its reading and its writing."""
        try:
            return read(*given, **named)
        finally:
            both[1].step()

    both[0]._api.read_namespaced_lease = late
    both[0].step()
    assert [one.leads() for one in both] == [False, True]


def holder(place: Place) -> str:
    found = client.CoordinationV1Api(place.api).read_namespaced_lease(
        f"{place.release.name}-reconciler", place.release.namespace
    )
    return str(found.spec.holder_identity or "")


def leads(place: Place, one: Running) -> bool:
    return holder(place).endswith(f"-{one.process.pid}")


@pytest.mark.nightly
def test_the_other_one_goes_on_and_says_nothing_twice(place: Place, own_namespace: str) -> None:
    """Killed, then one that stands still and comes back, then one that ends."""
    with place.gateway() as gateway, place.reconciler(url=gateway.url) as first:
        wait_for(lambda: leads(place, first), "the first leads")
        with place.reconciler(url=gateway.url) as second:
            played = train(place, own_namespace, parallelism=2)
            becomes(played, "Pending")
            assert leads(place, first)
            played.set(played.pods[0], running())
            becomes(played, "Observing")
            first.process.send_signal(signal.SIGKILL)
            first.process.wait(120)
            wait_for(lambda: leads(place, second), "the second leads")
            played.set(played.pods[1], running())
            wait_for(lambda: played.status()["replicas"]["injected"] == 2, "both")
            with place.reconciler(url=gateway.url) as third:
                second.process.send_signal(signal.SIGSTOP)
                wait_for(lambda: leads(place, third), "the third leads")
                later = train(place, own_namespace, "later")
                becomes(later, "Pending")
                second.process.send_signal(signal.SIGCONT)
                assert second.process.wait(60) == SUCCEEDED
                assert leads(place, third)
                with place.reconciler(url=gateway.url) as fourth:
                    third.process.send_signal(signal.SIGTERM)
                    assert third.process.wait(60) == 0
                    wait_for(lambda: leads(place, fourth), "the fourth leads")
                    last = train(place, own_namespace, "last")
                    becomes(last, "Pending")
                    assert played.events() == ["Injected"]
                    assert played.stitched() is not None
