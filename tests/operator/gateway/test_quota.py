"""A namespace has its share of store and ledger; what is in the way of others is nobody's."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from stitch_operator.gateway import ledger
from stitch_operator.gateway.ledger import Quota
from stitchcore.artifact.store import Store
from tests.operator.gateway.support import KEY, Running, gateway, graph, key_of, publish


def reason(answer: object) -> tuple[int, str]:
    return answer.status_code, answer.json().get("reason", "")  # type: ignore[attr-defined]


def test_graphs_of_a_namespace_have_so_much_room(tmp_path: Path) -> None:
    size = len(graph(salt=1))
    with gateway(tmp_path, quota=Quota(graph_bytes=3 * size)) as running:
        for salt in (1, 2, 3):
            assert running.submit(graph(salt=salt)).status_code == 202
        assert reason(running.submit(graph(salt=4))) == (429, "quota")
        assert running.submit(graph(salt=1)).status_code == 202, "what is kept is served on"
        assert running.submit(graph(salt=4), "bob").status_code == 202, "it is alice's alone"
        assert len(running.store.list("requests")) == 4
        assert key_of(graph(salt=4), "bob")[1] in running.store.list("requests")


def test_what_was_collected_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "UNDER_WAY_SECONDS", -1.0)
    size = len(graph(salt=1))
    with gateway(tmp_path, quota=Quota(graph_bytes=2 * size)) as running:
        for salt in (1, 2):
            running.submit(graph(salt=salt))
        shutil.rmtree(tmp_path / "store" / "requests" / key_of(graph(salt=1))[1])
        assert running.submit(graph(salt=3)).status_code == 202
        assert reason(running.submit(graph(salt=4))) == (429, "quota")


def test_what_is_on_its_way_to_the_store_stays_in_the_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A namespace without room is counted anew by what is there: what was not there yet, and came a
    moment later, was counted no more, again and again."""
    size = len(graph(salt=1))
    under_way, go_on, publishes = threading.Event(), threading.Event(), Store.publish

    def slowly(self: Store, *arguments: Any) -> bool:
        under_way.set()
        go_on.wait(60)
        return publishes(self, *arguments)

    with gateway(tmp_path, quota=Quota(graph_bytes=2 * size)) as running:
        monkeypatch.setattr(Store, "publish", slowly)
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(running.submit, graph(salt=1))
            assert under_way.wait(60)
            second = pool.submit(running.submit, graph(size=40))
            assert reason(second.result()) == (429, "quota"), "a larger one: all is counted anew"
            go_on.set()
            assert first.result().status_code == 202
        answers = [running.submit(graph(salt=salt)).status_code for salt in (3, 4)]
        assert answers == [202, 429] and len(running.store.list("requests")) == 2


def test_rows_of_a_namespace_are_counted_over_restarts_and_all_tables(tmp_path: Path) -> None:
    digest, request = key_of(graph())
    about = {"graph": digest, "key": KEY, "type": "swap-begin"}
    with gateway(tmp_path, quota=Quota(rows=40)) as running:
        running.submit(graph())
        publish(running.store, request)
        running.forget()
        assert running.submit(graph()).status_code == 200
        answers = [
            running.post("/v1/jobs/events", {**about, "session": f"s{number}", "seq": 1})
            for number in range(40)
        ]
        assert answers[0].status_code == 200
        assert reason(answers[-1]) == (429, "quota")
        said = {**about, "session": "s", "seq": 1}
        assert running.submit(graph(), "bob").status_code == 202
        assert running.get(f"/v1/artifacts/{request}").status_code == 200, "reading goes on"
    with gateway(tmp_path, quota=Quota(rows=40)) as running:
        assert reason(running.post("/v1/jobs/events", said)) == (429, "quota")
    with sqlite3.connect(tmp_path / "ledger.sqlite") as database:
        counts = dict(database.execute("SELECT namespace, count FROM rows").fetchall())
        tables = ("submissions", "sessions", "events", "swaps", "pods", "standings", "kept")
        for namespace, count in counts.items():
            found = [
                database.execute(
                    f"SELECT count(*) FROM {table} WHERE namespace = ?", (namespace,)
                ).fetchone()[0]
                for table in tables
            ]
            assert count == sum(found), namespace


