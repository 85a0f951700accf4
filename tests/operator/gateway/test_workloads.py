"""What the reconciler is told: each pod as it stands, once, and to the reconciler alone."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from stitch_operator.gateway import made, workloads
from stitch_operator.gateway.database import connect, run
from stitch_operator.gateway.identity import Identity
from stitch_operator.gateway.ledger import Happened, Ledger
from stitch_operator.gateway.savings import Report
from stitch_operator.gateway.standing import Standing
from stitch_operator.reports import Graph, Made, Workload, Workloads
from stitchcore.artifact.store import open_store
from stitchcore.errors import Reason, Refused
from tests.operator.gateway.support import KEY, TOKENS, Running, gateway, graph, key_of, publish

GRAPH, SECOND, START = "cd" * 32, 10**9, 1_000_000.0
READER = "carol/stitch-reconciler"
MADE = Made(kernels_before=57, kernels_after=5, bytes_saved=19 << 20, bytes_saveable=20 << 20,
            left={"library_call": 5})  # fmt: skip
"""Of the manifest that `publish` writes."""


class Accounts:
    """As support.Tokens; carol's service account is the reconciler's, and bob is of another one."""

    def identify(self, token: str) -> Identity:
        name = TOKENS[token]
        account = "default" if name == "alice" else "stitch-reconciler"
        return Identity(name, "train", f"pod-{name}", 2.0, "cpu", time.time() - 3600,
                        controller="job-1", account=account)  # fmt: skip


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with gateway(tmp_path, Accounts()) as made:
        made.service.parts = replace(made.service.parts, reader=READER)
        yield made


def told(running: Running, since: str = "") -> Workloads:
    """The reconciler's call, once what was seen is written down."""
    running.written(running.service.parts.ledger.settle)
    pods, graphs = running.service.sightings.take()
    running.written(running.service.parts.ledger.note, pods, graphs)
    answer = running.get(f"/v1/workloads?since={since}", "carol")
    assert answer.status_code == 200
    return msgspec.json.decode(answer.content, type=Workloads)


def only(found: Workloads) -> Workload:
    [one] = [one for one in found.workloads if one.namespace == "alice"]
    return one


def test_only_the_releases_reconciler_is_told(running: Running) -> None:
    assert running.get("/v1/workloads", "alice").status_code == 403
    same_account_name_elsewhere = running.get("/v1/workloads", "bob")
    assert same_account_name_elsewhere.status_code == 403
    assert same_account_name_elsewhere.json()["reason"] == "forbidden"
    assert running.get("/v1/workloads", "carol").status_code == 200


def test_without_a_reader_nobody_is(tmp_path: Path) -> None:
    with gateway(tmp_path, Accounts()) as running:
        assert running.get("/v1/workloads", "carol").status_code == 403


def test_a_job_is_followed_from_its_first_word_to_its_savings(running: Running) -> None:
    data = graph()
    digest, request = key_of(data)
    running.submit(data)
    found = only(told(running))
    assert (found.owner, found.pod, found.controller) == ("train", "pod-alice", "job-1")
    assert found.sessions == 1 and not found.stepped and time.time() - found.contact < 30
    assert found.graphs == [Graph(graph=digest, phase="pending")]
    publish(running.store, request)
    running.forget()
    running.get(f"/v1/graphs/{request}")
    assert only(told(running)).graphs == [Graph(graph=digest, phase="ready", key=KEY, made=MADE)]
    event = {"session": "s1", "graph": digest, "key": KEY}
    running.post("/v1/jobs/events", {**event, "seq": 1, "type": "swap-begin"})
    swapped = only(told(running))
    assert swapped.stepped and swapped.graphs[0].swap == "begun"
    running.post("/v1/jobs/events", {**event, "seq": 2, "type": "swap-ok"})
    said = {**event, "seq": 3, "steps": 70, "baseline_ns": 12 * SECOND, "stitched_ns": 10 * SECOND,
            "interval": [SECOND, 3 * SECOND], "pairs": 9, "devices": 1.0}  # fmt: skip
    assert running.post("/v1/savings", said).json()["status"] == "counted"
    done = only(told(running))
    assert (done.saved, done.lost, done.gpu, done.devices) == (2.0, 0.0, "cpu", 2.0)
    assert done.graphs == [
        Graph(graph=digest, phase="ready", key=KEY, swap="ok", steps=70, ratio=1.2, low=1.1,
              high=1.3, seconds_before=12e9 / 70 / SECOND, seconds_after=10e9 / 70 / SECOND,
              made=MADE)
    ]  # fmt: skip


