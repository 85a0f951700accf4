"""What fails under the gateway: itself (kill -9), the disk, the store, the broker. Jobs are told to
ask again, and nothing is counted twice, lost or torn."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import resource
import signal
import socket
import sqlite3
import ssl
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from fsspec.implementations.local import LocalFileSystem

from stitch_operator.gateway.digests import Canonical, Digests, canonical
from stitch_operator.gateway.problems import Problem, Rejected
from stitch_operator.gateway.queue import CeleryQueue
from stitch_operator.gateway.tls import trusting
from stitchcore.artifact.store import Store, open_store
from stitchcore.sandbox import isolate
from tests.operator.gateway import processes, support
from tests.operator.gateway.support import KEY, QUEUE, graph, key_of, publish
from tests.ports import free_port
from tests.waiting import wait_for

SECOND = 10**9
WORKER = """
import sys
from celery import Celery
app = Celery(broker=sys.argv[1])
@app.task(name="stitch.compile")
def compile(key):
    open(sys.argv[2], "a").write(key + "\\n")
app.worker_main(["worker", "-Q", sys.argv[3], "-P", "solo", "--loglevel=ERROR"])
"""


def totals(folder: Path) -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(folder / "ledger.sqlite")) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return database.execute("SELECT namespace, gpu, saved - lost FROM totals").fetchall()


def report(about: dict[str, Any], seq: int, seconds: float) -> dict[str, Any]:
    taken = 1 * SECOND
    saved = {"baseline_ns": taken + int(seconds * SECOND), "stitched_ns": taken, "steps": seq}
    return {**about, "seq": seq, **saved, "interval": [0, 1], "pairs": 9, "devices": 1}


@pytest.mark.slow
def test_a_killed_gateway_loses_nothing_it_has_answered_for(tmp_path: Path) -> None:
    """Clients post all the while, the gateway is killed three times; whoever got no answer asks
    again, and in the end the ledger holds each client's last figure exactly once."""
    digest, request = key_of(graph(), "local")
    with processes.redis(free_port(), tmp_path) as broker:
        with processes.gateway(tmp_path, broker) as gateway:
            assert gateway.client.post(
                "/v1/graphs", json=support.submission(graph(), session="c0")
            ).status_code == 202  # fmt: skip
            publish(open_store(str(tmp_path / "store")), request)
            for number in range(4):
                body = support.submission(graph(), session=f"c{number}")
                assert gateway.client.post("/v1/graphs", json=body).is_success
        time.sleep(1.1)  # sessions have had some time to save anything
        figures = [0.0] * 4
        for round_ in range(3):
            with processes.gateway(tmp_path, broker) as gateway:
                threads = [
                    threading.Thread(target=_post, args=(gateway, digest, n, round_, figures))
                    for n in range(4)
                ]
                before = list(figures)
                for thread in threads:
                    thread.start()
                wait_for(lambda before=before: figures != before, "an answer")
                time.sleep(0.5)
                processes.end(gateway.process)
                for thread in threads:
                    thread.join()
            totals(tmp_path)  # whole after each kill
        with processes.gateway(tmp_path, broker) as gateway:
            for number, seconds in enumerate(figures):
                about = {"session": f"c{number}", "graph": digest, "key": KEY}
                again = report(about, 10_000, seconds)
                assert gateway.client.post("/v1/savings", json=again).is_success
        assert sum(figures) > 0
        expected = sum(int(seconds * SECOND) for seconds in figures)
        assert totals(tmp_path) == [("local", "cpu", expected)]


def _post(
    gateway: processes.Gateway, digest: str, number: int, round_: int, figures: list[float]
) -> None:
    about = {"session": f"c{number}", "graph": digest, "key": KEY}
    with httpx.Client(
        base_url=gateway.url,
        verify=gateway.client._transport._pool._ssl_context,  # type: ignore[attr-defined]
        headers=gateway.client.headers,
        trust_env=False,
    ) as client:
        for seq in range(1, 300):
            seconds = 0.001 * (round_ * 300 + seq)
            try:
                answer = client.post("/v1/savings", json=report(about, round_ * 300 + seq, seconds))
            except httpx.HTTPError:
                return
            if answer.status_code == 429:  # the limits of a namespace hold for reports too
                time.sleep(float(answer.headers["retry-after"]))
                continue
            assert answer.status_code == 200, answer.text
            figures[number] = seconds


