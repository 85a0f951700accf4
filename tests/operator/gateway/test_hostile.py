"""A client with a valid token that lies: whatever it sends, it adds no more savings than its own
time and devices, and it places and changes no artifact, answer or key."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import threading
import time
from pathlib import Path

import httpx
import pytest

from stitchcore.artifact.store import ANSWER_BYTES, open_store
from tests.operator.gateway import processes, support
from tests.operator.gateway.support import KEY, graph, key_of, publish
from tests.waiting import wait_for

SECOND = 10**9
DEVICES = 4


def contents(store: Path) -> dict[str, str]:
    """Every file, by the hash of its bytes."""
    return {
        str(path.relative_to(store)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(store.rglob("*"))
        if path.is_file()
    }


def claims(
    client: httpx.Client, about: dict[str, object], number: int, end: threading.Event
) -> None:
    """As much as a report can say, under ever new sessions, sequence numbers and devices."""
    for seq in itertools.count():
        if end.is_set():
            return
        taken = int(10 ** (seq % 5) * SECOND / 1000)
        said = {"steps": 1, "baseline_ns": 2 * taken, "stitched_ns": taken, "pairs": 99}
        body = {**about, **said, "seq": seq, "interval": [1, 2], "devices": 64}
        for session in ("s1", f"s{number}", f"s{number}-{seq}"):
            client.post("/v1/savings", json={**body, "session": session})


@pytest.mark.slow
def test_no_report_adds_more_than_time_times_devices(tmp_path: Path) -> None:
    digest, request = key_of(graph(), "local")
    with processes.gateway(tmp_path, "redis://127.0.0.1:1/0", "--calls", "5000") as gateway:
        began = time.monotonic()
        gateway.client.post("/v1/graphs", json=support.submission(graph()))
        publish(open_store(str(tmp_path / "store")), request)
        assert gateway.client.post("/v1/graphs", json=support.submission(graph())).is_success
        about, end = {"graph": digest, "key": KEY}, threading.Event()
        threads = [
            threading.Thread(target=claims, args=(gateway.client, about, n, end)) for n in range(6)
        ]
        for thread in threads:
            thread.start()
        try:
            wait_for(lambda: _saved(gateway) > 8 * DEVICES, "it does get what may be true")
            refused = 'stitch_savings_reports_total{result="implausible"}'
            wait_for(lambda: refused in _metrics(gateway), "and no more")
        finally:
            end.set()
            for thread in threads:
                thread.join()
        saved = _saved(gateway)
        assert saved <= (time.monotonic() - began) * DEVICES


def _metrics(gateway: processes.Gateway) -> str:
    return httpx.get(gateway.metrics, trust_env=False).text


def _saved(gateway: processes.Gateway) -> float:
    lines = _metrics(gateway).splitlines()
    found = (one for one in lines if one.startswith("stitch_cpu_core_seconds_saved_t"))
    return sum(float(line.rpartition(" ")[2]) for line in found)


LIES: dict[str, object] = {
    "a list": [1],
    "a number": 7,
    "no status": {"status": "done"},
    "ready without a key": {"status": "ready"},
    "ready by a path": {"status": "ready", "key": "../requests"},
    "a time that is none": {"status": "pending", "time": "now"},
    "a time beyond all": {"status": "refused", "time": 1e400},
    "not a count": {"status": "pending", "done": "3", "total": [4]},
    "a reason that is none": {"status": "refused", "reason": {"a": 1}, "time": 1e18},
    "open that is none": {"status": "ready", "key": KEY, "open": 5},
}


@pytest.mark.parametrize("lie", LIES, ids=lambda name: name.replace(" ", "_"))
def test_an_answer_that_is_none_stands_in_nobodys_way(tmp_path: Path, lie: str) -> None:
    """A worker that was taken over writes answers. What looks through all that wait went no further
    than the first of these, or ended for good: nobody's graphs were given to workers any more."""
    first, second = graph(salt=1), graph(salt=2)
    with support.gateway(tmp_path, places=1) as running:
        assert running.submit(first).status_code == 202
        assert running.submit(second, "bob").status_code == 202
        request, others = key_of(first)[1], key_of(second, "bob")[1]
        assert [one for one, _ in running.queue.submitted] == [request]
        running.store.write(json.dumps(LIES[lie]).encode(), "answers", f"{request}.json")
        running.forget()
        assert running.submit(first).status_code == 202, "as if there were no answer"
        publish(running.store, request)
        wait_for(lambda: len(running.queue.submitted) == 2, "the place is free again")
        running.store.write(json.dumps(LIES[lie]).encode(), "answers", f"{others}.json")
        running.forget()
        third = graph(salt=3)
        assert running.submit(third, "carol").status_code == 202
        publish(running.store, others)
        wait_for(lambda: len(running.queue.submitted) == 3, "and the next one")


def test_answers_too_deep_or_too_long_are_none(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    for text in (b"[" * 100_000, b"{" + b" " * ANSWER_BYTES + b"}", b"\xff", b""):
        store.write(text, "answers", "a.json")
        assert store.read_answer("a") is None


@pytest.mark.slow
def test_no_call_places_or_changes_what_is_served(tmp_path: Path) -> None:
    _, request = key_of(graph(), "local")
    store = tmp_path / "store"
    evil = base64.b64encode(b"evil").decode()
    with processes.gateway(tmp_path, "redis://127.0.0.1:1/0") as gateway:
        client = gateway.client
        client.post("/v1/graphs", json=support.submission(graph()))
        publish(open_store(str(store)), request)
        assert client.post("/v1/graphs", json=support.submission(graph())).status_code == 200
        (store / "public_keys.json").write_text('{"public_keys": ["' + "ab" * 32 + '"]}')
        (store / "revoked.json").write_text('{"artifacts": []}')
        before = contents(store)
        names = (KEY, request, f"..%2f{request}", "../answers/" + request, "%2e%2e/revoked.json")
        codes = set()
        for method in ("PUT", "POST", "PATCH", "DELETE"):
            for folder in ("artifacts", "graphs", "answers", "kernels", "requests"):
                for name in names:
                    answer = client.request(method, f"/v1/{folder}/{name}", content=b"evil")
                    codes.add(answer.status_code)
        assert codes <= {404, 405}
        for lie in (
            {"key": KEY, "digest": "cd" * 32, "request": request, "scope": "cluster"},
            {"artifact": evil, "manifest": evil, "files": {"manifest.json": evil}},
            {"target": "../../artifacts"},
            {"tf": "2.21.0/../../../x"},
            {"preserve": ["../../x"]},
            {"target": "cpu-x86-64-v3\0"},
        ):
            client.post("/v1/graphs", json=support.submission(graph(salt=9), **lie))
        for kind in ("swap-begin", "swap-ok", "rolled-back", "crashed-before"):
            said = {
                "session": "../../x",
                "seq": 1,
                "graph": key_of(graph(), "local")[0],
                "type": kind,
            }
            client.post("/v1/jobs/events", json={**said, "key": KEY, "reason": "../" * 9})
        after = contents(store)
        new = set(after) - set(before)
        assert {name: after.get(name) for name in before} == before
        assert {name.split("/")[0] for name in new} == {"requests"}
        asked = [name.split("/")[1] for name in new]
        own = {key_of(graph(salt=9), "local")[1]}
        assert own <= set(asked) and all(len(one) == 64 for one in asked), asked
        assert client.get(f"/v1/artifacts/{KEY}").status_code in (200, 409)
    assert not list(tmp_path.glob("x")) and not (tmp_path.parent / "x").exists()