def test_a_store_that_does_not_answer_leaves_the_rest_told(running: Running) -> None:
    data = graph()
    digest, request = key_of(data)
    running.submit(data)
    publish(running.store, request)
    running.forget()
    running.get(f"/v1/graphs/{request}")
    store = running.service.parts.store
    running.service.parts = replace(running.service.parts, store=Hanging())
    assert only(told(running)).graphs == [Graph(graph=digest, phase="ready", key=KEY)]
    running.service.parts = replace(running.service.parts, store=store)
    running.written(running.service.parts.ledger.settle)
    assert only(told(running)).graphs[0].made == MADE


class Hanging:
    """A store that refuses."""

    def read(self, *path: str) -> bytes:
        raise Refused(path[-1], Reason.STORE_UNREADABLE, "no answer")


def test_of_an_artifact_what_cannot_be_read_is_nothing(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    assert made.stored(store, KEY) is None
    for text, found in (
        (b"no json", Made()),
        (b'{"expect": {"kernels_before": "many"}}', Made()),
        (b'{"expect": {"kernels_before": 57, "kernels_after": 5, "later": 1}, "refusals": '
         b'{"library_call": 5, "of a user": 1, "of another": 2}}',
         Made(kernels_before=57, kernels_after=5, left={"library_call": 5, "other": 3})),
    ):  # fmt: skip
        store.write(text, "artifacts", KEY, "manifest.json")
        assert made.stored(store, KEY) == found


def test_reasons_are_of_the_closed_list(running: Running) -> None:
    data = graph()
    digest, request = key_of(data)
    running.submit(data)
    publish(running.store, request)
    event = {"session": "s1", "graph": digest, "key": KEY}
    running.forget()
    running.submit(data)
    for seq, kind in ((1, "swap-begin"), (2, "rolled-back")):
        said = {**event, "seq": seq, "type": kind, "reason": "a user's own words"}
        assert running.post("/v1/jobs/events", said).status_code == 200
    [found] = only(told(running)).graphs
    assert (found.swap, found.reason) == ("rolled-back", "other")


def test_a_swap_that_went_back_stays_so(running: Running) -> None:
    """A job says that its first stitched steps went well once it sees so: it may be after they were
    slower and it has gone back."""
    data = graph()
    digest, request = key_of(data)
    running.submit(data)
    publish(running.store, request)
    running.forget()
    running.submit(data)
    about = {"session": "s1", "graph": digest, "key": KEY}
    for seq, kind in enumerate(("swap-begin", "rolled-back", "swap-ok")):
        event = {**about, "seq": seq, "type": kind, "reason": "slower" if seq == 1 else ""}
        assert running.post("/v1/jobs/events", event).status_code == 200
    [found] = only(told(running)).graphs
    assert (found.swap, found.reason) == ("rolled-back", "slower")


def test_a_first_timed_step_needs_no_artifact(running: Running) -> None:
    said = {"session": "s1", "seq": 1, "graph": GRAPH, "type": "timed"}
    assert running.post("/v1/jobs/events", said).json()["status"] == "noted"
    assert only(told(running)).stepped
    answer = running.post("/v1/jobs/events", {**said, "type": "swap-ok"})
    assert (answer.status_code, answer.json()["reason"]) == (404, "not_found")


def test_what_has_not_changed_is_not_told_again(running: Running) -> None:
    running.submit(graph())
    first = told(running)
    assert {one.namespace for one in first.workloads} == {"alice"}  # the reconciler is no job
    again = told(running, first.next)
    assert again.workloads == [] and again.next == first.next
    running.submit(graph(salt=1), "bob")
    [other] = told(running, again.next).workloads
    assert other.namespace == "bob"
    assert len(told(running, "of-another-ledger.99.pod").workloads) == 2


# The ledger alone


def identity(pod: str) -> Identity:
    return Identity("a", "train", pod, 2.0, "cpu", START)


def test_pages_hold_every_pod_once(place: Path | str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "PAGE", 3)
    ledger = Ledger(place)
    ledger.note([(identity(f"p{number}"), START) for number in range(8)], {})
    seen, since, more = [], "", True
    while more:
        page = ledger.workloads(since, START)
        seen += [one.pod for one in page.workloads]
        since, more = page.next, page.more
    assert sorted(seen) == [f"p{number}" for number in range(8)]
    assert ledger.workloads("", START + workloads.TOLD_SECONDS + 1).workloads == []
    ledger.close()


def test_figures_wait_until_they_are_settled(place: Path | str) -> None:
    ledger = Ledger(place)
    pods = [identity(f"p{number}") for number in range(3)]

    def save(seq: int) -> None:
        for one in pods:
            report = Report(seq, 10, (1000 + seq) * SECOND, 1000 * SECOND, 0, 1.0, True, (0, 1))
            assert ledger.save(one, "s", GRAPH, report, 1.2, START + 3600) == "counted"

    save(1)
    first = ledger.workloads("", START + 3600)
    assert len(first.workloads) == 3 and all(one.stepped for one in first.workloads)
    save(2)
    assert ledger.workloads(first.next, START + 3600).workloads == []
    ledger.settle()
    settled = ledger.workloads(first.next, START + 3600)
    assert {one.saved for one in settled.workloads} == {2.0}
    assert ledger.workloads(settled.next, START + 3600).workloads == []
    ledger.close()


def test_changes_are_numbered_on_after_all_was_forgotten(place: Path | str) -> None:
    ledger = Ledger(place)
    ledger.note([(identity(f"p{number}"), START) for number in range(5)], {})
    before = ledger.workloads("", START)
    ledger.prune(START + 31 * 86400)
    ledger.note([(identity("new"), START + 31 * 86400)], {})
    [found] = ledger.workloads(before.next, START + 31 * 86400).workloads
    assert found.pod == "new"
    ledger.close()


def test_a_ledger_that_was_restored_is_read_anew(place: Path | str) -> None:
    ledger = Ledger(place)
    ledger.note([(identity("p"), START)], {})
    whose, _, _ = ledger.workloads("", START).next.partition(".")
    assert len(ledger.workloads(f"{whose}.99.p", START).workloads) == 1
    ledger.close()


def test_sightings_cost_a_write_a_minute() -> None:
    seen = workloads.Sightings()
    one = identity("p")
    seen.saw(one, START)
    assert len(seen.take()[0]) == 1
    seen.saw(one, START + 59)
    assert seen.take() == ([], {})
    seen.stood(one, GRAPH, Standing("pending", KEY, KEY), START + 59)
    pods, graphs = seen.take()
    assert len(pods) == 1 and len(graphs) == 1
    seen.stood(one, GRAPH, Standing("pending", KEY, KEY, stage="verify"), START + 60)
    assert seen.take() == ([], {})
    seen.restore(pods, graphs)
    seen.stood(one, GRAPH, Standing("refused", KEY, KEY, reason="memory"), START + 61)
    assert [stood.phase for stood in seen.take()[1].values()] == ["refused"]
    seen.saw(Identity("local", "local", "", 4.0, "cpu"), START)  # a shared token has no pod
    assert seen.take() == ([], {})


OLD = """
CREATE TABLE savings (
  namespace TEXT, pod TEXT, session TEXT, graph TEXT, gpu TEXT NOT NULL, seq INTEGER NOT NULL,
  steps INTEGER NOT NULL, net INTEGER NOT NULL, saved INTEGER NOT NULL, lost INTEGER NOT NULL,
  time REAL NOT NULL, PRIMARY KEY (namespace, pod, session, graph)) WITHOUT ROWID;
CREATE TABLE swaps (
  namespace TEXT, pod TEXT, session TEXT, key TEXT, owner TEXT NOT NULL, state TEXT NOT NULL,
  time REAL NOT NULL, PRIMARY KEY (namespace, pod, session, key)) WITHOUT ROWID;
INSERT INTO savings VALUES ('a', 'p', 's', 'g', 'cpu', 1, 10, 5, 5, 0, 1000000.0);
INSERT INTO swaps VALUES ('a', 'p', 's', 'k', 'train', 'begun', 1000000.0);
PRAGMA user_version = 2;
"""


def test_a_ledger_of_version_2_goes_on(tmp_path: Path) -> None:
    """Its totals and swaps stay, and its pods are told once they are heard again."""
    path = tmp_path / "ledger.sqlite"
    old = sqlite3.connect(path)
    old.executescript(OLD)
    old.close()
    ledger = Ledger(path)
    assert ledger.workloads("", START).workloads == []
    report = Report(2, 20, 1010 * SECOND, 1000 * SECOND, 0, 1.0, True, (0, SECOND))
    assert ledger.save(identity("p"), "s", "g", report, 1.2, START + 3600) == "counted"
    happened = Happened("s", 3, "swap-ok", "g", "k")
    assert ledger.happened(identity("p"), happened, START + 3600)
    [found] = ledger.workloads("", START + 3600).workloads
    [told] = found.graphs
    assert (told.swap, told.ratio, found.saved) == ("ok", 1.01, 10.0)
    ledger.close()
    fresh = connect(tmp_path / "fresh.sqlite")
    again = connect(path)
    for table in ("savings", "swaps"):
        found = []
        for database in (fresh, again):
            with database.reading() as db:
                found.append([row.name for row in run(db, f"PRAGMA table_info({table})")])
        assert found[0] == found[1]
    fresh.close()
    again.close()