def test_a_graph_that_ends_its_process_is_alone_to_blame() -> None:
    """Others that wait for the only process are numbered all the same."""

    async def scene() -> list[Canonical | BaseException]:
        before = {child.pid for child in multiprocessing.active_children()}
        digests = Digests(1)
        asked = [graph(20_000), *(graph(salt=salt) for salt in range(3))]
        numbered = [asyncio.ensure_future(digests.of(one, [])) for one in asked]
        try:
            while not (made := {child.pid for child in multiprocessing.active_children()} - before):
                await asyncio.sleep(0)
            for pid in made:
                os.kill(pid, signal.SIGKILL)
            return await asyncio.gather(*numbered, return_exceptions=True)
        finally:
            digests.close()

    first, *rest = asyncio.run(scene())
    assert isinstance(first, Rejected) and first.problem is Problem.BAD_REQUEST
    assert rest == [canonical(graph(salt=salt), []) for salt in range(3)]


@pytest.mark.slow
def test_a_full_disk_is_an_answer_and_passes(tmp_path: Path) -> None:
    digest, request = key_of(graph(), "local")
    about = {"session": "s1", "graph": digest, "key": KEY}
    with (
        processes.redis(free_port(), tmp_path) as broker,
        processes.gateway(tmp_path, broker) as gateway,
    ):
        client, pid = gateway.client, gateway.process.pid
        assert client.post("/v1/graphs", json=support.submission(graph())).status_code == 202
        publish(open_store(str(tmp_path / "store")), request)
        assert client.post("/v1/graphs", json=support.submission(graph())).status_code == 200
        time.sleep(0.5)
        unlimited = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (1024, unlimited[1]))
        full = client.post("/v1/graphs", json=support.submission(graph(400)))
        assert (full.status_code, full.json()["reason"]) == (503, "unavailable")
        assert int(full.headers["retry-after"]) > 0
        refused = client.post("/v1/savings", json=report(about, 1, 0.01))
        assert (refused.status_code, refused.json()["reason"]) == (503, "unavailable")
        assert client.get(f"/v1/artifacts/{KEY}").status_code == 200  # reading goes on
        assert client.get("/healthz").status_code == 200
        resource.prlimit(pid, resource.RLIMIT_FSIZE, unlimited)
        assert client.post("/v1/graphs", json=support.submission(graph(400))).status_code == 202
        assert client.post("/v1/savings", json=report(about, 1, 0.01)).json()["status"] == "counted"
        store = open_store(str(tmp_path / "store"))
        for one in store.list("requests"):
            assert store.read("requests", one, "meta.json")[-1:] == b"}"
    assert totals(tmp_path) == [("local", "cpu", SECOND // 100)]


def test_a_store_that_hangs_costs_a_bounded_time_and_comes_back(tmp_path: Path) -> None:
    hangs, go_on = threading.Event(), threading.Event()

    class Hanging(LocalFileSystem):
        """A network volume that has stopped answering."""

        cachable = False

        def exists(self, path: str, **named: Any) -> bool:
            if hangs.is_set():
                go_on.wait(120)
            return bool(super().exists(path, **named))

    store = Store(Hanging(), str(tmp_path / "store"))
    (tmp_path / "store").mkdir()
    with support.gateway(tmp_path, store=store, store_seconds=0.3) as running:

        def taken(salt: int) -> bool:
            return bool(running.submit(graph(salt=salt)).status_code == 202)

        wait_for(lambda: taken(0), "it is taken")
        hangs.set()
        start = time.monotonic()
        answers = [running.submit(graph(salt=salt)) for salt in range(3)]
        assert {answer.status_code for answer in answers} == {503}
        assert "store" in answers[0].json()["what"]
        assert time.monotonic() - start < 60, "not as long as it hangs"
        assert running.client.get("/healthz").status_code == 200
        hangs.clear()
        go_on.set()
        wait_for(lambda: taken(1), "it is taken again")


@pytest.mark.slow
def test_tasks_reach_a_worker_and_a_broker_that_lost_everything_is_asked_again(
    tmp_path: Path,
) -> None:
    port, got = free_port(), tmp_path / "got"
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    got.write_text("")
    with processes.redis(port, tmp_path) as broker:
        queue = CeleryQueue(broker)
        command = [sys.executable, str(script), broker, str(got), QUEUE]
        with processes.started(command, tmp_path / "worker.log"):
            wait_for(lambda: QUEUE in queue.served(), "a served queue")
            assert queue.served() == {QUEUE}
            queue.submit("k1", "cpu-x86-64-v3", "2.21")
            wait_for(lambda: got.read_text() == "k1\n", "the task")
        queue.submit("k2", "cpu-x86-64-v3", "2.21")
        queue.submit("k3", "cpu-x86-64-v3", "2.21")
        assert queue.depth(QUEUE) == 2
        assert queue.depth("stitch.other.tf2.21") == 0
    with pytest.raises(Rejected) as caught:
        queue.submit("k4", "cpu-x86-64-v3", "2.21")
    assert caught.value.problem is Problem.UNAVAILABLE
    with processes.redis(port, tmp_path):
        assert queue.depth(QUEUE) == 0  # it kept nothing, and says so
        queue.submit("k4", "cpu-x86-64-v3", "2.21")
        assert queue.depth(QUEUE) == 1
    queue.close()


@pytest.mark.slow
def test_without_a_broker_submissions_are_unavailable_and_artifacts_are_not(tmp_path: Path) -> None:
    _, request = key_of(graph(), "local")
    port = free_port()
    with processes.gateway(tmp_path, f"redis://127.0.0.1:{port}/0") as gateway:
        first = gateway.client.post("/v1/graphs", json=support.submission(graph()))
        assert first.status_code == 202  # it starts: workers are not known yet
        publish(open_store(str(tmp_path / "store")), request)
        wait_for(
            lambda: gateway.client.get(f"/v1/artifacts/{request}").status_code == 200,
            "the artifact",
        )


@pytest.mark.slow
def test_a_graph_that_was_kept_and_not_enqueued_is_enqueued_after_a_kill(tmp_path: Path) -> None:
    """The moment between the store and the broker: whoever asks again gets it going, once."""
    _, request = key_of(graph(), "local")
    port, got = free_port(), tmp_path / "got"
    broker = f"redis://127.0.0.1:{port}/0"
    with processes.gateway(tmp_path, broker) as gateway:
        assert gateway.client.post("/v1/graphs", json=support.submission(graph())).is_success
        children = isolate.tree(gateway.process.pid)[1:]
        assert children, "one that numbers graphs"
        processes.end(gateway.process)
        wait_for(lambda: not any(map(isolate.tree, children)), "their end")
    assert open_store(str(tmp_path / "store")).exists("requests", request, "meta.json")
    (tmp_path / "worker.py").write_text(WORKER)
    got.write_text("")
    command = [sys.executable, str(tmp_path / "worker.py"), broker, str(got), QUEUE]
    with (
        processes.redis(port, tmp_path),
        processes.started(command, tmp_path / "worker.log"),
        processes.gateway(tmp_path, broker) as gateway,
    ):

        def asked() -> bool:
            assert gateway.client.get(f"/v1/graphs/{request}").status_code == 202
            return got.read_text() != ""

        wait_for(asked, "the task")
        assert [asked() for _ in range(5)]
        assert got.read_text() == f"{request}\n"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_old_tls_and_strangers_are_refused_and_sigterm_ends_it(tmp_path: Path) -> None:
    with processes.gateway(tmp_path, "redis://127.0.0.1:1/0") as gateway:
        port = int(gateway.url.rpartition(":")[2])
        old = trusting(tmp_path / "ca.pem")
        old.minimum_version = ssl.TLSVersion.TLSv1
        old.maximum_version = ssl.TLSVersion.TLSv1_1
        old.set_ciphers("ALL:@SECLEVEL=0")
        with socket.create_connection(("127.0.0.1", port)) as plain, pytest.raises(ssl.SSLError):
            old.wrap_socket(plain, server_hostname="localhost")
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{gateway.url}/healthz", trust_env=False)  # another authority
        text = httpx.get(gateway.metrics, trust_env=False).text
        assert "stitch_build_info" in text
        assert gateway.client.get("/metrics").status_code == 404
        assert processes.end(gateway.process, signal.SIGTERM) in (0, -signal.SIGTERM)
