"""The crash breaker in a cluster: a swap is on record before it begins, and whoever comes after a
pod that died of it leaves it, whichever pod that is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from stitch_operator.gateway import ledger as ledgers
from stitch_operator.gateway.identity import Identity
from stitch_operator.gateway.ledger import CRASHED, GO, WAIT, Happened, Known, Ledger
from tests.operator.gateway.support import KEY, TARGET, Tokens, gateway, graph, key_of, publish

NOW = 1_000_000.0
GRAPH = "cd" * 32
LATER = NOW + ledgers.SILENT_SECONDS + 1


def pod(name: str, owner: str = "train", namespace: str = "a") -> Identity:
    return Identity(namespace, owner, name, 2.0, "cpu", NOW)


@pytest.fixture
def ledger(place: Path | str) -> Iterator[Ledger]:
    made = Ledger(place)
    for namespace, key in (("a", KEY), ("b", "ef" * 32), ("c", "01" * 32)):
        request = f"request-of-{namespace}"
        known = Known(request, GRAPH, TARGET, "2.21", None, 0, None, None)
        made.submitted(pod("p", namespace=namespace), None, known, NOW)
        made.finished(request, key, 1.5, {}, "cpu", 0)
    yield made
    made.close()


def ask(
    ledger: Ledger,
    who: Identity,
    now: float,
    session: str = "s",
    key: str = KEY,
    since: float = 0.0,
) -> str:
    return ledger.may_swap(who, session, GRAPH, key, now, since)


def test_who_could_not_say_anything_has_not_died(ledger: Ledger) -> None:
    """The gateway was away, or is young: silence is none of the job's."""
    assert ask(ledger, pod("one"), NOW) == GO
    assert ask(ledger, pod("two"), LATER, since=LATER - 5) == WAIT
    assert ask(ledger, pod("one"), LATER + 1, since=LATER - 5) == GO


def test_the_next_pod_of_a_workload_leaves_what_one_died_of(ledger: Ledger) -> None:
    """`restartPolicy: Never`: another pod, on another node, with another disk."""
    assert ask(ledger, pod("one"), NOW) == GO
    assert ask(ledger, pod("two"), NOW + 20) == WAIT, "it may yet live"
    assert ask(ledger, pod("two"), LATER) == CRASHED
    assert ledger.breaker(pod("three"), KEY, TARGET)
    assert ask(ledger, pod("three"), LATER + 1) == CRASHED
    assert ask(ledger, pod("x", "another"), LATER) == GO, "of another workload nothing is known"


def test_the_same_pods_next_container_does_too(ledger: Ledger) -> None:
    assert ask(ledger, pod("one"), NOW, "first") == GO
    assert ask(ledger, pod("one"), LATER, "second") == CRASHED


def test_the_first_proves_a_swap_for_the_others(ledger: Ledger) -> None:
    """Replicas: one begins, the others wait for it and then go on at once."""
    assert ask(ledger, pod("one"), NOW) == GO
    for second in range(0, 600, 15):  # long steps: it says that it lives
        assert ask(ledger, pod("one"), NOW + second) == GO
        assert ask(ledger, pod("two"), NOW + second) == WAIT
    ledger.happened(pod("one"), Happened("s", 9, "swap-ok", GRAPH, KEY), NOW + 600)
    for name in ("two", "three", "four"):
        assert ask(ledger, pod(name), NOW + 601) == GO
    assert ask(ledger, pod("five"), NOW + 9999) == GO, "those that end later did not die of it"


def test_two_independent_reports_open_it_for_all(ledger: Ledger) -> None:
    for owner in ("first", "second"):
        assert not ledger.breaker(pod("x", "third"), KEY, TARGET)
        assert ask(ledger, pod(f"{owner}-1", owner), NOW) == GO
        assert ask(ledger, pod(f"{owner}-2", owner), LATER) == CRASHED
    assert ledger.breaker(pod("x", "third"), KEY, TARGET), "workloads of one namespace"
    assert not ledger.breaker(pod("x", namespace="b"), "ef" * 32, TARGET), "one tenant is no proof"
    assert ask(ledger, pod("one", namespace="b"), NOW, key="ef" * 32) == GO
    assert ask(ledger, pod("two", namespace="b"), LATER, key="ef" * 32) == CRASHED
    assert ledger.breaker(pod("x", namespace="c"), "01" * 32, TARGET), "of another namespace"
    assert not ledger.breaker(pod("x", namespace="c"), "01" * 32, "cpu-x86-64-v4")


@dataclass(frozen=True)
class Replaced(Tokens):
    """Alice's pod is another one each time it is looked at."""

    pods: list[str] = field(default_factory=lambda: ["one"])

    def identify(self, token: str) -> Identity:
        return replace(super().identify(token), pod=self.pods[-1])


def test_over_http_and_over_a_restart_of_the_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest, request = key_of(graph())
    said = {"session": "s1", "seq": 1, "graph": digest, "key": KEY, "type": "may-swap"}
    pods = Replaced(started=time.time() - 3600)
    with gateway(tmp_path, pods) as running:
        running.submit(graph())
        publish(running.store, request)
        running.forget()
        assert running.submit(graph()).status_code == 200
        assert running.post("/v1/jobs/events", said).json()["status"] == "noted"
    pods.pods.append("two")
    with gateway(tmp_path, pods) as running:
        other = {**said, "session": "s2"}
        answer = running.post("/v1/jobs/events", other).json()
        assert (answer["status"], answer["retry_after"]) == ("wait", 5.0)
        monkeypatch.setattr(ledgers, "SILENT_SECONDS", -1.0)
        assert running.post("/v1/jobs/events", other).json()["status"] == "crashed"
        refused = running.get(f"/v1/artifacts/{request}")
        assert (refused.status_code, refused.json()["reason"]) == (409, "crashed_before")