def test_graphs_that_nobody_serves_count_too(tmp_path: Path) -> None:
    """They cost no compilation, so nothing bounded how many were refused, each with its rows."""
    with gateway(tmp_path, quota=Quota(rows=20), served=()) as running:
        running.service.since = 0.0  # it has looked for workers
        answers = [running.submit(graph(salt=salt)) for salt in range(40)]
        assert reason(answers[0]) == (409, "no_worker_for_target")
        assert reason(answers[-1]) == (429, "quota")
        running.written(running.service.parts.ledger.note, *running.service.sightings.take())
        assert reason(running.submit(graph(salt=1), "bob")) == (409, "no_worker_for_target")
    with sqlite3.connect(tmp_path / "ledger.sqlite") as database:
        [(rows,)] = database.execute("SELECT count FROM rows WHERE namespace = 'alice'")
        assert rows <= 20 + 1, "and the pod's own"


def several(running: Running, number: int) -> list[Any]:
    """Answers to one more of each kind of row that a pod may have."""
    digest, _ = key_of(graph())
    about = {"graph": digest, "key": KEY, "seq": 1}
    said = {**about, "steps": 9, "baseline_ns": 2, "stitched_ns": 1, "interval": [1, 1], "pairs": 9}
    left = {"type": "refused", "reason": "few_calls", "final": True, "graph": f"{number:064x}"}
    return [
        running.post("/v1/jobs/events", {**about, "session": f"a{number}", "type": "swap-begin"}),
        running.post("/v1/jobs/events", {**about, "session": f"b{number}", "type": "may-swap"}),
        running.post("/v1/jobs/events", {"session": "s1", "seq": 9 + number, **left}),
        running.post("/v1/savings", {**said, "session": f"c{number}"}),
    ]


def test_rows_of_a_pod_are_so_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is told of a pod is read whole: a hundred thousand rows of one took the thread that all
    namespaces wait for 3 s each time, for the reconciler's page as for the job's own."""
    monkeypatch.setattr(ledger, "MOST_OF_POD", 8)
    with gateway(tmp_path) as running:
        running.submit(graph())
        publish(running.store, key_of(graph())[1])
        running.forget()
        assert running.submit(graph()).status_code == 200
        running.submit(graph(), "bob")
        publish(running.store, key_of(graph(), "bob")[1])
        running.forget()
        assert running.submit(graph(), "bob").status_code == 200
        first, *_, last = [several(running, number) for number in range(9)]
        assert [one.status_code for one in first] == [200] * 4
        assert [reason(one) for one in last] == [(429, "quota")] * 4
        assert [one.status_code for one in several(running, 0)] == [200] * 4, "said again"
        for salt in range(9):
            running.submit(graph(salt=1 + salt))
        running.written(running.service.parts.ledger.note, *running.service.sightings.take())
    with sqlite3.connect(tmp_path / "ledger.sqlite") as database:
        for table in ("sessions", "swaps", "savings", "standings"):
            about = "WHERE namespace = 'alice'"
            [(rows,)] = database.execute(f"SELECT count(*) FROM {table} {about}")
            assert 1 <= rows <= 8, table


def test_a_full_disk_is_said_to_be_full(small_disk: Path) -> None:
    """`store_unreadable` sent operators to look for a broken store."""
    with gateway(small_disk) as running:
        assert running.submit(graph()).status_code == 202
        with pytest.raises(OSError, match="space"):
            (small_disk / "filler").write_bytes(bytes(2**21))
        answer = running.submit(graph(400))
        assert reason(answer) == (503, "unavailable")
        assert "disk full" in answer.json()["what"]
        (small_disk / "filler").unlink()
        assert running.submit(graph(400)).status_code == 202
