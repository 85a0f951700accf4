"""A namespace has its share of store and ledger; what is in the way of others is nobody's."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from stitch_operator.gateway.ledger import Quota
from tests.operator.gateway.support import KEY, gateway, graph, key_of, publish


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


def test_what_was_collected_makes_room(tmp_path: Path) -> None:
    size = len(graph(salt=1))
    with gateway(tmp_path, quota=Quota(graph_bytes=2 * size)) as running:
        for salt in (1, 2):
            running.submit(graph(salt=salt))
        shutil.rmtree(tmp_path / "store" / "requests" / key_of(graph(salt=1))[1])
        assert running.submit(graph(salt=3)).status_code == 202
        assert reason(running.submit(graph(salt=4))) == (429, "quota")


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
